"""What a sink must take, one case after the other; the public name is `trackperf.testing.check_sink`."""

from __future__ import annotations

import math
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trackperf.record import Alert, Point, RunInfo, RunSummary, Stat, Status
from trackperf.registry import faults_of_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.history import RunHistory
    from trackperf.sink import Sink

__all__ = ["check_sink"]

_START: Final = 1_700_000_000.0
_ODD_KEYS: Final = ("perf_time/phase_2_s", "val/accuracy", "loss", "a/b/c", "_x", "0", "k" * 200)


def check_sink(
    factory: Callable[[], Sink],
    *,
    read: Callable[[RunInfo], RunHistory] | None = None,
    timeout_s: float = 60.0,
) -> None:
    """
    Put a sink through what trackperf may do with it, on a thread as trackperf does.

    Args:
        factory: builds a new sink; each case uses one of its own. Local files belong below
            `run.dir`, which is a temporary folder.

        read: returns the run as it was stored, given what the sink was opened with; when given, what was
            written is compared with what is read, to the precision of a 32-bit float. Series below
            `perf_summary/` may be added: some stores compare runs by nothing else.

        timeout_s: limit for each case.

    Raises:
        AssertionError: with what the contract asks and what the sink did.
    """
    sink = factory()
    name = str(getattr(sink, "name", sink))
    faults = faults_of_sink(sink)
    _require(not faults, name, "keep to the signatures of trackperf.sink.Sink", "; ".join(faults))
    for case in _CASES:
        with tempfile.TemporaryDirectory(prefix="trackperf-check-") as folder:
            _Kit(factory, name, Path(folder), read).on_a_thread(case, timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """One process's part of a run."""

    info: RunInfo
    points: Sequence[Point] = ()
    alerts: Sequence[Alert] = ()
    status: Status = Status.FINISHED
    batch: int = 7


class _Kit:
    """One case's folder and tools."""

    def __init__(
        self,
        factory: Callable[[], Sink],
        name: str,
        folder: Path,
        read: Callable[[RunInfo], RunHistory] | None,
    ) -> None:
        self.factory = factory
        self._name = name
        self._folder = folder
        self._read = read

    def on_a_thread(self, case: Callable[[_Kit], None], timeout_s: float) -> None:
        raised: list[BaseException] = []

        def work() -> None:
            try:
                case(self)
            except BaseException as error:  # noqa: BLE001 - raised again where the test sees it
                raised.append(error)

        before = set(threading.enumerate())
        thread = threading.Thread(target=work, name="trackperf-check", daemon=True)
        thread.start()
        thread.join(timeout_s)
        asked = (case.__doc__ or "").strip().rstrip(".")
        self._require(not thread.is_alive(), asked, f"it did not come back within {timeout_s:g} s")
        if raised:
            raise raised[0]
        left = [left.name for left in set(threading.enumerate()) - before if not left.daemon]
        self._require(not left, "leave no thread that keeps the process alive", f"these run on: {left}")

    def info(self, name: str = "digits-1", resume_step: int | None = None) -> RunInfo:
        return RunInfo(
            run_id=uuid.uuid5(uuid.NAMESPACE_URL, name).hex,
            name=name,
            dir=str(self._folder),
            started_at=_START,
            resume_step=resume_step,
            config={"lr": 3e-4, "betas": (0.9, 0.999), "nested": {"on": True, "none": None}, "odd": math.inf},
            tags={"team": "vision", "note": "größer | *schneller*"},
            environment={"host": "node-1", "cpus": 8, "gpu": False, "load": 0.5},
            loader={"batch_size": 64, "num_workers": 4, "pin_memory": False},
            absent={"perf/gpu_util_pct": "no NVIDIA driver on this machine"},
            names={"val/accuracy": "val/Accuracy (%)"},
        )

    def run(self, script: _Script) -> None:
        """Let a new sink record a run from end to end."""
        sink, points = self.factory(), script.points
        self.call(sink, "open", script.info)
        for first in range(0, len(points), script.batch):
            self.call(sink, "write", list(points[first : first + script.batch]))
        for alert in script.alerts:
            self.call(sink, "alert", alert)
        self.call(sink, "close", _summary(points, script.alerts), script.status)

    def call(self, sink: Sink, method: str, *arguments: object) -> None:
        try:
            getattr(sink, method)(*arguments)
        except BaseException as error:
            taken = ", ".join(map(_short, arguments))
            raise AssertionError(
                f"the sink {self._name!r} must take {method}({taken}), but it raised {error!r}"
            ) from error

    def compare(self, script: _Script) -> None:
        """Hold what is stored against what was written; does nothing without `read`."""
        if self._read is None:
            return
        history = self._read(script.info)
        wanted: dict[str, dict[int, float]] = {}
        for point in script.points:
            for key, value in point.values.items():
                wanted.setdefault(key, {})[point.step] = value
        missing = sorted(set(wanted) - set(history.series))
        self._require(not missing, "store every series", f"these are missing: {missing[:5]}")
        extra = sorted(
            key for key in set(history.series) - set(wanted) if not key.startswith("perf_summary/")
        )
        self._require(not extra, "store no series that was not written", f"it stored {extra[:5]}")
        for key, values in wanted.items():
            series = history.series[key]
            difference = _difference(series.step.tolist(), series.value.tolist(), values)
            self._require(not difference, f"store {key!r} as written", difference)
        rules = [(alert.rule, alert.state, alert.step) for alert in script.alerts]
        found = [(alert.rule, alert.state, alert.step) for alert in history.alerts]
        self._require(rules == found, f"store the alerts {rules}", f"it stored {found}")
        self._require(
            history.status == script.status,
            f"store the status {script.status}",
            f"it stored {history.status}",
        )

    def _require(self, held: bool, asked: str, happened: str) -> None:
        _require(held, self._name, asked, happened)


def _whole_run(kit: _Kit) -> None:
    """Take a run: open, points in batches, alerts, close."""
    script = _Script(info=kit.info(), points=_points(range(10, 510, 10)), alerts=_alerts())
    kit.run(script)
    kit.compare(script)


def _empty_write(kit: _Kit) -> None:
    """Take an empty batch."""
    sink, script = kit.factory(), _Script(info=kit.info())
    kit.call(sink, "open", script.info)
    kit.call(sink, "write", [])
    kit.call(sink, "close", _summary((), ()), script.status)
    kit.compare(script)


def _no_points(kit: _Kit) -> None:
    """Take a run that failed before its first point."""
    script = _Script(info=kit.info(), status=Status.FAILED)
    kit.run(script)
    kit.compare(script)


def _odd_keys(kit: _Kit) -> None:
    """Take every key of [a-z0-9_/], extreme values, and keys that come and go."""
    values = (0.0, -1.5, 1e-30, 1e30, 3.0, 0.1, 7.0)
    points = [
        Point(step=1, wall_time=_START, values=dict(zip(_ODD_KEYS, values, strict=True))),
        Point(step=2, wall_time=_START + 1, values={}),
        Point(step=2**40, wall_time=_START + 2, values={_ODD_KEYS[1]: 5.0}),
    ]
    script = _Script(info=kit.info(), points=points, status=Status.KILLED)
    kit.run(script)
    kit.compare(script)


def _resume(kit: _Kit) -> None:
    """Go on with a run after an earlier step, the later points standing."""
    first, second = _points(range(10, 160, 10)), _points(range(105, 205, 10), factor=2.0)
    kit.run(_Script(info=kit.info(), points=first, status=Status.KILLED))
    kit.run(_Script(info=kit.info(resume_step=100), points=second))
    kit.compare(_Script(info=kit.info(resume_step=100), points=[*first[:10], *second]))


def _many_points(kit: _Kit) -> None:
    """Take 10 000 points."""
    script = _Script(info=kit.info(), points=_points(range(1, 10_001)), batch=1000)
    kit.run(script)
    kit.compare(script)


def _second_run(kit: _Kit) -> None:
    """Take a second run in the same process, without touching the first."""
    scripts = [_Script(info=kit.info(name), points=_points(range(10, 60, 10))) for name in ("run-a", "run-b")]
    for script in scripts:
        kit.run(script)
    for script in scripts:
        kit.compare(script)


_CASES: Final = (_whole_run, _empty_write, _no_points, _odd_keys, _resume, _many_points, _second_run)


def _points(steps: Sequence[int], factor: float = 1.0) -> list[Point]:
    return [
        Point(
            step=step,
            wall_time=_START + step / 8,
            values={
                "perf/samples_per_s": factor * (300 + step % 7),
                "perf/step_ms": factor * 12.5,
                "perf/train_s": step / 8,
                "perf_alert/active": float(step % 2),
            },
        )
        for step in steps
    ]


def _alerts() -> tuple[Alert, Alert]:
    raised = Alert(
        rule="loader_latency", state="raised", level="warning", step=120, wall_time=_START + 15,
        value=42.0, threshold=10.0, cause="Waiting for data took 42 % of the time. <b>|*_",
        advice="Use 4 workers (now 0): `DataLoader(num_workers=4)`.",
    )  # fmt: skip
    cleared = Alert(
        rule="loader_latency", state="cleared", level="warning", step=400, wall_time=_START + 50,
        value=3.0, threshold=10.0, cause="Waiting for data took 3 % of the time.",
    )  # fmt: skip
    return raised, cleared


def _summary(points: Sequence[Point], alerts: Sequence[Alert]) -> RunSummary:
    steps = points[-1].step if points else 0
    stat = Stat(mean=303.0, p50=303.0, p95=306.0, n=len(points))
    return RunSummary(
        steps=steps,
        samples=steps * 64 if points else None,
        metrics={"perf/samples_per_s": stat} if points else {},
        phases={"startup": 1.0, "warmup": 1.25, "train": steps / 8, "other": 0.5},
        alerts=tuple(alert for alert in alerts if alert.state == "raised"),
        dropped={"points/other": 3},
    )


def _require(held: bool, name: str, asked: str, happened: str) -> None:
    if not held:
        raise AssertionError(f"the sink {name!r} must {asked[:1].lower()}{asked[1:]}, but {happened}")


def _short(argument: object) -> str:
    return f"{len(argument)} points" if isinstance(argument, list) else type(argument).__name__


def _difference(steps: list[int], got: list[float], wanted: dict[int, float]) -> str:
    """Return what is wrong with a stored series; empty when it is as written."""
    stored = dict(zip(steps, got, strict=True))
    if missing := [step for step in wanted if step not in stored]:
        return f"{len(missing)} of {len(wanted)} steps are missing, the first is {missing[0]}"
    if extra := [step for step in stored if step not in wanted]:
        return f"it stored {len(extra)} steps that should not be there, the first is {extra[0]}"
    if steps != sorted(set(steps)):
        return "its steps do not rise"
    for step, value in wanted.items():
        if not math.isclose(stored[step], value, rel_tol=1e-6, abs_tol=1e-37):
            return f"at step {step} it stored {stored[step]} for {value}"
    return ""
