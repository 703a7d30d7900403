"""How runs begin and end: real processes, real signals, real forks."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

import trackperf
from trackperf.registry import read_run
from trackperf.testing import MemorySink, StallingSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PRELUDE = """
import os, signal, sys, time
import trackperf
from trackperf.testing import MemorySink, StallingSink

def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
"""


def child(body: str, folder: Path, **environ: str) -> subprocess.Popen[str]:
    """Start a Python process with the body of a training script."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], timeout: float = 60) -> tuple[int, str, str]:
    """Wait for a process and return its exit status and what it said."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_for(condition: Callable[[], bool], timeout: float = 30) -> None:
    """Wait until something outside this process has come about."""
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.01)


def has_begun(path: Path) -> bool:
    """Return whether a run shows in TensorBoard."""
    try:
        return read_run(f"tensorboard:{path}").info is not None
    except trackperf.ReadError:
        return False


def status_in(path: Path) -> str | None:
    """Return the status that a JSON-lines run ended with, None when it did not end."""
    status = read_run(f"jsonl:{path}").status
    return status.value if status is not None else None


class TestExit:
    """Ends that the interpreter brings about."""

    def test_exit_without_finish(self, tmp_path: Path) -> None:
        """A script that just ends has all its steps written, and its run is finished."""
        body = """
        perf = trackperf.init(sink=["jsonl", "tensorboard"], name="x", warmup_steps=0)
        for _ in perf.steps(range(20), samples=2):
            spin(0.005)
        """
        code, _, err = finished(child(body, tmp_path))
        assert (code, err) == (0, "")
        for reader in ("jsonl", "tensorboard"):
            history = read_run(f"{reader}:{tmp_path / 'runs' / 'x'}")
            assert history.status is trackperf.Status.FINISHED
            assert history.summary is not None
            assert (history.summary.steps, history.summary.samples) == (20, 40)
            assert history.series["perf/train_s"].step.tolist() == [20]

    def test_an_exception_ends_the_script(self, tmp_path: Path) -> None:
        """The user's exception comes out as it is, and the run is failed."""
        body = """
        perf = trackperf.init(sink="jsonl", name="x")
        for place, _ in enumerate(perf.steps(range(20), samples=2)):
            if place == 7:
                raise ValueError("the user's own")
        """
        code, _, err = finished(child(body, tmp_path))
        assert code == 1
        assert err.strip().endswith("ValueError: the user's own")
        assert status_in(tmp_path / "runs" / "x") == "failed"

    def test_a_hanging_sink_does_not_hold_the_exit(self, tmp_path: Path) -> None:
        """With a sink that never returns the process ends by itself, with 0, within 5 s + 2 s of its end."""
        body = """
        perf = trackperf.init(sink=[StallingSink(), "jsonl"], name="x", warmup_steps=0, interval_s=0.01)
        for _ in perf.steps(range(20), samples=2):
            spin(0.005)
        print(time.time(), flush=True)
        """
        code, out, err = finished(child(body, tmp_path), timeout=30)
        assert code == 0
        # Three seconds more for a busy machine to end the process in.
        assert time.time() - float(out) < 7 + 3
        assert "stalling" in err
        assert "not delivered" in err
        assert status_in(tmp_path / "runs" / "x") == "finished"

    def test_the_training_does_not_feel_a_hanging_sink(self, tmp_path: Path) -> None:
        """200 steps of 10 ms come to their end, each on its own point elsewhere, while a sink hangs."""
        sink, other = StallingSink(), MemorySink()
        perf = trackperf.init(
            sink=[sink, other], dir=tmp_path, warmup_steps=0, interval_s=0.001, alerts=False
        )
        begin = time.perf_counter()
        for _ in perf.steps(range(200), samples=1):
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:
                pass
        assert time.perf_counter() - begin < 10
        sink.release.set()
        perf.finish()
        assert [step for step, _ in other.series("perf/train_s")] == list(range(1, 201))


class TestSignals:
    """Signals flush, and then do what they did before."""

    LOOP = """
        perf = trackperf.init(sink=["jsonl", "tensorboard"], name="x", warmup_steps=0)
        for place, _ in enumerate(perf.steps(range(10**9), samples=2)):
            if place == 50:
                print("ready", flush=True)
                while True:
                    time.sleep(0.05)
        """

    @pytest.mark.parametrize("repeat", [1, 2])
    def test_sigterm(self, tmp_path: Path, repeat: int) -> None:
        """SIGTERM, once or twice: all 50 steps are readable, the run is killed, the exit status is -15."""
        process = child(self.LOOP, tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(repeat):
            process.send_signal(signal.SIGTERM)
        code, _, _ = finished(process)
        assert code == -signal.SIGTERM
        if repeat == 1:
            for reader in ("jsonl", "tensorboard"):
                history = read_run(f"{reader}:{tmp_path / 'runs' / 'x'}")
                assert history.status is trackperf.Status.KILLED
                assert history.summary is not None
                assert history.summary.steps == 50

    def test_sigint(self, tmp_path: Path) -> None:
        """SIGINT raises KeyboardInterrupt as ever; the run is killed, the steps are there."""
        process = child(self.LOOP, tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_for(lambda: has_begun(tmp_path / "runs" / "x"))
        process.send_signal(signal.SIGINT)
        code, _, err = finished(process)
        assert code == -signal.SIGINT
        assert err.strip().endswith("KeyboardInterrupt")
        assert status_in(tmp_path / "runs" / "x") == "killed"

    def test_the_users_own_handler(self, tmp_path: Path) -> None:
        """A handler that was there before runs once; if it lets the training go on, so does the run."""
        body = """
        seen = []
        signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        perf = trackperf.init(sink="jsonl", name="x", warmup_steps=0)
        for place, _ in enumerate(perf.steps(range(100), samples=2)):
            if place == 50:
                os.kill(os.getpid(), signal.SIGTERM)
        perf.finish()
        print(seen, signal.getsignal(signal.SIGTERM).__name__)
        """
        code, out, err = finished(child(body, tmp_path))
        assert (code, out, err) == (0, "[15] <lambda>\n", "")
        history = read_run(f"jsonl:{tmp_path / 'runs' / 'x'}")
        assert history.status is trackperf.Status.FINISHED
        assert history.series["perf/train_s"].step.tolist() == [50, 100]

    def test_handlers_are_put_back(self, tmp_path: Path) -> None:
        """After the last run the process handles SIGTERM as it did before the first."""
        before = signal.getsignal(signal.SIGTERM)
        first = trackperf.init(sink=MemorySink(), dir=tmp_path)
        second = trackperf.init(sink=MemorySink(), dir=tmp_path)
        assert signal.getsignal(signal.SIGTERM) is not before
        first.finish()
        assert signal.getsignal(signal.SIGTERM) is not before
        second.finish()
        assert signal.getsignal(signal.SIGTERM) is before

    def test_kill_9_costs_the_current_window_at_most(self, tmp_path: Path) -> None:
        """After `kill -9` everything but the last window is there, and the run is not ended."""
        body = """
        perf = trackperf.init(sink=["jsonl", "tensorboard"], name="x", warmup_steps=0, interval_s=0.05)
        for place, _ in enumerate(perf.steps(range(10**9), samples=2)):
            spin(0.01)
            if place == 200:
                print("ready", flush=True)
        """
        process = child(body, tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        finished(process)
        for reader in ("jsonl", "tensorboard"):
            history = read_run(f"{reader}:{tmp_path / 'runs' / 'x'}")
            assert history.status is None
            assert history.series["perf/train_s"].step[-1] >= 150


class TestProcesses:
    """Forks, workers, and many processes at once."""

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child(self, tmp_path: Path) -> None:
        """A forked child writes nothing, holds no thread, and can use the run without harm."""
        sink = MemorySink()
        perf = trackperf.init(sink=["jsonl", sink], name="x", dir=tmp_path, warmup_steps=0)
        for _ in perf.steps(range(5), samples=1):
            pass
        pid = os.fork()
        if pid == 0:
            for _ in perf.steps(range(1000), samples=1):
                with perf.phase("eval"), perf.step(samples=1):
                    perf.observe("x", 1.0)
            perf.flush()
            perf.state_dict()
            perf.finish()
            os._exit(threading.active_count())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        perf.finish()
        history = read_run(f"jsonl:{tmp_path / 'x'}")
        assert history.summary is not None
        assert history.summary.steps == 5
        assert history.series["perf/train_s"].step.tolist() == [5]

    @pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
    def test_loader_workers_that_reach_the_run(self, tmp_path: Path, method: str, workers: int) -> None:
        """A dataset that refers to the run works in workers, which write nothing."""
        perf = trackperf.init(sink="tensorboard", name="x", dir=tmp_path, warmup_steps=0)
        loader = torch.utils.data.DataLoader(
            _Refers(perf), batch_size=2, num_workers=workers, multiprocessing_context=method
        )
        assert [batch.tolist() for batch in perf.steps(loader)] == [[0, 1], [2, 3], [4, 5]]
        perf.finish()
        assert perf.summary().steps == 3
        assert len(list((tmp_path / "x").glob("*tfevents*"))) == 1

    def test_a_copy_is_inert(self, tmp_path: Path) -> None:
        """A deep copy or a pickle does nothing: no thread, no file, no steps; the run keeps its own."""
        sink = MemorySink()
        perf = trackperf.init(sink=sink, dir=tmp_path, warmup_steps=0)
        threads = set(threading.enumerate())
        for clone in (copy.deepcopy(perf), pickle.loads(pickle.dumps(perf))):
            assert isinstance(clone, trackperf.Collector)
            assert list(clone.steps([1, 2])) == [1, 2]
            assert not clone.enabled
            clone.finish()
        assert set(threading.enumerate()) <= threads
        assert list(perf.steps([1, 2], samples=1)) == [1, 2]
        perf.finish()
        assert perf.summary().steps == 2

    def test_eight_processes_at_once(self, tmp_path: Path) -> None:
        """Eight jobs with the default name in one folder, with spaces and accents: eight whole runs."""
        folder = tmp_path / "läufe und runs"
        folder.mkdir()
        body = """
        while not os.path.exists("go"):
            time.sleep(0.001)
        perf = trackperf.init(warmup_steps=0, interval_s=0.001)
        for _ in perf.steps(range(20), samples=1):
            spin(0.002)
        perf.finish()
        """
        processes = [child(body, folder) for _ in range(8)]
        (folder / "go").touch()
        assert [finished(process)[0] for process in processes] == [0] * 8
        names = sorted(path.name for path in (folder / "runs").iterdir())
        assert len(names) == 8
        assert not any(set(name) & set('<>:"|?*') for name in names)
        for name in names:
            history = read_run(f"tensorboard:{folder / 'runs' / name}")
            assert history.series["perf/train_s"].step.tolist() == list(range(1, 21))

    def test_other_ranks_write_nothing(self, tmp_path: Path) -> None:
        """Of four ranks one writes one run with each point once; the others end at once, with their state."""
        body = """
        perf = trackperf.init(name="x", warmup_steps=0, interval_s=0.001)
        for _ in perf.steps(range(20), samples=1):
            spin(0.002)
        print(perf.state_dict()["steps"])
        """
        processes = [child(body, tmp_path, RANK=str(rank), WORLD_SIZE="4") for rank in range(4)]
        assert [finished(process)[:2] for process in processes] == [(0, "20\n")] * 4
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x"]
        assert len(list((tmp_path / "runs" / "x").glob("*tfevents*"))) == 1
        history = read_run(f"tensorboard:{tmp_path / 'runs' / 'x'}")
        assert history.series["perf/train_s"].step.tolist() == list(range(1, 21))


class TestManyRuns:
    """Runs in one process, one after the other and at once."""

    def test_started_twice(self, tmp_path: Path) -> None:
        """A second `init` while the first run is open is a second run: no error, and no crossed points."""
        sinks = [MemorySink(), MemorySink()]
        first, second = (trackperf.init(sink=sink, dir=tmp_path, name="x", warmup_steps=0) for sink in sinks)
        for _ in first.steps(range(3), samples=1):
            list(second.steps(range(2), samples=1))
        second.finish()
        first.finish()
        assert [sink.summary.steps for sink in sinks if sink.summary is not None] == [3, 6]
        assert {first.name, second.name} == {"x", "x-2"}

    def test_a_forgotten_run_ends(self, tmp_path: Path) -> None:
        """A run that nothing refers to any more, as after running a notebook cell again, is finished."""
        sink = MemorySink()
        perf = trackperf.init(sink=sink, dir=tmp_path, warmup_steps=0)
        list(perf.steps(range(3), samples=1))
        del perf
        gc.collect()
        assert sink.status is trackperf.Status.FINISHED
        assert sink.summary is not None
        assert sink.summary.steps == 3

    def test_a_loop_keeps_its_run(self, tmp_path: Path) -> None:
        """A run that only its own loop refers to lives as long as the loop."""
        sink = MemorySink()
        for _ in trackperf.init(sink=sink, dir=tmp_path, warmup_steps=0).steps(range(3), samples=1):
            gc.collect()
            assert sink.status is None
        gc.collect()
        assert sink.summary is not None
        assert sink.summary.steps == 3

    def test_no_leaks(self, tmp_path: Path) -> None:
        """60 runs leave no thread and no open file behind."""
        process = psutil.Process()

        def one() -> None:
            perf = trackperf.init(sink=["tensorboard", "jsonl"], dir=tmp_path, warmup_steps=0)
            list(perf.steps(range(2), samples=1))
            perf.finish()

        one()
        threads, files = process.num_threads(), process.num_fds()
        for _ in range(60):
            one()
        assert process.num_threads() <= threads + 1
        assert process.num_fds() <= files + 1

    def test_with(self, tmp_path: Path) -> None:
        """`with` ends the run: as finished, failed after an exception, killed after an interrupt."""
        for error, status in (
            (None, trackperf.Status.FINISHED),
            (SystemExit(0), trackperf.Status.FINISHED),
            (SystemExit(3), trackperf.Status.FAILED),
            (ValueError(), trackperf.Status.FAILED),
            (KeyboardInterrupt(), trackperf.Status.KILLED),
        ):
            sink = MemorySink()
            try:
                with trackperf.init(sink=sink, dir=tmp_path, warmup_steps=0) as perf:
                    list(perf.steps(range(2), samples=1))
                    if error is not None:
                        raise error
            except BaseException as caught:
                assert caught is error
            assert sink.status is status


class TestTrouble:
    """What cannot be written costs a warning, never the training."""

    def test_an_unwritable_folder(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A folder below a regular file: training and the other sink go on, one warning a cause names it."""
        (tmp_path / "file").write_text("in the way")
        sink = MemorySink()
        perf = trackperf.init(
            sink=["tensorboard", sink], dir=tmp_path / "file" / "runs", warmup_steps=0, interval_s=0.001
        )
        for _ in perf.steps(range(50), samples=1):
            time.perf_counter_ns()
        perf.finish()
        assert sink.summary is not None
        assert sink.summary.steps == 50
        assert sink.summary.dropped.get("points/memory") is None
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert any(str(tmp_path / "file") in text for text in warnings)
        assert len(warnings) <= 3

    def test_on_alert_raises(self, tmp_path: Path) -> None:
        """A callback that raises does not reach the training or the sinks."""
        sink = MemorySink()

        def broken(_alert: Any) -> None:
            raise RuntimeError("the user's own")

        perf = trackperf.init(
            sink=sink,
            dir=tmp_path,
            warmup_steps=0,
            interval_s=0.02,
            on_alert=broken,
            alerts={"loader_latency": {"windows": 1, "min_steps": 1}},
        )
        until = time.perf_counter() + 3

        def slow() -> Any:
            while time.perf_counter() < until:
                time.sleep(0.02)
                yield 1

        list(perf.steps(slow(), samples=1))
        perf.finish()
        assert [alert.rule for alert in sink.alerts] == ["loader_latency"]
        assert sink.status is trackperf.Status.FINISHED


class _Refers(torch.utils.data.Dataset[int]):
    """A dataset that holds the run and uses it in the worker."""

    def __init__(self, perf: trackperf.Collector) -> None:
        self.perf = perf

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        with self.perf.phase("decode"):
            json.dumps({"index": index})
        return index
