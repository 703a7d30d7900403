"""What a count is, of whatever type a user's batch or function brings it; and what a tensor looks like."""

from __future__ import annotations

import operator
from typing import Any, Final

__all__ = ["TEXT", "as_count", "describe", "require_host", "shape_of"]

TEXT: Final = (str, bytes, bytearray)
"""Types of text: they have a length that says nothing about samples."""


def as_count(value: Any) -> int:
    """
    Return a count as an int: from an int, a numpy number, or a tensor of one number on the CPU.

    Raises:
        ValueError: it is none, or reading it would wait for a device.
    """
    require_host(value)
    if isinstance(value, (bool, *TEXT)) or str(getattr(value, "dtype", "")).endswith("bool"):
        raise ValueError("not a number")
    if getattr(value, "shape", ()) != ():
        raise ValueError("not a single number")
    try:
        count = operator.index(value)
    except TypeError:
        try:
            exact = float(value)
        except TypeError:
            raise ValueError("not a number") from None
        if not exact.is_integer():
            raise ValueError("not a whole number") from None
        count = int(exact)
    if count < 0:
        raise ValueError("less than 0")
    return count


def require_host(value: Any) -> None:
    """
    Refuse a tensor whose values cannot be read without waiting.

    Raises:
        ValueError: it is not in the memory of the CPU.
    """
    device = getattr(value, "device", None)
    if device is not None and str(getattr(device, "type", device)) != "cpu":
        raise ValueError(f"it is on {device}, and reading it would make training wait for the device")


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """Return the shape of a tensor or array, or None for anything else."""
    try:
        shape = value.shape
    except AttributeError:
        return None
    except RuntimeError:  # a nested tensor of the older kind has a first dimension, but no shape
        return (value.size(0), -1)
    return shape if isinstance(shape, tuple) else None


def describe(value: Any) -> str:
    """Describe a value in a message; never by printing a tensor, which may wait for its device."""
    name = type(value).__qualname__
    if isinstance(value, (bool, int, float, str)):
        return f"{value!r:.40} that is a {name}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {name} of {len(value)}"
    return f"a {name}"
