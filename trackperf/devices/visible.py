"""`CUDA_VISIBLE_DEVICES`, read as CUDA reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["visible_devices"]


def visible_devices(
    value: str | None, count: int, uuid_of: Callable[[int], str | None]
) -> list[int] | list[str]:
    """
    Return what a process may use by `CUDA_VISIBLE_DEVICES`, as CUDA reads it: indices, or UUIDs of slices.

    Order is kept; the list ends at the first entry that is none; one entry twice leaves nothing.

    Args:
        value: the variable; None when it is not set.

        count: number of GPUs of the driver's.

        uuid_of: returns the UUID of a GPU by index, or None if it cannot be told.
    """
    if value is None:
        return list(range(count))
    words = [word.strip() for word in value.split(",")]
    if words[0].startswith("MIG-"):
        slices: list[str] = []
        for word in words:
            if word in slices:
                return []
            if not word.startswith("MIG-"):
                break
            slices.append(word)
        return slices
    uuids = [uuid_of(index) for index in range(count)] if words[0].startswith("GPU-") else None
    found: list[int] = []
    for word in words:
        index = _number(word) if uuids is None else _by_prefix(word, uuids)
        if index in found:
            return []
        if not 0 <= index < count:
            break
        found.append(index)
    return found


def _number(word: str) -> int:
    """Return the number that a word begins with, -1 if it begins with none: `1gpu` is 1."""
    digits = word.removeprefix("+")
    end = next((place for place, letter in enumerate(digits) if letter not in "0123456789"), len(digits))
    return int(digits[:end]) if end else -1


def _by_prefix(word: str, uuids: Sequence[str | None]) -> int:
    """Return the index of the one GPU whose UUID begins with a word, -1 if there is none or several."""
    if not word.startswith("GPU-"):
        return -1
    fitting = [index for index, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(word)]
    return fitting[0] if len(fitting) == 1 else -1
