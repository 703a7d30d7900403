"""The loop over a loader: hands out its batches untouched, and marks when each came and was done with."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from trackperf.timing.device import COPY
from trackperf.timing.marks import DATA, END, FETCHED, FIRST, PASS, TRANSFER, Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trackperf.timing.marks import Marks

__all__ = ["Plan", "Steps"]

T = TypeVar("T")

_PROBES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a loop counts: made once by `Collector.steps`."""

    marks: Marks
    samples: Callable[[Any], int]
    """Batch to its number of samples, -1 when unknown; never raises."""
    tokens: Callable[[Any], int] | None
    """Batch to its number of tokens, -1 when unknown; never raises."""
    move: Callable[[Any], Any] | None
    """Batch to the batch on the device."""
    accumulate: int
    """Batches a step."""
    keep: object = None
    """Kept alive for as long as the loop: the run must not end under it."""


class Steps(Generic[T]):
    """
    A loader whose passes are steps.

    Everything but iteration is the loader's own: length, attributes (reading, setting, deleting), truth,
    containment and indexing go to it.
    """

    __slots__ = ("__weakref__", "_trackperf_iterator", "_trackperf_loader", "_trackperf_plan")

    def __init__(self, loader: Iterable[T], plan: Plan | None) -> None:
        """
        Args:
            loader: anything that can be iterated over.

            plan: how to count; None to count nothing.
        """
        own = object.__setattr__
        own(self, "_trackperf_loader", loader)
        own(self, "_trackperf_plan", plan)
        own(self, "_trackperf_iterator", None)

    def __iter__(self) -> Iterator[T]:
        """Begin a pass over the loader."""
        loader, plan = self._trackperf_loader, self._trackperf_plan
        if plan is None:
            return iter(loader)
        marks = plan.marks
        if marks.closed or marks.in_phase:
            return iter(loader) if plan.move is None else map(plan.move, loader)
        owner = _Pass()
        iterator = _iterate(loader, plan, owner)
        owner.generator = weakref.ref(iterator)
        return iterator

    def __next__(self) -> T:
        """Return the next batch, where the loader itself is an iterator."""
        if not hasattr(self._trackperf_loader, "__next__"):
            raise TypeError(f"'{type(self._trackperf_loader).__name__}' object is not an iterator")
        if self._trackperf_iterator is None:
            object.__setattr__(self, "_trackperf_iterator", iter(self))
        return next(cast("Iterator[T]", self._trackperf_iterator))

    def __len__(self) -> int:
        """Return the loader's length."""
        return len(self._trackperf_loader)

    def __bool__(self) -> bool:
        """Return the loader's truth."""
        return bool(self._trackperf_loader)

    def __contains__(self, item: object) -> bool:
        """Return whether the loader contains `item`."""
        return item in self._trackperf_loader

    def __getitem__(self, index: Any) -> Any:
        """Return the loader's own item."""
        return self._trackperf_loader[index]

    def __getattr__(self, name: str) -> Any:
        """Return the loader's attribute."""
        if name.startswith("_trackperf_"):
            # Unpickling and copying ask before the slots are filled.
            raise AttributeError(name)
        return getattr(self._trackperf_loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set the loader's attribute."""
        setattr(self._trackperf_loader, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete the loader's attribute."""
        delattr(self._trackperf_loader, name)

    def __dir__(self) -> list[str]:
        """Return the loader's attributes."""
        return dir(self._trackperf_loader)

    def __repr__(self) -> str:
        """Return `steps(...)` around the loader."""
        return f"steps({self._trackperf_loader!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles count nothing: a thread or a file cannot travel, and need not."""
        return (Steps, (self._trackperf_loader, None))

    if TYPE_CHECKING:
        _trackperf_loader: Any
        _trackperf_plan: Plan | None
        _trackperf_iterator: Iterator[T] | None


class _Pass:
    """One pass over a loader, for as long as its bodies are the steps."""

    __slots__ = ("generator",)

    def __init__(self) -> None:
        self.generator: weakref.ref[Any] | None = None

    def open_batch(self) -> Batch | None:
        """
        Return the batch whose body runs now.

        Read from the suspended generator's own variables: asked a few times a run, where keeping a
        second copy would be paid in every step.
        """
        generator = self.generator() if self.generator is not None else None
        if not isinstance(generator, GeneratorType) or generator.gi_running:
            return None
        here = generator.gi_frame.f_locals if generator.gi_frame is not None else {}
        if not here.get("handed_out"):
            return None
        return Batch(
            fetch_ns=here["t0"],
            handed_ns=here["t1"],
            samples=here["samples"],
            tokens=here["tokens"],
            flags=here["flags"],
        )


def _iterate(loader: Iterable[T], plan: Plan, owner: _Pass) -> Iterator[T]:  # noqa: C901, PLR0912, PLR0915 - the hot path is one piece
    """
    Hand out batches and mark them.

    Where another loop or `step()` ran inside a body, its bodies are the steps: this pass then gives only
    its waits, from its next batch on.
    """
    marks = plan.marks
    clock, batches = marks.clock, marks.batches
    count, count_tokens, move, accumulate = plan.samples, plan.tokens, plan.move, plan.accumulate
    left, probe, outer, handed_out, tokens = accumulate, _PROBES, False, False, -1
    flags = FETCHED | FIRST | (accumulate == 1)
    hold: list[T] = []
    device = marks.device or marks.find_device()
    if device is not None:
        device.leave()
    marks.owner = owner
    t0 = clock()
    marks.events.extend((2 * PASS, t0))
    try:
        for batch in loader:
            t1 = clock()
            if device is not None:
                device.ready()
            if outer:
                marks.interval(DATA, t0, t1)
                t0 = t1
            samples = count(batch)
            if count_tokens is not None:
                tokens = count_tokens(batch)
            if probe:
                marks.cost_ns += clock() - t1
            if move is not None:
                if device is not None:
                    device.begin(COPY)
                begin = clock()
                batch = move(batch)  # noqa: PLW2901 - the batch as it was is not to be kept alive
                marks.interval(TRANSFER, begin, clock())
                if device is not None:
                    device.end(COPY)
            # Popped, so that the user's own name is the only one that keeps the batch alive.
            hold.append(batch)
            del batch
            handed_out = True
            yield hold.pop()
            t2 = clock()
            handed_out = False
            if marks.owner is owner:
                if device is not None:
                    device.done(t0)
                batches += (t0, t1, t2, samples, tokens, flags)
                outer = False
            else:
                outer = True
                marks.reclaim(owner)
            if accumulate == 1:
                flags = FETCHED | END
            else:
                left = left - 1 or accumulate
                flags = FETCHED | (left == 1)
            if t2 >= marks.wake_at or len(batches) >= marks.limit:
                marks.wake(t2)
                probe = _PROBES
                device = marks.device or marks.find_device()
                if device is not None:
                    device.melt()
            if probe:
                probe -= 1
                marks.cost_ns += clock() - t2
                marks.probes += 1
            t0 = t2
    except GeneratorExit:
        # The body ended in `break`, or the iterator was dropped: a body that ran is a step.
        if handed_out and marks.owner is owner:
            if device is not None:
                device.done(t0)
            batches += (t0, t1, clock(), samples, tokens, flags)
        raise
    finally:
        if marks.owner is owner:
            marks.owner = None
        if device is not None:
            device.leave()
        marks.events.extend((2 * PASS + 1, clock()))
