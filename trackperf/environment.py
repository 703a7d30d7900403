"""Facts about machine and software, told with every run so that unlike runs are not compared unawares."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from trackperf.devices.host import allowed_cpus, allowed_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Fact", "absent_reasons", "commit_of", "facts", "nvidia_gpus"]

Fact: TypeAlias = str | int | float | bool
"""What the value of a fact can be."""

_GIT_S: Final = 1.0
_DIGITS: Final = 12


def facts() -> dict[str, Fact]:
    """
    Return what is known of this machine and this process; what is not known is not in it.

    Never raises, and takes two seconds at the very most, where git does not answer. torch is asked only where
    it is imported, and CUDA is never initialised: a process that did so cannot fork workers that use it.
    """
    found: dict[str, Fact] = {}
    for part in (_software, _machine, _torch, _gpus, _source):
        with contextlib.suppress(Exception):  # what cannot be told must not cost the rest
            found.update(part())
    return {name: fact for name, fact in found.items() if fact != ""}


def absent_reasons() -> dict[str, str]:
    """Return why headline series that are not of the GPU readings are absent, by key."""
    return {"perf/mfu_pct": "needs the model's FLOP: init(flops_per_step=...) or perf.count_flops()"}


def nvidia_gpus(root: str | Path = "/", environ: Mapping[str, str] = os.environ) -> list[str]:
    """
    Return the models of the NVIDIA GPUs that this process may use, by the driver's own files.

    Where `CUDA_VISIBLE_DEVICES` picks some of several models, which of them is not told by these files; then
    the first ones stand for them.
    """
    names = []
    for file in sorted((Path(root) / "proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            names.append(_field(file.read_text(encoding="utf-8", errors="replace"), "Model") or "NVIDIA GPU")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return names
    asked = [name.strip() for name in visible.split(",")]
    stop = next((at for at, name in enumerate(asked) if name in ("", "-1")), len(asked))
    return names[:stop]


def commit_of(folder: Path) -> str:
    """Return the commit that the repository around a folder stands at (12 digits), or an empty string."""
    git = _git_folder(folder)
    if git is None:
        return ""
    head = _read(git / "HEAD")
    name = head.removeprefix("ref:").strip()
    if name == head:
        return _commit(head)
    shared = git / (_read(git / "commondir") or ".")
    for place in (git, shared):
        commit = _commit(_read(place / name))
        if commit:
            return commit
    for line in _read(shared / "packed-refs").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name:
            return _commit(commit)
    return ""


def _software() -> dict[str, Fact]:
    found: dict[str, Fact] = {"python": platform.python_version()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["trackperf"] = importlib.metadata.version("trackperf")
    return found


def _machine() -> dict[str, Fact]:
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": round(allowed_cpus(), 2),
        "memory_gib": round(allowed_memory_bytes() / 1024**3, 1),
    }


def _cpu_model(root: str | Path = "/") -> str:
    if sys.platform == "darwin":
        return _run(["sysctl", "-n", "machdep.cpu.brand_string"], Path.cwd()) or platform.machine()
    return _field(_read(Path(root) / "proc/cpuinfo"), "model name") or platform.machine()


def _torch() -> dict[str, Fact]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[str, Fact] = {"torch": str(torch.__version__)}
    for name in ("cuda", "hip"):
        build = getattr(torch.version, name, None)
        if build:
            found[f"torch_{name}"] = str(build)
    return found


def _gpus() -> dict[str, Fact]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    else:
        names = nvidia_gpus()
    return {"gpu": ", ".join(dict.fromkeys(names)), "gpus": len(names)} if names else {}


def _source() -> dict[str, Fact]:
    """Return the commit of the script's folder, or of the working folder in a notebook or a prompt."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(script).resolve().parent if script else Path.cwd()
    commit = commit_of(folder)
    if not commit:
        return {}
    changes = _run(["git", "status", "--porcelain", "--untracked-files=no"], folder)
    return {"commit": commit} if changes is None else {"commit": commit, "dirty": bool(changes)}


def _git_folder(folder: Path) -> Path | None:
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a worktree or a submodule
            return place / _read(git).removeprefix("gitdir:").strip()
    return None


def _commit(text: str) -> str:
    return text[:_DIGITS] if len(text) >= 40 and set(text) <= set("0123456789abcdef") else ""


def _run(command: list[str], folder: Path) -> str | None:
    """Return what a command prints, or None when it fails, is not there or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - no word of it comes from outside
            command,
            cwd=folder,
            # Taking no lock, it cannot get in the way of a git that the user runs.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def _field(text: str, name: str) -> str:
    """Return the first value of a field in lines of `name: value`."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
