"""What the training script holds: it marks, and hands everything else to the reporter."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trackperf.batches import sample_counter, token_counter, token_definition
from trackperf.devices.accelerator import device_timeline
from trackperf.loaders import describe
from trackperf.names import safe_key
from trackperf.record import Alert, RunSummary, Status
from trackperf.timing.marks import Marks
from trackperf.timing.phases import NULL, Step, data_span, phase_span, transfer_span
from trackperf.timing.steps import Plan, Steps
from trackperf.timing.windows import Totals
from trackperf.transfer import mover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

    from trackperf.reporter import Reporter
    from trackperf.run import Run
    from trackperf.timing.device import DeviceTimeline

__all__ = ["Collector"]

T = TypeVar("T")

_log: Final = logging.getLogger("trackperf")
_STATE_VERSION: Final = 1
_OWN_PHASES: Final = frozenset({"startup", "warmup", "other", "wall", "productive", "eta", "to_goal"})
"""Phases and keys of `perf_time/` that trackperf fills itself."""


class Collector:
    """
    The performance of one training run; made by `trackperf.init`.

    Use it from the training thread. No method raises, whatever goes wrong with measuring or writing; what a
    loader, a batch or the body of a `with` raises passes through untouched. Pickled or copied, it becomes one
    that does nothing.
    """

    def __init__(self, run: Run | None) -> None:
        """
        Args:
            run: the run with its reporter; None for a collector that does nothing.
        """
        self._run = run
        self._reporter: Reporter | None = run.reporter if run is not None else None
        self._marks = self._reporter.marks if self._reporter is not None else _closed_marks()
        self._phases: dict[str, AbstractContextManager[None]] = {}
        self._data: AbstractContextManager[None] = NULL
        self._transfer: AbstractContextManager[None] = NULL
        self._find = device_timeline
        self._warned: set[str] = set()
        self._batches = 1
        if self._reporter is not None:
            self._data, self._transfer = data_span(self._marks), transfer_span(self._marks)
            found = weakref.WeakMethod(self._find_device)
            self._marks.find_device = lambda: (found() or _nothing)()  # noqa: PLW0108 - asked anew each time
            self._end = weakref.finalize(self, self._reporter.finish, Status.FINISHED)
            self._end.atexit = False

    @property
    def name(self) -> str | None:
        """Name of the run; None when it is off."""
        return self._run.name if self._run is not None else None

    @property
    def enabled(self) -> bool:
        """Whether the run measures: it is on, and not finished."""
        return not self._marks.closed

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Alerts so far, raised and cleared, in order."""
        return self._reporter.alerts if self._reporter is not None else ()

    def steps(
        self,
        loader: Iterable[T],
        samples: int | Callable[[T], int] | None = None,
        tokens: int | str | Callable[[T], int] | None = None,
        accumulate: int = 1,
        device: Any = None,
    ) -> Iterable[T]:
        """
        Return `loader` so that each pass of a `for` over it is a step.

        The batches are the loader's own, unchanged. Wrap what a framework's `prepare()` returned, not what
        is handed to the framework. A body left by `break` counts as a step.

        Args:
            loader: anything that can be iterated over; its length and attributes stay reachable.

            samples: samples in a batch: a number, or a function of the batch; inferred when None. Unknown
                means one warning and no rate.

            tokens: tokens in a batch: a number, a function of the batch, the name of the batch's mask
                (`"attention_mask"`: entries that are not zero), or `"padded"` (all of `input_ids`).

            accumulate: batches to an optimizer step. A pass that ends before ends its last step too.

            device: where to move each batch, nested containers included, without waiting for the copy.
        """
        move = mover(device, self._warn) if device is not None else None
        if self._marks.closed and move is None:
            return loader
        if self._reporter is not None and self._run is not None and not self._marks.closed:
            if self._reporter.loader is None:
                self._reporter.loader = describe(loader)
            self._run.tokens_are = self._run.tokens_are or token_definition(tokens)
        self._batches = self._batches_a_step(accumulate)
        plan = Plan(
            marks=self._marks,
            samples=sample_counter(samples, self._warn),
            tokens=token_counter(tokens, self._warn) if tokens is not None else None,
            move=move,
            accumulate=self._batches,
            keep=self,
        )
        return Steps(loader, plan)

    def step(self, samples: int | None = None, tokens: int | None = None) -> AbstractContextManager[Any]:
        """
        Return a context manager whose body is one step, for loops without a loader.

        A body that raises is no step. Inside a loop over `steps`, these are the steps, and the loop gives its
        waits to them.

        Args:
            samples: samples of the step; None when unknown.

            tokens: tokens of the step; None when not counted.
        """
        if self._marks.closed:
            return NULL
        return Step(self._marks, self._count("samples", samples), self._count("tokens", tokens))

    def data(self) -> AbstractContextManager[None]:
        """
        Return a context manager around fetching a batch, anywhere.

        In the middle of a step it is a wait of that step; before a `step`, of the one that follows.
        """
        return NULL if self._marks.closed else self._data

    def transfer(self) -> AbstractContextManager[None]:
        """Return a context manager around a copy from host to device."""
        return NULL if self._marks.closed else self._transfer

    def count_flops(self) -> AbstractContextManager[None]:
        """
        Return a context manager around the forward pass, the backward pass and the update of a step.

        The first step that it stands around is counted by torch's own formulas, and the kind of number that
        it multiplies is noted: they give `perf/mfu_pct` where `init(flops_per_step=, flops_dtype=)` do not.
        With `accumulate=` it is the first so many bodies. Later ones cost next to nothing.

        The counted step takes longer than others, and what is compiled runs uncompiled in it, which may take
        more memory; in a job of several ranks, every rank counts. What activation checkpointing repeats is
        left out. Where an operation computed that torch has no formula for, there is no count: it is named.
        """
        marks, reporter = self._marks, self._reporter
        if marks.closed or marks.in_phase or reporter is None or not reporter.flops.wants_count:
            return NULL
        if marks.owner is None:
            self._warn(
                "count_flops() stands in the loop over steps(), or in a step(): nothing is counted here"
            )
            return NULL
        return reporter.flops.count(self._batches)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """
        Return a context manager around what is not training, such as `eval` or `checkpoint`.

        Its time is taken out of the step it lies in and written as `perf_time/<name>_s`; loops in it make no
        steps. Phases may be nested: each second belongs to the innermost. `train` changes nothing.
        """
        try:
            return self._phases[name]
        except KeyError:
            return self._new_phase(name)

    def observe(self, name: str, value: float) -> None:
        """
        Write a value of your own at the current step, such as an accuracy, and judge the goal by it.

        Args:
            name: any text; in the tracker it stands under `perf_observed/`.

            value: a finite number on the host: a float, a NumPy scalar, a CPU tensor of one element.
        """
        if self._reporter is not None and not self._marks.closed:
            self._reporter.observations.add(str(name), value, self._marks.clock())

    def state_dict(self) -> dict[str, Any]:
        """
        Return what the run needs to go on in another process: for your checkpoint, saved after the update.

        Plain dictionaries, texts and numbers; empty when the run is off.
        """
        if self._reporter is None or self._run is None:
            return {}
        try:
            totals = self._reporter.totals_now()
        except Exception:  # noqa: BLE001 - nothing of ours ends a training
            _log.exception("trackperf: the run's state could not be taken")
            return {}
        return {
            "version": _STATE_VERSION,
            "run_id": self._run.run_id,
            "name": self._run.name,
            "steps": totals.steps,
            "samples": totals.samples,
            "tokens": totals.tokens,
            "phase_ns": dict(totals.phase_ns),
            "goal": self._reporter.observations.reached,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Go on with the run that `state` was taken from: its steps, its times, and its place in the tracker.

        Comes before the first step. A run that `init` was given another name for stays a run of its own, and
        goes on counting from there. A state that is not one of ours is left alone, with a warning.
        """
        if self._reporter is None or self._run is None or self._marks.closed or state == {}:
            return
        try:
            base, reached, run_id, name = _read_state(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._warn(
                f"load_state_dict() takes what state_dict() returned (got {type(state).__name__}: {error!r})"
            )
            return
        if self._reporter.resume(base, reached=reached):
            self._run.rejoin(run_id, name)
        else:
            self._warn("load_state_dict() comes before the first step: left alone")

    def summary(self) -> RunSummary:
        """Return the run so far, over its steady windows; empty when the run is off."""
        if self._reporter is None:
            return RunSummary(steps=0, samples=None)
        return self._reporter.summary()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """
        Hand over the steps so far and wait until every sink has them; return whether they all have.

        Not needed for anything but looking: the run's end does it too.
        """
        return self._reporter is None or self._reporter.flush(timeout_s)

    def finish(self) -> None:
        """
        End the run: write what is left and close the sinks, within five seconds.

        Called at the process's end where it was not called before; a second call does nothing.
        """
        self._finish(Status.FINISHED)

    def __enter__(self) -> Self:
        """Return the run: leaving the `with` ends it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run: as failed after an exception, as killed after an interrupt."""
        if kind is None or (isinstance(error, SystemExit) and not error.code):
            self._finish(Status.FINISHED)
        else:
            self._finish(Status.KILLED if issubclass(kind, KeyboardInterrupt) else Status.FAILED)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles do nothing: threads and files cannot travel, and loader workers need none."""
        return (Collector, (None,))

    def __repr__(self) -> str:
        """Return the run's name and whether it measures."""
        state = "off" if self._reporter is None else "on" if self.enabled else "finished"
        return f"<trackperf.Collector {self.name!r} ({state})>"

    def _finish(self, status: Status) -> None:
        if self._reporter is not None:
            self._end.detach()
            self._reporter.finish(status, count_open=status is Status.FINISHED)

    def _new_phase(self, name: str) -> AbstractContextManager[None]:
        key = safe_key(str(name)).replace("/", "_")
        if key == "train" or self._marks.closed:
            made: AbstractContextManager[None] = NULL
        elif key in _OWN_PHASES:
            self._warn(f"phase({name!r}): trackperf fills {name!r} itself; choose another name. Not counted")
            made = NULL
        else:
            made = phase_span(self._marks, key)
        self._phases[name] = made
        return made

    def _find_device(self) -> DeviceTimeline | None:
        """Look whether the training uses a device by now, and time its phases and fetches as well then."""
        if self._marks.closed:
            return None
        self._marks.device = timeline = self._find(self._marks)
        if timeline is not None:
            self._phases.clear()
            self._data, self._transfer = data_span(self._marks), transfer_span(self._marks)
        return timeline

    def _batches_a_step(self, accumulate: Any) -> int:
        if isinstance(accumulate, int) and not isinstance(accumulate, bool) and accumulate >= 1:
            return accumulate
        self._warn(f"steps(accumulate=...) takes a whole number, 1 or more (got {accumulate!r}): using 1")
        return 1

    def _count(self, what: str, value: Any) -> int:
        if value is None:
            return -1
        try:
            if not isinstance(value, bool) and value >= 0 and int(value) == value:
                return int(value)
        except Exception:  # noqa: BLE001, S110 - the user's own object; told below
            pass
        self._warn(f"step({what}=...) takes a whole number, 0 or more (got {value!r}): not counted")
        return -1

    def _warn(self, message: str) -> None:
        """Say something once."""
        if message not in self._warned and len(self._warned) < 1000:
            self._warned.add(message)
            _log.warning("trackperf: %s", message)


def _nothing() -> None:
    return None


def _closed_marks() -> Marks:
    marks = Marks()
    marks.close()
    return marks


def _read_state(state: Mapping[str, Any]) -> tuple[Totals, tuple[int, float] | None, str, str]:
    if state["version"] != _STATE_VERSION:
        raise ValueError(f"version {state['version']!r}, this trackperf knows {_STATE_VERSION}")
    base = Totals(
        steps=int(state["steps"]),
        samples=None if state["samples"] is None else int(state["samples"]),
        tokens=None if state["tokens"] is None else int(state["tokens"]),
        phase_ns={str(name): int(ns) for name, ns in state["phase_ns"].items()},
    )
    goal = state["goal"]
    reached = (int(goal[0]), float(goal[1])) if goal is not None else None
    return base, reached, str(state["run_id"]), str(state["name"])
