"""Delivery in real processes that end, fork, or are interrupted."""

from __future__ import annotations

import json
import os

import pytest
from delivery_parts import run_child


class TestProcess:
    """Real processes that end, fork, or are interrupted."""

    def test_exit_without_close(self) -> None:
        """A script that never closes, with a sink that hangs, ends at once with status 0."""
        child, took = run_child("""
            sink = StallingSink()
            delivery = Delivery([sink, MemorySink()])
            delivery.start()
            delivery.open(INFO)
            delivery.write(point(1))
            sink.stalled.wait()
            print("go", flush=True)
        """)
        assert (child.returncode, child.stdout, child.stderr) == (0, "go\n", "")
        assert took < 2.0

    def test_exit_closes_within_the_limit(self) -> None:
        """A close from `atexit` under a hanging sink ends within the limit + 2 s, and says what was lost."""
        child, took = run_child("""
            sink, good = StallingSink(), MemorySink()
            delivery = Delivery([sink, good])
            delivery.start()
            delivery.open(INFO)
            atexit.register(lambda: print(len(good.points), good.status))
            atexit.register(delivery.close, SUMMARY, Status.FAILED, 1.0)
            for step in range(9):
                delivery.write(point(step))
            sink.stalled.wait()
            print("go", flush=True)
        """)
        assert (child.returncode, child.stdout) == (0, "go\n9 Status.FAILED\n")
        assert "9 points were not delivered: it did not come back from write within 1 s" in child.stderr
        assert took < 3.0

    def test_close_in_a_signal_handler_inside_any_call(self) -> None:
        """A handler that closes never deadlocks with the write, flush or close that it interrupted."""
        child, _ = run_child(
            """
            import random
            random.seed(7)
            print("go", flush=True)
            inside, outcomes = 0, set()
            for trial in range(300):
                good = MemorySink()
                delivery = Delivery([good], max_bytes=20_000)
                signals, closed = [], []
                def handler(number, frame):
                    global inside
                    signals.append(number)
                    if len(signals) < 4:
                        signal.setitimer(signal.ITIMER_REAL, 0.0003)
                    while frame:
                        inside += frame.f_code.co_filename.endswith(("fanout.py", "queue.py", "worker.py"))
                        frame = frame.f_back
                    delivery.close(SUMMARY, Status.KILLED, 20.0)
                    closed.append(number)
                signal.signal(signal.SIGALRM, handler)
                delivery.start()
                delivery.open(INFO)
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.002))
                step = 0
                while not closed:
                    step += 1
                    delivery.write(point(step))
                    if step % 16 == 0 and trial % 3 == 0:
                        delivery.flush(20.0)
                    if step % 64 == 0 and trial % 3 == 1:
                        delivery.close(SUMMARY, Status.FINISHED, 20.0)
                signals += [0] * 4
                signal.setitimer(signal.ITIMER_REAL, 0)
                delivery.write(point(step + 1))
                assert (good.calls[0], good.calls[-1], good.calls.count("close")) == ("open", "close", 1)
                assert len(good.points) + delivery.dropped_points == step + 1, (len(good.points), step)
                outcomes.add(good.status)
            print(inside > 300, len(outcomes))
            """,
            timeout=60.0,
        )
        assert (child.returncode, child.stdout) == (0, "go\nTrue 2\n"), child.stderr

    def test_handler_closes_under_a_hanging_sink(self) -> None:
        """A second signal inside the handler's close, under a hanging sink, still ends in time."""
        child, took = run_child("""
            sink = StallingSink()
            delivery = Delivery([sink])
            delivery.start()
            delivery.open(INFO)
            def handler(number, frame):
                delivery.close(SUMMARY, Status.KILLED, 1.0)
                os._exit(5)
            signal.signal(signal.SIGTERM, handler)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGTERM)).start()
            print("go", flush=True)
            step = 0
            while True:
                step += 1
                delivery.write(point(step))
        """)
        assert child.returncode == 5
        assert took < 4.0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is what is tested")
    def test_a_forked_child_does_nothing(self) -> None:
        """In a child forked amid deliveries methods do nothing and the queues are empty."""
        child, _ = run_child("""
            import json, warnings
            warnings.simplefilter("ignore")
            sink, good = StallingSink(), MemorySink()
            delivery = Delivery([sink, good])
            delivery.start()
            delivery.open(INFO)
            stop = threading.Event()
            def reporter():
                step = 0
                while not stop.is_set():
                    step += 1
                    delivery.write(point(step))
            thread = threading.Thread(target=reporter)
            thread.start()
            sink.stalled.wait()
            print("go", flush=True)
            codes = []
            for _ in range(30):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(10)
                    held = sum(len(worker._queue) for worker in delivery._workers)
                    before = len(good.points)
                    delivery.start(); delivery.open(INFO); delivery.write(point(1))
                    fine = delivery.flush(5.0)
                    delivery.close(SUMMARY, Status.FINISHED)
                    held += sum(len(worker._queue) for worker in delivery._workers)
                    same = len(good.points) == before and good.status is None
                    os._exit(0 if fine and same and not held and threading.active_count() == 1 else 1)
                codes.append(os.waitpid(pid, 0)[1])
            stop.set()
            thread.join()
            sink.release.set()
            delivery.close(SUMMARY, Status.FINISHED, 20.0)
            print(json.dumps([codes, good.calls[-1]]))
        """)
        codes, last = json.loads(child.stdout.splitlines()[-1])
        assert (codes, last) == ([0] * 30, "close"), child.stderr

    def test_importing_starts_nothing(self) -> None:
        """Importing registry and sinks starts no thread and loads no torch, tracker or numpy."""
        child, _ = run_child("""
            import trackperf.registry, trackperf.sinks.console, trackperf.sinks.jsonl
            heavy = {"torch", "tensorboard", "wandb", "mlflow", "pandas", "numpy", "rich"} & set(sys.modules)
            print(threading.active_count(), sorted(heavy))
        """)
        assert (child.stdout, child.stderr) == ("1 []\n", "")
