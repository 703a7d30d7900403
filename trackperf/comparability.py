"""What two runs have in common, what differs between them, and what is wrong with either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trackperf.figures import Figures, figures
from trackperf.text import count, duration, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackperf.history import RunHistory

__all__ = ["Pair", "Side", "differences", "notes", "pair_of"]

_MOST: Final = 20
"""Differing settings of one kind that are listed before the rest is counted."""

_BATCH_TOLERANCE: Final = 0.01
_WORK_TOLERANCE: Final = 0.005
_FEW_WINDOWS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One of the two runs."""

    label: str
    """What sentences call it."""

    history: RunHistory
    figures: Figures

    @property
    def goal(self) -> str | None:
        """The goal that the run was given, where it is stored."""
        info = self.history.info
        places = (info.environment, info.tags, info.config) if info else ()
        found = (place.get("goal") for place in places)
        return next((goal for goal in found if isinstance(goal, str) and goal), None)

    @property
    def flaws(self) -> tuple[str, ...]:
        """Words for what makes its numbers doubtful: `damaged`, `unfinished`."""
        damaged = ("damaged",) if self.history.problems else ()
        return damaged if self.history.summary is not None else (*damaged, "unfinished")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Two runs, and in what they can be compared."""

    a: Side
    b: Side
    same_batch: bool | None
    """Whether a step is the same number of samples; None where one does not say."""

    same_work: bool
    """Whether both are known to have done the same number of samples, or of equal steps."""

    same_tokens: bool
    """Whether nothing says that a token is another thing in one than in the other."""

    same_goal: bool
    """Whether nothing says that their goals differ."""


def pair_of(one: RunHistory, other: RunHistory) -> Pair:
    """Return two runs as a pair."""
    named = one.name != other.name
    a = Side(label=one.name if named else "run A", history=one, figures=figures(one))
    b = Side(label=other.name if named else "run B", history=other, figures=figures(other))
    batch = (a.figures.samples_per_step, b.figures.samples_per_step)
    same_batch = None if None in batch else _near(*batch, _BATCH_TOLERANCE)
    work = (a.figures.samples, b.figures.samples)
    if None in work and same_batch is not False:
        work = (a.figures.steps, b.figures.steps)
    settings = (*_changed(one, other, "environment"), *_changed(one, other, "loader"))
    return Pair(
        a=a,
        b=b,
        same_batch=same_batch,
        same_work=_near(*work, _WORK_TOLERANCE),
        same_tokens=not any("token" in name for name, _, _ in settings),
        same_goal=a.goal is None or b.goal is None or a.goal == b.goal,
    )


def differences(pair: Pair) -> tuple[str, ...]:
    """Return what differs in place, size and settings, a phrase each."""
    one, other = pair.a.history, pair.b.history
    found: list[str] = []
    if pair.same_batch is False:
        sizes = (pair.a.figures.samples_per_step, pair.b.figures.samples_per_step)
        found.append(
            _against("samples per step", *(None if size is None else number(size) for size in sizes))
        )
    if one.info is not None and other.info is not None:
        if one.info.world_size != other.info.world_size:
            found.append(_against("training processes", one.info.world_size, other.info.world_size))
        for kind in ("environment", "loader", "tags", "config"):
            changed = [_against(*change) for change in _changed(one, other, kind)]
            found += changed[:_MOST]
            if len(changed) > _MOST:
                found.append(f"and {len(changed) - _MOST} more of {kind}")
    return tuple(found)


def notes(pair: Pair) -> tuple[str, ...]:
    """Return what a reader of the numbers must know about the two runs, a sentence each."""
    found = [*_notes_of(pair.a), *_notes_of(pair.b)]
    if pair.a.history.source == pair.b.history.source:
        found.insert(0, f"Both are the same run: {pair.a.history.source}.")
    if not pair.same_goal:
        found.append(f"The goals differ: {pair.a.goal!r} against {pair.b.goal!r}.")
    return tuple(found)


def _notes_of(side: Side) -> Iterator[str]:
    history, label = side.history, side.label
    yield from (f"{label}: {problem}" for problem in history.problems)
    if history.info is None:
        yield f"{label} was not written by trackperf: what it ran on is not known."
    if history.summary is None:
        yield f"{label} did not come to its end, or still runs: its medians are taken from its points."
    elif history.status is not None and history.status.value != "finished":
        yield f"{label} ended as {history.status.value}."
    if history.summary is not None and (lost := sum(history.summary.dropped.values())):
        yield f"{label} lost {count(lost)} points or values while it was written."
    if history.redone_steps:
        yield (
            f"{label} did {count(history.redone_steps)} steps twice after a resume; the "
            f"{duration(history.redone_s)} of the first time are not part of its training time."
        )
    if 0 < side.figures.windows < _FEW_WINDOWS:
        yield f"{label} has few steady windows ({side.figures.windows}): its medians are rough."


def _changed(one: RunHistory, other: RunHistory, kind: str) -> list[tuple[str, Any, Any]]:
    if one.info is None or other.info is None:
        return []
    left: Mapping[str, Any] = getattr(one.info, kind)
    right: Mapping[str, Any] = getattr(other.info, kind)
    names = sorted({*left, *right}, key=str)
    return [
        (str(name), left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)
    ]


def _against(name: str, a: Any, b: Any) -> str:
    return f"{name}: {'absent' if a is None else a} against {'absent' if b is None else b}"


def _near(a: float | None, b: float | None, tolerance: float) -> bool:
    return a is not None and b is not None and abs(a - b) <= tolerance * max(abs(a), abs(b))
