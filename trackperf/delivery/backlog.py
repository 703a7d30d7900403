"""What an earlier process of the same run left behind: it goes first, and then the run goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trackperf.delivery.courier import BATCH
from trackperf.delivery.manifest import FOLDER, MANIFEST, Manifest
from trackperf.delivery.queue import End
from trackperf.delivery.spool import Spool
from trackperf.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackperf.delivery.spool import Parcel

__all__ = ["left_behind", "send_backlog"]

_log = logging.getLogger("trackperf")


def left_behind(own: Spool) -> list[Spool]:
    """Return the spools of the same run and sink that no live process holds, oldest first."""
    found = []
    for path in own.folder.parent.glob(f"{FOLDER}*/{MANIFEST}"):
        if path.parent == own.folder:
            continue
        try:
            manifest = Manifest.read(path.parent)
            same = (manifest.sink, manifest.run.run_id) == (own.manifest.sink, own.manifest.run.run_id)
            spool = Spool.take_over(path.parent) if same else None
        except (OSError, ReadError) as error:
            _log.warning("trackperf: sink %s: an earlier spool stays: %s", own.manifest.sink, error)
        else:
            found += [spool] if spool is not None else []
    return sorted(found, key=lambda spool: spool.manifest.run.started_at)


def send_backlog(spool: Spool, deliver: Callable[[Parcel], None], *, before: int | None) -> None:
    """
    Hand over what an earlier process left, up to the step at which a later one took the run over, and
    remove its spool. What came after that step was done again, and the later values stand.

    Args:
        spool: what it left.

        deliver: brings a parcel to the sink, which is open.

        before: the last step that stands; all stand when None.

    Raises:
        StoppedError: not all was handed over.
    """
    while parcel := spool.take(BATCH):
        items, settle = parcel.items, parcel.settle
        stands = [
            item for item in items if not isinstance(item, End) and (before is None or item.step <= before)
        ]
        if stands:
            parcel.items = stands
            deliver(parcel)
        if len(stands) < len(items):
            settle(len(items) - len(stands), True)
    spool.remove()
