"""Which rank this process is."""

from __future__ import annotations

import os
import sys

__all__ = ["in_loader_worker", "rank_and_world"]


def rank_and_world() -> tuple[int, int]:
    """
    Return (rank, number of ranks) of the training job.

    An initialised process group decides, else `RANK` and `WORLD_SIZE` as launchers set them. `SLURM_*` alone
    decides nothing: an interactive shell on a cluster has them too.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
        return int(rank), int(world)
    return 0, 1


def in_loader_worker() -> bool:
    """Return whether this process is a worker of a torch DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
