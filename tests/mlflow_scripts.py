"""
Training scripts for tests, each in a process of its own that has imported MLflow already.

Importing it takes seconds of CPU. So one process does, and every script is a fork of it, which then begins,
goes on and ends as any script does.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Script", "command", "ended", "script"]

PRELUDE = """
import os, signal, sys, threading, time
import trackperf

def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
"""

_WARM = """
import json, os, socket, sys
import mlflow.store.tracking.sqlalchemy_store, trackperf.cli, trackperf.run, trackperf.sync, trackperf_mlflow

def serve(orders):
    while True:
        told, streams, _, _ = socket.recv_fds(orders, 1 << 16, 2)
        if not told:
            os._exit(0)
        told = json.loads(told)
        if "wait" in told:
            orders.send(json.dumps(os.waitpid(told["wait"], 0)[1]).encode())
        elif (pid := os.fork()) == 0:
            break
        else:
            for stream in streams:
                os.close(stream)
            orders.send(str(pid).encode())
    orders.close()
    for place, stream in enumerate(streams, 1):
        os.dup2(stream, place)
        os.close(stream)
    # They were made for other files.
    sys.stdout, sys.stderr = (open(place, "w", buffering=1, closefd=False) for place in (1, 2))
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environ"])
    sys.argv = told["words"]
    return told["code"]

exec(compile(serve(socket.socket(fileno=int(sys.argv[1]))), "train.py", "exec"))
"""

_warm: list[_Warm] = []


class _Warm:
    """The process that the scripts are forks of."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(90)
        environ = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_TRACKING")}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _WARM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environ,
            )

    def ask(self, what: Mapping[str, Any], streams: list[int]) -> int:
        socket.send_fds(self._orders, [json.dumps(what).encode()], streams)
        return int(self._orders.recv(100))

    def close(self) -> None:
        self._orders.close()
        self.process.wait(timeout=20)


class Script:
    """A script that runs."""

    def __init__(self, code: str, folder: Path, words: list[str], environ: Mapping[str, str]) -> None:
        if not _warm:
            _warm.append(_Warm())
            atexit.register(_warm[0].close)
        self._err = folder / f"{os.urandom(4).hex()}.err"
        reading, writing = os.pipe()
        with self._err.open("wb") as err:
            told = {"code": code, "folder": str(folder), "words": words, "environ": {**os.environ, **environ}}
            self.pid = _warm[0].ask(told, [writing, err.fileno()])
        os.close(writing)
        self._out = os.fdopen(reading)
        self._guard = threading.Timer(60, self.send, [signal.SIGKILL])
        self._guard.start()

    def line(self) -> str:
        """Wait for a line of what it prints; empty when it has ended."""
        return self._out.readline().rstrip()

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Wait until it has ended; return its exit code, the rest of what it printed, and what it said."""
        with self._out:
            out = self._out.read()
        code = os.waitstatus_to_exitcode(_warm[0].ask({"wait": self.pid}, []))
        self._guard.cancel()
        err = self._err.read_text()
        self._err.unlink()
        return code, out, err


def script(body: str, folder: Path, **environ: str) -> Script:
    """Start a training script in a folder; its MLflow is the one that the test has."""
    return Script(PRELUDE + textwrap.dedent(body), folder, ["train.py"], environ)


def command(*words: str, folder: Path, **environ: str) -> tuple[int, str, str]:
    """Run `trackperf` with words."""
    code = "import sys, trackperf.cli; sys.exit(trackperf.cli.main())"
    return Script(code, folder, ["trackperf", *words], environ).end()


def ended(body: str, folder: Path, **environ: str) -> tuple[int, str, str]:
    """Run a script to its end."""
    return script(body, folder, **environ).end()
