"""Points of many series as they are read: numbers in arrays, three a series, no object a point."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from trackperf.history import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Columns"]

if TYPE_CHECKING:
    _Single: TypeAlias = tuple[array[int], array[float], array[float]]
    _Part: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


class Columns:
    """Takes points one by one or many at a time; gives a `Series` a tag."""

    def __init__(self) -> None:
        self._singles: dict[bytes, _Single] = {}
        self._parts: dict[bytes, list[_Part]] = {}

    def add(self, tag: bytes, step: int, wall_time: float, value: float) -> None:
        """Add one point."""
        single = self._singles.get(tag)
        if single is None:
            single = self._singles[tag] = (array("q"), array("d"), array("d"))
        single[0].append(step)
        single[1].append(wall_time)
        single[2].append(value)

    def extend(
        self,
        tag: bytes,
        steps: NDArray[np.int64],
        wall_times: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> None:
        """Add many points; the arrays are kept, not copied."""
        self._settle(tag)
        self._parts.setdefault(tag, []).append((steps, wall_times, values))

    def series(self) -> dict[str, Series]:
        """Return what was added, in the order in which it was, and forget it."""
        out: dict[str, Series] = {}
        for tag in {**self._parts, **self._singles}:
            self._settle(tag)
            parts = self._parts.pop(tag)
            steps, walls, values = (
                parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
            )
            out[tag.decode("utf-8", "replace")] = Series(step=steps, wall_time=walls, value=values)
        return out

    def _settle(self, tag: bytes) -> None:
        """Turn the points that came one by one into an array."""
        single = self._singles.pop(tag, None)
        if single is not None:
            steps, walls, values = single
            part = (np.array(steps, np.int64), np.array(walls, np.float64), np.array(values, np.float64))
            self._parts.setdefault(tag, []).append(part)
