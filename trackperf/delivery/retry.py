"""
How long to wait for a tracker that is away.

Own lines where a library would do: those that are to be had draw their jitter from `random`'s global state,
and that belongs to the training, whose results must not depend on a tracker being there.
"""

from __future__ import annotations

import math
import random
from typing import Final

__all__ = ["Backoff"]

_FIRST_S: Final = 1.0
_MOST_S: Final = 60.0
_ASKED_MOST_S: Final = 3600.0


class Backoff:
    """Waits that double from a second to a minute, with jitter, so that many runs do not come at once."""

    most_s: Final = _MOST_S
    """The longest wait that a tracker does not ask for."""

    def __init__(self, rng: random.Random | None = None) -> None:
        """
        Args:
            rng: where jitter comes from; a generator of its own when None.
        """
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self.failures = 0
        """Failures since the last answer."""

    def next_s(self, asked_s: float | None = None) -> float:
        """
        Return how long to wait after one more failure.

        Args:
            asked_s: what the tracker asked for; it stands, within a second and an hour.
        """
        longest = min(_MOST_S, 2 * _FIRST_S * 2 ** min(self.failures, 10))
        self.failures += 1
        if asked_s is not None and math.isfinite(asked_s):
            return min(max(asked_s, _FIRST_S), _ASKED_MOST_S)
        return self._rng.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Begin with short waits again: the tracker answered, or there is little time left."""
        self.failures = 0
