"""A run of our own: every point is a row, and the run ends with the status of the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trackperf.record import Status
from trackperf_wandb.rows import row_of

if TYPE_CHECKING:
    from trackperf.record import Point

__all__ = ["OwnRun"]

_EXIT_CODES: Final = {Status.FINISHED: 0, Status.FAILED: 1, Status.KILLED: 130}


class OwnRun:
    """A W&B run that trackperf began and ends."""

    def __init__(self, run: Any) -> None:
        self.run = run
        """The W&B run."""
        self.gone = False
        """Whether it takes no more."""

    def require_live(self) -> None:
        """Nobody else ends it."""

    def log(self, point: Point, extra: dict[str, Any]) -> int:
        """Write a point; return how many of its values could not be written."""
        row, dropped = row_of(point, joined=None)
        self.run.log({**row, **extra})
        return dropped

    def close(self, status: Status, notes: str) -> None:
        """End the run: within W&B's own limit for the upload, the rest of which stays in its file."""
        if notes and not self.run.notes:
            self.run.notes = notes
        self.run.finish(exit_code=_EXIT_CODES[status])
        self.gone = True
