"""Builds the simulated library with the system's compiler, once for each of its forms."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["LIBRARY", "cannot_build", "library"]

LIBRARY = "libnvidia-ml.so.1"
SOURCES = tuple(sorted(Path(__file__).parent.glob("*.[ch]")))
FLAGS = (
    "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread",
)  # fmt: skip


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc")


def cannot_build() -> str | None:
    """Return why there can be no simulated library here, or None."""
    if not sys.platform.startswith("linux"):
        return f"the simulated driver library is built for Linux (this is {sys.platform})"
    if _compiler() is None:
        return "the simulated driver library needs a C compiler (none found as $CC or cc)"
    return None


@functools.cache
def library(missing: tuple[str, ...] = (), *, named: bool = False) -> Path:
    """
    Return the path of the built library.

    Args:
        missing: patterns of functions that it shall not have.

        named: whether it carries the driver's name, so that whoever asks the loader for that gets it.
    """
    compiler = _compiler()
    reason = cannot_build()
    if reason is not None or compiler is None:
        raise RuntimeError(reason)
    flags = [*FLAGS, *([f"-Wl,-soname,{LIBRARY}"] if named else [])]
    script = "{ local: " + " ".join(f"{pattern};" for pattern in missing) + " };" if missing else ""
    digest = hashlib.sha256("\0".join([compiler, *flags, script]).encode())
    for source in (*SOURCES, Path(__file__)):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    target = _cache() / f"{digest.hexdigest()[:24]}.so"
    if not target.exists():
        _build(compiler, flags, script, target)
    return target


def _cache() -> Path:
    """Return a folder that only this user can have put something into."""
    folder = Path(tempfile.gettempdir()) / f"nvml-sim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        return Path(tempfile.mkdtemp(prefix="nvml-sim-"))
    return folder


def _build(compiler: str, flags: list[str], script: str, target: Path) -> None:
    """Build beside the target and move there at once, as other processes may be doing the same."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / "built.so"
        (Path(folder) / "versions").write_text(script)
        versions = [f"-Wl,--version-script={folder}/versions"] if script else []
        sources = [str(source) for source in SOURCES if source.suffix == ".c"]
        command = [compiler, *flags, *versions, *sources, "-o", str(built), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the simulated driver library does not build:\n{done.stderr}")
        built.replace(target)
