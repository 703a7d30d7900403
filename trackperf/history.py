"""A run read back from where it was written, and the boundary to whoever reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trackperf.record import Alert, RunInfo, RunSummary, Status

__all__ = ["Reader", "RunHistory", "Series"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """All points of one series: three arrays of equal length, steps rising strictly."""

    step: NDArray[np.int64]
    """Finished steps, shape (n,)."""

    wall_time: NDArray[np.float64]
    """Seconds since the epoch, shape (n,)."""

    value: NDArray[np.float64]
    """Values in the unit of the series, shape (n,)."""

    def __len__(self) -> int:
        """Return the number of points."""
        return int(self.step.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunHistory:
    """
    A run as it stands in a tracker's store: every point, never a sample.

    Where a run was resumed from an earlier step, the later values stand, each step once;
    what they replaced is counted in `redone_steps` and `redone_s`.
    """

    name: str
    """Name of the run."""

    source: str
    """Address that it was read from."""

    series: Mapping[str, Series]
    """Series by key, as written."""

    alerts: tuple[Alert, ...] = ()
    """Alerts, in order."""

    info: RunInfo | None = None
    """What the run is; None when trackperf did not write it."""

    summary: RunSummary | None = None
    """The summary as written at the run's end; None when it did not come to its end."""

    status: Status | None = None
    """How it ended; None when it did not end, or is still running."""

    problems: tuple[str, ...] = ()
    """What is wrong with the stored data (cut, damaged, ...), a sentence each; empty when sound."""

    redone_steps: int = 0
    """Steps that were done, lost and done again after a resume."""

    redone_s: float = 0.0
    """Training seconds that those steps took the first time; not part of `perf/train_s`."""


@runtime_checkable
class Reader(Protocol):
    """One kind of store that runs are read back from."""

    name: str
    """Short name: the same as the sink's that writes the store."""

    def find(self, address: str) -> Sequence[str]:
        """
        Return the addresses of all runs at or below an address, in order of name.

        Returns an empty sequence when nothing there is this reader's.
        """
        ...

    def read(self, address: str) -> RunHistory:
        """
        Read one run.

        Raises:
            ReadError: nothing is there, or it cannot be read at all. What can be read in part is
                returned, with the rest told in `RunHistory.problems`.
        """
        ...
