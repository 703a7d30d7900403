"""From hand to hand: a record that could not be put on disk, one at a time, while its giver waits."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from trackperf.delivery.queue import End
from trackperf.delivery.spool import Parcel
from trackperf.record import Alert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.record import Point

__all__ = ["Direct"]

_TRY_DISK_S: Final = 2.0
"""How often to see whether a disk that was full has room again."""


class Direct:
    """A place for one record, with a giver and a taker."""

    def __init__(self) -> None:
        self.lost = [0, 0]
        """Points and alerts that were refused."""
        self._offered: SimpleQueue[Parcel] = SimpleQueue()

    def take(self) -> Parcel | None:
        """Return what is offered; None when nothing is."""
        with contextlib.suppress(Empty):
            return self._offered.get_nowait()
        return None

    def give(
        self,
        record: Sequence[Point] | Alert | End,
        *,
        rouse: Callable[[], None],
        check: Callable[[], None],
    ) -> bool:
        """
        Wait until all of a record is settled; False when nobody took it and the disk may have room.

        Args:
            record: points, an alert, or the end.

            rouse: wakes the taker.

            check: raises when there is no taker any more.
        """
        answers: SimpleQueue[None] = SimpleQueue()
        items = [record] if isinstance(record, (Alert, End)) else list(record)

        def settle(number: int, stored: bool) -> None:
            if not stored:
                self.lost[isinstance(record, Alert)] += number
            for _ in range(number):
                answers.put(None)

        self._offered.put(Parcel(items=items, settle=settle))
        rouse()
        open_items = len(items)
        while open_items:
            with contextlib.suppress(Empty):
                answers.get(timeout=_TRY_DISK_S)
                open_items -= 1
                continue
            check()
            if open_items == len(items) and self.take() is not None:
                return False
        return True
