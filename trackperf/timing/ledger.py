"""What a run adds up to: steps, samples, tokens, and the seconds of each phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trackperf.timing.windows import Totals

if TYPE_CHECKING:
    from collections import deque

    from trackperf.timing.events import Segment

__all__ = ["Ledger", "added"]


class Ledger:
    """Sums of the run so far, earlier parts included, and where in its phases a moment stands."""

    def __init__(self, begin_ns: int) -> None:
        """
        Args:
            begin_ns: when the run began, on the clock of the marks.
        """
        self.begin_ns = begin_ns
        self.base = Totals()
        """Where an earlier part of the run ended."""
        self.steps = 0
        """Finished steps of this part."""
        self.samples: int | None = 0
        self.tokens: int | None = None
        self.first_ns: int | None = None
        """When the first step began; None before it."""
        self._busy = {"warmup": 0, "train": 0}
        self._phases: dict[str, int] = {}
        self._startup_phases = 0

    @property
    def train_ns(self) -> int:
        """Warm-up and training so far."""
        return self.base.train_ns + sum(self._busy.values())

    def resume(self, base: Totals) -> None:
        """Go on from where an earlier part of the run ended."""
        self.base, self.samples, self.tokens = base, base.samples, base.tokens

    def begin_steps(self, at_ns: int) -> None:
        """The first step begins: until here it was start-up."""
        if self.first_ns is None:
            self.first_ns = at_ns

    def count(
        self,
        phase: Literal["warmup", "train"],
        *,
        steps: int,
        samples: int | None,
        tokens: int | None,
        busy_ns: int,
    ) -> None:
        """Add steps that are finished."""
        if self.steps == 0 and self.base.steps == 0:
            self.tokens = 0
        self.steps += steps
        self.samples = added(self.samples, samples)
        self.tokens = added(self.tokens, tokens)
        self._busy[phase] += busy_ns

    def fold(self, segments: deque[Segment], until_ns: int | None) -> None:
        """Take in stretches of phases that end by `until_ns`: no moment asked about later lies before it."""
        while segments and (until_ns is None or segments[0].end <= until_ns):
            item = segments.popleft()
            self._phases[item.name] = self._phases.get(item.name, 0) + item.end - item.begin
            if self.first_ns is None or item.end <= self.first_ns:
                self._startup_phases += item.end - item.begin

    def totals(self, at_ns: int, segments: deque[Segment]) -> Totals:
        """
        Return the sums at a moment.

        Args:
            at_ns: the moment, not before the end of a window that closed earlier.

            segments: stretches of phases that were not folded in.
        """
        first = at_ns if self.first_ns is None else self.first_ns
        phases, startup_phases = dict(self._phases), self._startup_phases
        for item in segments:
            length = max(0, min(item.end, at_ns) - item.begin)
            phases[item.name] = phases.get(item.name, 0) + length
            if item.end <= first:
                startup_phases += length
        mine = {"startup": first - self.begin_ns - startup_phases, **self._busy, **phases}
        mine["other"] = at_ns - self.begin_ns - sum(mine.values())
        phase_ns = dict(self.base.phase_ns)
        for name, ns in mine.items():
            phase_ns[name] = phase_ns.get(name, 0) + ns
        return Totals(
            steps=self.base.steps + self.steps, samples=self.samples, tokens=self.tokens, phase_ns=phase_ns
        )


def added(a: int | None, b: int | None) -> int | None:
    """Return the sum, None where either is unknown."""
    return None if a is None or b is None else a + b
