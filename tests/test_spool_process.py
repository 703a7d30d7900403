"""Spools of real processes that are killed, end, or run out of disk: made = stored + waiting + dropped."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest
from spool_parts import Tracker

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

WRITE = """
    from filetracker import FileTracker
    delivery = Delivery([FileTracker()])
    delivery.start()
    delivery.open(info({name!r}))
    (spooled,) = delivery._spooled
    while spooled._spool is None:
        time.sleep(0.001)
    print("go", flush=True)
    step = 0
    while True:
        step += 1
        delivery.write(point(step))
        if step % 10 == 0:
            time.sleep(0.001)
            print(spooled._spool.points, flush=True)
"""


@pytest.fixture
def tracker(tmp_path: Path) -> Tracker:
    """Give a tracker that is there."""
    tracker = Tracker(tmp_path)
    tracker.up()
    return tracker


def killed_after(
    child: subprocess.Popen[str], seconds: float, number: int = signal.SIGKILL
) -> tuple[str, str]:
    """Send a signal some time after the word `go`; return what the process had printed."""
    assert child.stdout is not None
    assert child.stdout.readline() == "go\n"
    with child:
        time.sleep(seconds)  # the moment is what is tested
        child.send_signal(number)
        return child.communicate(timeout=30)


@pytest.mark.parametrize("up", [True, False])
def test_killed_at_any_moment(tracker: Tracker, up: bool) -> None:
    """After `kill -9`, five times: what was on disk is there or waits, and `sync` brings each point once."""
    rng = random.Random(20 + up)
    tracker.up(up)
    kept = {}
    for name in (f"run-{number}" for number in range(5)):
        out, _ = killed_after(tracker.start(WRITE.format(name=name)), rng.uniform(0.0, 0.4))
        kept[name] = int((out.split() or ["0"])[-1])
        stored = tracker.steps(name)
        assert stored == list(range(1, len(stored) + 1))
        assert up or not stored
    tracker.up()
    done = tracker.command("sync")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, least in kept.items():
        notes, steps = tracker.notes(name), tracker.steps(name)
        # One batch may come twice: it was taken, and the process died before that was noted.
        fresh = list(dict.fromkeys(steps))
        assert fresh == list(range(1, len(fresh) + 1))
        assert len(fresh) >= least
        assert len(steps) - len(fresh) <= 1000
        assert (notes[-1]["close"], notes[-1]["steps"]) == ("killed", len(fresh))
    assert max(kept.values()) > 0
    assert tracker.spools() == []


def test_terminated(tracker: Tracker) -> None:
    """A real run under SIGTERM with a dead tracker ends within its limit, and all that it made waits."""
    tracker.up(up=False)
    body = """
        import trackperf
        from filetracker import FileTracker
        perf = trackperf.init(sink=FileTracker(), name="run", interval_s=0.01, warmup_steps=1)
        first = True
        for _ in perf.steps(range(10**9), samples=1):
            time.sleep(0.002)
            if first:
                print("go", flush=True)
                first = False
    """
    child = tracker.start(body)
    since = time.monotonic()
    _, errors = killed_after(child, 0.5, signal.SIGTERM)
    assert child.returncode == -signal.SIGTERM
    assert time.monotonic() - since < 9.0
    waits = re.search(r"(\d+) points wait", errors)
    assert waits, errors
    tracker.up()
    assert tracker.command("sync").returncode == 0
    (path,) = tracker.root.glob("*.jsonl")
    notes = tracker.notes(path.stem)
    assert sum("step" in note for note in notes) == int(waits[1])
    assert notes[-1]["close"] == "killed"
    assert notes[-1]["steps"] > 0


def test_an_exit_without_an_end(tracker: Tracker) -> None:
    """A script that never finishes its run, with a tracker that is there: all of it is there at once."""
    out = tracker.run("""
        import trackperf
        from filetracker import FileTracker
        perf = trackperf.init(sink=FileTracker(), name="run", interval_s=0.01, warmup_steps=1)
        for _ in perf.steps(range(100), samples=1):
            time.sleep(0.002)
        print(time.monotonic())
    """)
    assert (out.returncode, out.stderr) == (0, "")
    (path,) = tracker.root.glob("*.jsonl")
    assert tracker.notes(path.stem)[-1]["close"] == "finished"
    assert list((tracker.folder / "runs").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on the size of files")
@pytest.mark.parametrize("up", [True, False])
def test_a_full_disk(tracker: Tracker, up: bool) -> None:
    """Where files cannot grow, made = stored + waiting + dropped, and the writer is not held up."""
    tracker.up(up)
    out = tracker.run("""
        import resource, json
        from filetracker import FileTracker
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        delivery = Delivery([FileTracker()], max_bytes=100_000)
        delivery.start()
        delivery.open(info())
        since = time.monotonic()
        for step in range(1000):
            delivery.write(point(step))
        took = time.monotonic() - since
        delivery.close(SUMMARY, Status.FINISHED, 1.0)
        print(json.dumps([delivery.dropped_points, took]))
    """)
    assert out.returncode == 0, out.stderr
    dropped, took = map(float, re.findall(r"[\d.]+", out.stdout))
    stored = len(set(tracker.steps()))
    assert took < 1.0
    tracker.up()
    tracker.command("sync")
    waited = len(set(tracker.steps())) - stored
    assert stored + waited + dropped == 1000
    assert out.stderr.count("nothing can be kept on disk") <= 1 + up
    assert dropped > 0
    assert waited > 0 or up
