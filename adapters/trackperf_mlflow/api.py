"""What the adapter asks of a tracking store, however it is reached, and what can go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trackperf.errors import TrackperfError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Api", "Deadlines", "History", "Measure", "RefusedError", "StoredRun"]


class RefusedError(TrackperfError):
    """MLflow answered, and does not take what it was asked to; the same will be refused again."""

    def __init__(self, message: str, *, code: str = "") -> None:
        """
        Args:
            message: what was asked and what came back.

            code: MLflow's own word for the error, such as `RESOURCE_DOES_NOT_EXIST`.
        """
        super().__init__(message)
        self.code = code


class Measure(NamedTuple):
    """One value of one series."""

    key: str
    value: float
    timestamp_ms: int
    step: int


class History(NamedTuple):
    """All values of one series, in order of their time."""

    step: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as MLflow has it."""

    run_id: str
    experiment_id: str
    name: str
    status: str
    """RUNNING, SCHEDULED, FINISHED, FAILED or KILLED."""

    deleted: bool
    artifact_uri: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    keys: Sequence[str]
    """Series that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a call may take; the user's own calls keep whatever limits MLflow is set to."""

    connect_s: float = 3.05
    answer_s: float = 10.0


class Api(Protocol):
    """
    A tracking store.

    Every method raises `UnavailableError` when the store cannot be reached or asks to wait, and
    `RefusedError` when it will not do it.
    """

    def experiment_id(self, name: str, *, create: bool) -> str | None:
        """Return the id of an experiment, made if it may be; None when there is none."""
        ...

    def get_run(self, run_id: str) -> StoredRun:
        """Return a run."""
        ...

    def search(self, experiment_ids: Sequence[str] | None, condition: str) -> Iterator[StoredRun]:
        """Yield the runs of experiments (None: of all) for which a condition holds, none deleted."""
        ...

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: Mapping[str, str]) -> StoredRun:
        """Make a run."""
        ...

    def update_run(self, run_id: str, status: str, end_ms: int | None) -> None:
        """Set the status of a run, and when it ended."""
        ...

    def log_batch(
        self,
        run_id: str,
        measures: Sequence[Measure] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Store up to 1000 values, 100 params and 100 tags, 1000 in all; nothing when it is refused."""
        ...

    def history(self, run_id: str, key: str) -> History:
        """Return every value of a series."""
        ...

    def put_file(self, run: StoredRun, path: str, text: str) -> bool:
        """Write a file of a run, and return whether its files are where that can be done in time."""
        ...
