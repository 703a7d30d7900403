"""The demo from start to end: two runs, the advice taken in between, and the verdict."""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text

import trackperf
from trackperf.demo.data import write_images
from trackperf.demo.training import BATCH, GOAL, LEARNING_RATE, make_loader, seconds_a_step, train
from trackperf.devices.host import allowed_cpus
from trackperf.doctor import tensorboard_line
from trackperf.place import reserve
from trackperf.registry import read_run
from trackperf.rendering import absent_lines, absent_of, comparison_table, console, verdict_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from torch import Tensor

    from trackperf import Alert, RunHistory
    from trackperf.demo.data import DigitImages

__all__ = ["show", "workers_for"]

_FIRST_RUN_S: Final = 18.0
_QUICK_S: Final = 11.0
"""Time for the warm-up and the three windows that the alert takes, and a little more."""

_LEAST_STEPS: Final = 60
_PATIENCE: Final = 3
"""The first run goes on for so many times its steps where the alert has not come yet."""

_USUAL_WORKERS: Final = 2
_DISTURBED: Final = 1.3


class _Demo:
    """What both runs share."""

    def __init__(self, folder: Path, images: DigitImages, validation: DigitImages, out: Console) -> None:
        import torch

        self.folder = folder
        self.images = images
        self.out = out
        pixels, labels = validation.plain()
        self.validation: tuple[Tensor, Tensor] = (torch.from_numpy(pixels), torch.from_numpy(labels))

    def run(self, name: str, *, workers: int, steps: int, most: int) -> RunHistory:
        """Train for `steps`, and on to `most` while there is no alert; return the run as it is read back."""
        self.out.print(Text.assemble((name, "bold"), f": {steps} steps with num_workers={workers}"))
        loader = make_loader(self.images, steps=most, workers=workers)
        perf = trackperf.init(
            name=name,
            dir=self.folder,
            config={
                "batch_size": BATCH,
                "steps": steps,
                "optimizer": "AdamW",
                "learning_rate": LEARNING_RATE,
            },
            tags={"model": "small-cnn", "data": "digits"},
            goal=GOAL,
            total_steps=steps,
            progress=True,
        )
        with perf:
            accuracy = train(
                perf, loader, self.validation, steps=steps, enough=lambda: _raised(perf.alerts) is not None
            )
        summary = perf.summary()
        reached = summary.to_goal_s
        goal = f"{GOAL} after {reached:.1f} s" if reached is not None else f"{GOAL} not reached"
        self.out.print(f"  {summary.train_s:.1f} s of training, accuracy {accuracy:.3f}, {goal}\n")
        return read_run(f"tensorboard:{self.folder / (perf.name or name)}")


def show(folder: Path, *, steps: int | None = None, quick: bool = False) -> None:
    """
    Run the demo and print it; see `trackperf.demo.run_demo`.

    Args:
        folder: where runs are.

        steps: steps of each run; measured for this machine when None.

        quick: a shorter first run.
    """
    import torch

    out = console()
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / reserve(folder, "demo")
    out.print(
        "A small network learns scikit-learn's handwritten digits on the CPU; a GPU is not used. They are "
        "JPEG files: decoding and augmenting them is the loader's work.\n"
    )
    # The other CPUs are for the loader's workers.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trackperf-demo-") as images, _live_warnings():
        train_set, validation = write_images(Path(images))
        if steps is None:
            wanted_s = _QUICK_S if quick else _FIRST_RUN_S
            least = max(_LEAST_STEPS, math.ceil(wanted_s / seconds_a_step(train_set)))
            most = _PATIENCE * least
        else:
            least = most = steps
        demo = _Demo(place, train_set, validation, out)
        starving = demo.run("starving", workers=0, steps=least, most=most)
        done = starving.summary.steps if starving.summary else least
        alert = _tell_alert(out, starving)
        workers = workers_for(starving, alert, cpus=allowed_cpus())
        fed = demo.run("fed", workers=workers, steps=done, most=done)
    _tell_result(out, starving, fed, place)


def workers_for(history: RunHistory, alert: Alert | None, *, cpus: float) -> int:
    """
    Return the number of workers that the alert's advice comes to, from the numbers that it was given for.

    A batch that costs B beside a step that takes C needs B / C of them, as far as there are CPUs.

    Args:
        history: a run without workers.

        alert: its alert; without one the run's medians are what counts.

        cpus: CPUs that this process may use.
    """
    step_ms, wait_ms = (_at(history, key, alert) for key in ("perf/step_ms", "perf/data_wait_ms"))
    if step_ms is None or wait_ms is None or not 0 < wait_ms < step_ms:
        return _USUAL_WORKERS
    return max(1, min(math.ceil(wait_ms / (step_ms - wait_ms) - 1e-9), math.floor(cpus)))


def _at(history: RunHistory, key: str, alert: Alert | None) -> float | None:
    """Return a value of the window that an alert was raised in, or else the run's median."""
    series = history.series.get(key)
    if alert is not None and series is not None:
        for step, value in zip(series.step, series.value, strict=True):
            if step == alert.step:
                return float(value)
    stat = history.summary.metrics.get(key) if history.summary else None
    return stat.p50 if stat is not None else None


def _tell_alert(out: Console, history: RunHistory) -> Alert | None:
    alert = _raised(history.alerts)
    if alert is None:
        text = Text("No alert: the run was too short for one, or this machine's loader keeps up.\n", "yellow")
        out.print(text)
        return None
    out.print(Text.assemble((f"Alert {alert.rule} at step {alert.step}: ", "bold yellow"), alert.cause))
    out.print(Text.assemble(("Advice: ", "bold"), alert.advice, "\n"))
    return alert


def _raised(alerts: Sequence[Alert]) -> Alert | None:
    """Return the alert that the demo is about, if it was raised."""
    mine = (alert for alert in alerts if alert.rule == "loader_latency" and alert.state == "raised")
    return next(mine, None)


def _tell_result(out: Console, starving: RunHistory, fed: RunHistory, folder: Path) -> None:
    comparison = trackperf.compare(starving, fed)
    out.print(comparison_table(comparison))
    missing = {row.key for row in comparison.rows if row.a is None and row.b is None}
    for line in absent_lines(absent_of(fed), missing):
        out.print(line)
    out.print()
    out.print(verdict_line(comparison))
    if comparison.verdict != "better":
        _tell_disturbance(out, starving, fed)
    out.print(Text.assemble("\nSee both runs:  ", (tensorboard_line(folder), "bold cyan")), soft_wrap=True)


def _tell_disturbance(out: Console, starving: RunHistory, fed: RunHistory) -> None:
    """Say so where the second run's own work, which is the same, took much longer than the first's."""
    before, after = (_work_ms(run) for run in (starving, fed))
    if before is not None and after is not None and after > _DISTURBED * before:
        text = (
            f"Computing a step took {after:.0f} ms in {fed.name} and {before:.0f} ms in {starving.name}, "
            "for the same work: other programs use these CPUs. Try again when they are done."
        )
        out.print(Text(text, "yellow"))


def _work_ms(history: RunHistory) -> float | None:
    """Return the time of a step beside waiting for data."""
    step_ms, wait_ms = (_at(history, key, None) for key in ("perf/step_ms", "perf/data_wait_ms"))
    return None if step_ms is None or wait_ms is None else step_ms - wait_ms


@contextlib.contextmanager
def _live_warnings() -> Iterator[None]:
    """Show trackperf's warnings below the progress line while it is being written."""
    logger, handler = logging.getLogger("trackperf"), _Warnings()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Warnings(logging.Handler):
    """Writes a line for a warning, apart from the progress line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._out = console(stderr=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; an alert by its beginning, as the demo tells the rest afterwards."""
        try:
            text = record.getMessage()
            if "loader_latency" in text:
                text = ": ".join(text.split(": ")[:2])
            before = "\n" if self._out.is_terminal else ""
            self._out.print(Text(f"{before}  {text}", "yellow"))
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)
