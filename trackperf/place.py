"""The folder of a run: a name that no other run has, also when many jobs start in the same second."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["release", "reserve"]

_log: Final = logging.getLogger("trackperf")


def reserve(folder: Path, name: str | None) -> str:
    """
    Make the folder of a run and return the run's name.

    Making a folder is atomic, so of two processes that want one name the second gets `name-2`. Where no
    folder can be made the name is made unique by itself: a sink that needs no folder goes on.

    Args:
        folder: where the folders of runs are.

        name: the wanted name; date and time when None.
    """
    wanted = name or time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        unique = wanted if number == 1 else f"{wanted}-{number}"
        try:
            (folder / unique).mkdir(parents=True)
        except FileExistsError:
            if (folder / unique).is_dir():
                continue
            _log.warning("trackperf: cannot make the folder %s: a file is in its place", folder / unique)
        except OSError as error:
            _log.warning("trackperf: cannot make the folder %s: %s", folder / unique, error)
        else:
            return unique
        break
    return f"{wanted}-{uuid.uuid4().hex[:8]}"


def release(folder: Path, name: str) -> None:
    """Remove the folder of a run that nothing was written to."""
    with contextlib.suppress(OSError):
        (folder / name).rmdir()
