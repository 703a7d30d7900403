"""Facts about the machine: real repositories, recorded driver files, processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import types
from typing import TYPE_CHECKING, Any

import pytest

from trackperf import environment
from trackperf.environment import absent_reasons, commit_of, facts, nvidia_gpus

if TYPE_CHECKING:
    from pathlib import Path


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, apart from the user's settings."""
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(
        ["git", *who, *words],
        cwd=folder,
        env=os.environ | settings,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a real repository with one commit of `src/train.py`."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/train.py").write_text(
        "import json; from trackperf import environment; print(json.dumps(environment.facts()))\n"
    )
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def facts_of(script: Path, **environ: str) -> dict[str, Any]:
    """Return the facts that a script of its own process tells."""
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd="/",
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class TestFacts:
    """What every machine can tell."""

    def test_machine_and_software(self) -> None:
        """Host, CPUs, memory and versions are told, in types that JSON has."""
        found = facts()
        assert {"host", "platform", "python", "cpu", "cpus", "memory_gib", "trackperf"} <= set(found)
        assert 0 < found["cpus"] <= (os.cpu_count() or 1)  # type: ignore[operator]
        assert found == json.loads(json.dumps(found))
        assert "" not in found.values()

    def test_no_torch(self, tmp_path: Path) -> None:
        """A process that has not imported torch does not get it imported."""
        script = tmp_path / "train.py"
        script.write_text(
            "import json, sys; from trackperf import environment; f = environment.facts()\n"
            "print(json.dumps(f | {'imported': 'torch' in sys.modules}))"
        )
        found = facts_of(script)
        assert found["imported"] is False
        assert "torch" not in found

    def test_torch(self, tmp_path: Path) -> None:
        """Torch's version is told where it is imported, and CUDA is not initialised for it."""
        script = tmp_path / "train.py"
        script.write_text(
            "import json, torch; from trackperf import environment; f = environment.facts()\n"
            "environment.absent_reasons()\n"
            "print(json.dumps(f | {'version': torch.__version__, 'cuda': torch.cuda.is_initialized()}))"
        )
        found = facts_of(script)
        assert found["torch"] == found["version"]
        assert found["cuda"] is False

    def test_gpus_of_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once CUDA is in use, the devices that torch sees are told."""
        cuda = types.SimpleNamespace(
            is_initialized=lambda: True, device_count=lambda: 2, get_device_name=lambda _: "NVIDIA H200"
        )
        version = types.SimpleNamespace(cuda="12.8", hip=None)
        torch = types.SimpleNamespace(__version__="2.9.0", cuda=cuda, version=version)
        monkeypatch.setitem(sys.modules, "torch", torch)
        found = facts()
        assert (found["gpu"], found["gpus"], found["torch_cuda"]) == ("NVIDIA H200", 2, "12.8")
        assert "torch_hip" not in found

    def test_one_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fact that cannot be told does not cost the others."""
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

        def fail() -> float:
            raise OSError("no such file")

        monkeypatch.setattr(environment, "allowed_cpus", fail)
        found = facts()
        assert "python" in found
        assert set(absent_reasons()) == {"perf/mfu_pct"}


class TestCommit:
    """The commit of the script's folder."""

    @needs_git
    def test_script_of_a_repository(self, repository: Path) -> None:
        """The commit around the script is told, wherever it is started from, and whether files changed."""
        head = git(repository, "rev-parse", "HEAD")
        script = repository / "src/train.py"
        found = facts_of(script)
        assert (head[:12], False) == (found["commit"], found["dirty"])

        (repository / "notes.txt").write_text("not part of it")
        assert facts_of(script)["dirty"] is False
        script.write_text(script.read_text() + "\n")
        assert facts_of(script)["dirty"] is True

    @needs_git
    @pytest.mark.parametrize("state", ["branch", "detached", "packed", "worktree", "submodule-like"])
    def test_states_of_a_repository(self, repository: Path, state: str) -> None:
        """The commit is read in every state that a repository can be in."""
        folder = repository
        if state == "detached":
            git(repository, "checkout", "--quiet", "--detach")
        elif state == "packed":
            git(repository, "pack-refs", "--all")
        elif state == "worktree":
            folder = repository.parent / "second"
            git(repository, "worktree", "add", "--quiet", "-b", "other", str(folder))
        elif state == "submodule-like":
            (repository / ".git").rename(repository.parent / "elsewhere")
            (repository / ".git").write_text("gitdir: ../elsewhere\n")
        assert git(folder, "rev-parse", "HEAD")[:12] == commit_of(folder / "src")

    @needs_git
    def test_no_commit_yet(self, tmp_path: Path) -> None:
        """A repository without a commit has none."""
        git(tmp_path, "init", "--quiet")
        assert commit_of(tmp_path) == ""

    def test_no_repository(self, tmp_path: Path) -> None:
        """A folder in no repository has no commit, nor has a damaged one."""
        assert commit_of(tmp_path) == ""
        (tmp_path / ".git").write_text("gitdir: /nowhere/at/all\n")
        assert commit_of(tmp_path) == ""
        (tmp_path / ".git").unlink()
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git/HEAD").write_bytes(b"\xff\xfe")
        assert commit_of(tmp_path) == ""

    @needs_git
    @pytest.mark.parametrize("body", ["sleep 60", "exit 128", None])
    def test_git_that_does_not_answer(self, repository: Path, tmp_path: Path, body: str | None) -> None:
        """A git that hangs, refuses or is not there costs the `dirty` fact alone, within its second."""
        programs = tmp_path / "bin"
        programs.mkdir()
        if body is not None:
            (programs / "git").write_text(
                f"#!/bin/sh\nexec {body}\n" if "sleep" in body else f"#!/bin/sh\n{body}\n"
            )
            (programs / "git").chmod(0o755)
            (programs / "sleep").symlink_to(shutil.which("sleep") or "")
        began = time.monotonic()
        found = facts_of(repository / "src/train.py", PATH=str(programs))
        assert len(found["commit"]) == 12
        assert "dirty" not in found
        assert time.monotonic() - began < 20


class TestGpus:
    """NVIDIA GPUs by the driver's files, without the driver."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Return recorded driver files of two GPUs."""
        for bus, model in [("0000:01:00.0", "NVIDIA H200"), ("0000:81:00.0", "NVIDIA A100-SXM4-80GB")]:
            folder = tmp_path / "proc/driver/nvidia/gpus" / bus
            folder.mkdir(parents=True)
            (folder / "information").write_text(
                f"Model: \t\t {model}\nIRQ:   \t\t 133\nBus Location: {bus}\n"
            )
        return tmp_path

    def test_all(self, root: Path) -> None:
        """Without a choice of the user's all are told."""
        assert nvidia_gpus(root, {}) == ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]

    @pytest.mark.parametrize(
        ("visible", "count"),
        [("", 0), ("-1", 0), ("0", 1), ("0,1", 2), ("1,-1,0", 1), ("GPU-8a2f", 1), ("0,1,2", 2)],
    )
    def test_visible(self, root: Path, visible: str, count: int) -> None:
        """As many are told as `CUDA_VISIBLE_DEVICES` leaves."""
        assert len(nvidia_gpus(root, {"CUDA_VISIBLE_DEVICES": visible})) == count

    def test_none(self, tmp_path: Path) -> None:
        """A machine without the driver has none."""
        assert nvidia_gpus(tmp_path, {}) == []
