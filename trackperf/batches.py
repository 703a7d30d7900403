"""
Counting the samples and the tokens of a batch, in the training thread, every step.

A counter never raises and never waits for a device. What it cannot tell is -1, told once through `warn`.
The first batch is looked at in full; later ones are read at the place that told, as long as they look alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from trackperf.batch_size import Path, Reading, could_hold, infer, said
from trackperf.counts import as_count, describe, require_host, shape_of

__all__ = ["UNKNOWN", "Counter", "sample_counter", "token_counter", "token_definition"]

Counter: TypeAlias = Callable[[Any], int]
"""What a counter is: a batch in, a count out, -1 when it is not known."""

UNKNOWN: Final = -1
"""Stands inside trackperf for a count that is not known; it is never written."""

PADDED: Final = "padded"
"""As `tokens`: every element of `input_ids`, padding included."""

_LOOKS: Final = 32
_GIVE_UP: Final = 16
_MISSING: Final = object()
_SAMPLES_HELP: Final = (
    "Give steps(samples=...) a whole number a batch, or a function of the batch that returns one, "
    "such as samples=lambda batch: len(batch[0])"
)
_TOKENS_HELP: Final = (
    "Give steps(tokens=...) a whole number a batch, a function of the batch that returns one, the name of a "
    "mask in the batch such as 'attention_mask', or 'padded' for all of input_ids"
)


def sample_counter(samples: int | Callable[[Any], Any] | None, warn: Callable[[str], None]) -> Counter:
    """
    Return what counts the samples of a batch.

    Args:
        samples: a constant, a function of the batch, or None to look at the batch (`batch_size.infer`).

        warn: is told once, at most, why samples are not known.
    """
    if samples is None:
        return _Looking(_Once(warn)).count
    if callable(samples):
        return _asking(samples, "samples", _SAMPLES_HELP, _Once(warn))
    return _constant(samples, "samples", _SAMPLES_HELP, warn) or _nothing


def token_counter(
    tokens: int | Callable[[Any], Any] | str | None, warn: Callable[[str], None]
) -> Counter | None:
    """
    Return what counts the tokens of a batch, or None when there is nothing to count.

    Args:
        tokens: a constant, a function of the batch, the name of a mask in the batch (its entries that are
            not zero are counted, so padding is not), or "padded" for every element of `input_ids`.

        warn: is told once, at most, why tokens are not known.
    """
    if tokens is None:
        return None
    if callable(tokens):
        return _asking(tokens, "tokens", _TOKENS_HELP, _Once(warn))
    if isinstance(tokens, str) and tokens:
        count = _elements if tokens == PADDED else _non_zero
        return _in_field("input_ids" if tokens == PADDED else tokens, count, _Once(warn))
    return _constant(tokens, "tokens", _TOKENS_HELP, warn)


def token_definition(tokens: int | Callable[[Any], Any] | str | None) -> str | None:
    """Return in words what a token of this run is, to be kept with it, or None when none are counted."""
    if tokens is None:
        return None
    if callable(tokens):
        return f"function {getattr(tokens, '__qualname__', type(tokens).__qualname__)}"
    if isinstance(tokens, str):
        if not tokens:
            return None
        return (
            "elements of input_ids, padding included" if tokens == PADDED else f"non-zero entries of {tokens}"
        )
    try:
        return f"{as_count(tokens)} a batch"
    except ValueError:
        return None


class _Once:
    """Tells the first of several problems."""

    __slots__ = ("_told", "_warn")

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._told = False

    def __call__(self, message: str) -> int:
        if not self._told:
            self._told = True
            self._warn(message)
        return UNKNOWN


def _nothing(_batch: Any) -> int:
    return UNKNOWN


def _constant(value: Any, name: str, advice: str, warn: Callable[[str], None]) -> Counter | None:
    try:
        count = as_count(value)
    except ValueError as error:
        count = 0
        reason = f": {error}"
    else:
        reason = ""
    if count == 0:
        warn(
            f"{name} of this run are not counted: {name}={describe(value)} is not a count{reason}. {advice}."
        )
        return None
    return lambda _batch: count


def _asking(function: Callable[[Any], Any], name: str, advice: str, unknown: _Once) -> Counter:
    """Return a counter that calls the user's function."""

    def count(batch: Any) -> int:
        try:
            value = function(batch)
        except Exception as error:  # noqa: BLE001 - the user's function must not end the training
            return unknown(
                f"{name} are not known where the function given as {name}= fails: "
                f"{type(error).__name__}: {error}. {advice}."
            )
        if type(value) is int and value >= 0:
            return value
        try:
            return as_count(value)
        except Exception as error:  # noqa: BLE001 - nor may what it returned
            return unknown(
                f"{name} are not known where the function given as {name}= does not return a count "
                f"(got {describe(value)}: {error}). {advice}."
            )

    return count


class _Looking:
    """Counts samples by looking at the batch."""

    __slots__ = ("_itself", "_key", "_kind", "_looks", "_misses", "_read", "_reading", "_size", "_unknown")

    def __init__(self, unknown: _Once) -> None:
        self._unknown = unknown
        self._kind: Any = None  # of the batches that `_key` is good for
        self._key: Any = None
        self._itself = False
        self._size = UNKNOWN
        self._reading: Reading | None = None
        self._read: Callable[[Any], int | None] = _nothing
        self._looks, self._misses = _LOOKS, 0

    def count(self, batch: Any) -> int:
        """Return the samples of a batch: at once, when it has the size that the one before had."""
        if type(batch) is self._kind:
            try:
                size: int = (batch if self._itself else batch[self._key]).shape[0]
            except Exception:  # noqa: BLE001 - it does not look like the first one
                return self._learn(batch)
            if size == self._size:
                return size
        return self._look(batch)

    def _look(self, batch: Any) -> int:
        if self._reading is None:
            return self._learn(batch)
        size = self._read(batch)
        if size is None:
            return self._learn(batch)
        # What one field says may have agreed with the rest by chance in the first batch.
        checked = self._reading.kind != "dim" or self._itself or self._looks <= 0
        self._looks -= not checked
        if checked or could_hold(batch, size):
            self._size = size
            return size
        return self._learn(batch)

    def _learn(self, batch: Any) -> int:
        if self._misses >= _GIVE_UP:
            return UNKNOWN
        self._reading = reading = infer(batch)
        self._kind = None
        if reading is None:
            self._misses += 1
            return self._unknown(
                f"samples are not counted: the batch ({describe(batch)}) does not say how many it holds. "
                f"{_SAMPLES_HELP}."
            )
        self._misses = 0
        self._size = reading.size
        self._read = _reader(batch, reading)
        self._itself = not reading.path
        if reading.kind == "dim" and (self._itself or (len(reading.path) == 1 and not reading.path[0][0])):
            self._kind = type(batch)
            self._key = None if self._itself else reading.path[0][1]
        return reading.size


def _reader(first: Any, reading: Reading) -> Callable[[Any], int | None]:
    """Return what reads a size where the first batch told it; None from a batch that is built differently."""
    outer, inner = type(first), type(_walk(first, reading.path))

    def read(batch: Any) -> int | None:
        if type(batch) is not outer:
            return None
        try:
            part = _walk(batch, reading.path)
            if type(part) is not inner:
                return None
            if reading.kind == "dim":
                return int(part.shape[0])
            return len(part) if reading.kind == "len" else said(part)
        except Exception:  # noqa: BLE001 - a part is missing
            return None

    return read


def _walk(value: Any, path: Path) -> Any:
    for is_attribute, name in path:
        value = getattr(value, name) if is_attribute else value[name]
    return value


def _in_field(name: str, count: Callable[[Any], Any], unknown: _Once) -> Counter:
    """Return a counter of what is in a field of the batch."""

    def counter(batch: Any) -> int:
        try:
            field = _find(batch, name)
            if field is not _MISSING:
                return as_count(count(field))
            reason = f"the batch ({describe(batch)}) has no {name!r}"
        except Exception as error:  # noqa: BLE001 - a user's batch may fail at anything
            reason = f"{name!r} of the batch cannot be counted: {error}"
        return unknown(f"tokens are not known where {reason}. {_TOKENS_HELP}.")

    return counter


def _find(batch: Any, name: str) -> Any:
    """Return the field of a batch, or of one of its parts: (inputs, labels) and the like."""
    parts = list(batch) if isinstance(batch, (list, tuple)) else []
    for part in (batch, *parts):
        field = part.get(name, _MISSING) if isinstance(part, Mapping) else getattr(part, name, _MISSING)
        if field is not _MISSING:
            return field
    return _MISSING


def _non_zero(field: Any) -> Any:
    require_host(field)
    if hasattr(field, "count_nonzero"):
        return field.count_nonzero()
    if isinstance(field, (list, tuple)):
        return sum(_non_zero(part) for part in field)
    if isinstance(field, (int, float)):
        return int(field != 0)
    if shape_of(field) is None:
        raise ValueError(f"it is a {type(field).__name__}")
    import numpy as np  # noqa: PLC0415 - only who has arrays pays for it

    return np.count_nonzero(field)


def _elements(field: Any) -> Any:
    if hasattr(field, "numel"):
        return field.numel()
    if isinstance(field, (list, tuple)):
        return sum(_elements(part) for part in field)
    shape = shape_of(field)
    if shape is None and not isinstance(field, (int, float)):
        raise ValueError(f"it is a {type(field).__name__}")
    return math.prod(shape or ())
