"""Many values to MLflow, so that what it does not take costs no more than itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from trackperf_mlflow.api import Measure, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackperf.record import Point
    from trackperf_mlflow.api import Api

__all__ = ["Sender"]

_log: Final = logging.getLogger("trackperf")
_VALUES: Final = 1000
_TAGS: Final = 100


class Sender:
    """
    Writes into one run, within MLflow's limits.

    MLflow refuses a whole batch for one bad name. So a refused batch is halved until the bad name is alone;
    it is left out from then on, and said once.
    """

    def __init__(self, api: Api, run_id: str) -> None:
        """
        Args:
            api: the store.

            run_id: MLflow's id of the run.
        """
        self.dropped = 0
        """Values, params and tags that MLflow did not take."""
        self._api = api
        self._run_id = run_id
        self._bad: set[str] = set()
        self._points: Sequence[Point] = ()
        self._had = 0

    def points(self, points: Sequence[Point], session: tuple[str, int] | None) -> None:
        """
        Store points; the same points again go on where they were left.

        Args:
            points: the points.

            session: key and number that mark the points of a process which took the run over.
        """
        # What a slow server has got need not be sent again when the call comes again.
        if points != self._points:
            self._points, self._had = list(points), 0
        batch: list[Measure] = []
        for at in range(self._had, len(points)):
            measures = _measures(points[at], session)
            if batch and len(batch) + len(measures) > _VALUES:
                self.values(batch)
                batch, self._had = [], at
            batch += measures
        self.values(batch)
        self._points, self._had = (), 0

    def values(self, measures: Sequence[Measure]) -> None:
        """Store values, in as many calls as it takes."""
        for first in range(0, len(measures), _VALUES):
            part = list(measures[first : first + _VALUES])
            self._values(part, whole=True)
            self.dropped += sum(one.key in self._bad for one in part)

    def tags(self, tags: Mapping[str, str]) -> None:
        """Store tags: as many as can be at once, one by one where that is refused."""
        self._texts(tags, "tag")

    def params(self, params: Mapping[str, str]) -> None:
        """Store params that are not there yet, in the same way."""
        self._texts(params, "param")

    def _values(self, batch: list[Measure], *, whole: bool) -> None:
        batch = [one for one in batch if one.key not in self._bad]
        if not batch:
            return
        try:
            self._api.log_batch(self._run_id, batch)
        except RefusedError as error:
            if whole:
                self._make_sure_of_the_run(error)
            if len(batch) == 1:
                self._refuse(batch[0].key, error)
                return
            batch.sort(key=lambda one: one.key)
            middle = len(batch) // 2
            self._values(batch[:middle], whole=False)
            self._values(batch[middle:], whole=False)

    def _refuse(self, key: str, error: RefusedError) -> None:
        self._bad.add(key)
        _log.warning("trackperf: MLflow does not take the series %r, it is left out there: %s", key, error)

    def _make_sure_of_the_run(self, error: RefusedError) -> None:
        """Raise when it is not a value that is refused, but the run."""
        if error.code == "RESOURCE_DOES_NOT_EXIST" or self._api.get_run(self._run_id).deleted:
            raise error

    def _texts(self, texts: Mapping[str, str], kind: str) -> None:
        items = list(texts.items())
        for first in range(0, len(items), _TAGS):
            part = dict(items[first : first + _TAGS])
            try:
                self._text(part, kind)
            except RefusedError as error:
                self._make_sure_of_the_run(error)
                self._one_by_one(part, kind)

    def _one_by_one(self, texts: Mapping[str, str], kind: str) -> None:
        for name, text in texts.items():
            try:
                self._text({name: text}, kind)
            except RefusedError as error:  # noqa: PERF203 - each is tried by itself
                self.dropped += 1
                _log.warning("trackperf: MLflow does not take the %s %r: %s", kind, name, error)

    def _text(self, texts: Mapping[str, str], kind: str) -> None:
        if kind == "tag":
            self._api.log_batch(self._run_id, tags=texts)
        else:
            self._api.log_batch(self._run_id, params=texts)


def _measures(point: Point, session: tuple[str, int] | None) -> list[Measure]:
    stamp = round(point.wall_time * 1000)
    measures = [Measure(key, float(value), stamp, point.step) for key, value in point.values.items()]
    if session is not None and measures:
        measures.append(Measure(session[0], float(session[1]), stamp, point.step))
    return measures
