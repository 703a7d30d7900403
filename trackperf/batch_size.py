"""
How many samples a batch holds, read from the batch itself.

Every part of a batch votes, and the answer is the one size on which the votes agree; a size that only one
part could mean is never taken from it. A vote has up to two readings, because a list of tensors can be
several fields of one batch (its size is the tensors' first dimension) or one tensor a sample (its size is
the list's length). What stays ambiguous is unknown: no rate is better than a wrong one.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from trackperf.counts import TEXT, as_count, shape_of

__all__ = ["Path", "Reading", "could_hold", "infer", "said"]

Path: TypeAlias = tuple[tuple[bool, Any], ...]
"""Way from a batch to a part of it; each step is (whether an attribute, its name or key)."""

_DEPTH: Final = 6
_LOOKED_AT: Final = 64
_CHANNELS: Final = (1, 3, 4)
_SMALLEST_IMAGE: Final = 8
_PACKED: Final = ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens", "cu_seq_lens_q")


class Reading(NamedTuple):
    """One size, and where in the batch it can be read."""

    size: int
    """Number of samples."""

    path: Path
    """Way to the part that says it."""

    kind: Literal["dim", "len", "said"]
    """The part's first dimension, its length, or something that it says about itself."""


class _Vote(NamedTuple):
    readings: tuple[Reading, ...]  # the likelier first; none when the parts contradict each other
    sure: bool = True  # whether the first may stand without a second vote for it
    weak: bool = False  # text and plain numbers count only where no tensor votes


_NOTHING: Final = _Vote(())


def infer(batch: Any) -> Reading | None:
    """
    Return the size of a batch, or None when it cannot be told.

    The rules, for what training loops really get:

    - A tensor or array: its first dimension. Without dimensions it says nothing.
    - `batch_size` or `num_graphs` of an object, and a packed sequence, are believed.
    - A mapping, named tuple, dataclass or plain object: the first dimension that all its tensors share.
      Lists of text and numbers count only where there is no tensor. Packed text is counted by its
      `cu_seqlens`, or by the places where its `position_ids` begin anew.
    - A list or tuple of tensors with one first dimension: that dimension. If they look like separate
      images (channels first, no other shapes), their number when there are more than two of differing
      size; otherwise another part of the batch has to decide.
    - A list of more than two tensors with differing first dimensions but the same type and last dimension:
      one tensor a sample, so their number. Two of them, or a tuple, could as well be fields that
      contradict each other: another part has to decide.
    - A list of text, numbers, mappings, objects or (input, label) pairs as the dataset gave them: its
      length, unless all of them could also be batches of one common size.
    """
    vote = _try_vote(batch)
    return vote.readings[0] if vote.readings and vote.sure else None


def could_hold(batch: Any, size: int) -> bool:
    """Tell whether `size` is one of the sizes that a batch can be read as, however unsure."""
    return any(reading.size == size for reading in _try_vote(batch).readings)


def said(value: Any) -> int | None:
    """Return the size that a part of a batch states about itself, or None."""
    if type(value) not in (dict, list, tuple):
        for name in ("batch_size", "num_graphs"):
            stated = getattr(value, name, None)
            if type(stated) is int and stated >= 0:
                return stated
            if isinstance(stated, tuple) and stated:  # a TensorDict has batch dimensions
                stated = stated[0]
            if stated is not None:
                try:
                    return as_count(stated)
                except ValueError:
                    continue
        if hasattr(value, "_fields") and hasattr(value, "batch_sizes"):  # a packed sequence
            return as_count(value.batch_sizes[0])
    return _packed(value)


def _try_vote(batch: Any) -> _Vote:
    try:
        return _vote(batch, (), 0) or _NOTHING
    except Exception:  # noqa: BLE001 - a user's batch may fail at anything; its size is unknown, then
        return _NOTHING


def _vote(value: Any, path: Path, depth: int) -> _Vote | None:
    """Return what a part says about the size of its batch; None when it says nothing."""
    if depth > _DEPTH or _is_scalar(value):
        return None
    stated = said(value)
    if stated is not None:
        return _Vote((Reading(stated, path, "said"),))
    fields = _fields(value)
    if fields is not None:
        return _agree([_vote(part, (*path, step), depth + 1) for step, part in fields])
    if isinstance(value, (list, tuple)):
        return _sequence(value, path, depth) if value else None
    shape = shape_of(value)
    return _Vote((Reading(shape[0], path, "dim"),)) if shape and isinstance(shape[0], int) else None


def _agree(votes: Iterable[_Vote | None]) -> _Vote | None:
    """Return the vote of several parts together."""
    cast = [vote for vote in votes if vote is not None]
    strong = [vote for vote in cast if not vote.weak]
    if not cast:
        return None
    agreed = _common(strong or cast)
    if strong and not agreed.sure and len(strong) < len(cast):
        confirmed = _common([agreed, *(vote for vote in cast if vote.weak)])
        return confirmed if confirmed.readings else agreed
    return agreed


def _common(votes: Sequence[_Vote]) -> _Vote:
    if len(votes) == 1:
        return votes[0]
    first = next((vote for vote in votes if vote.sure), votes[0])
    sizes = [{reading.size for reading in vote.readings} for vote in votes]
    common = [reading for reading in first.readings if all(reading.size in known for known in sizes)]
    sure = first.sure or len({reading.size for reading in common}) == 1
    return _Vote(tuple(common), sure=sure, weak=votes[0].weak)


def _sequence(items: Sequence[Any], path: Path, depth: int) -> _Vote | None:
    """Return the vote of a list or tuple, by what is in it."""
    number = Reading(len(items), path, "len")
    seen = items[:_LOOKED_AT]
    shapes = [shape for shape in map(shape_of, seen) if shape]
    if len(shapes) == len(seen):
        return _tensors(seen, shapes, path, number)
    if all(map(_is_scalar, seen)):
        return _Vote((number,), weak=True)
    votes = [_vote(item, (*path, (False, at)), depth + 1) for at, item in enumerate(seen)]
    rows = [item for item in seen if isinstance(item, (list, tuple)) and not hasattr(item, "_fields")]
    if len(rows) == len(seen):
        return _rows(rows, votes, number)
    if shapes or rows:
        return _agree(votes)
    return _records(seen, votes, number)


def _tensors(items: Sequence[Any], shapes: list[tuple[int, ...]], path: Path, number: Reading) -> _Vote:
    """Return the vote of a list or tuple of tensors: fields of a batch, or one tensor a sample."""
    if len({shape[0] for shape in shapes}) == 1:
        dim = Reading(shapes[0][0], (*path, (False, 0)), "dim")
        images = dim.size in _CHANNELS and all(
            len(shape) == 3 and min(shape[1:]) >= _SMALLEST_IMAGE for shape in shapes
        )
        if images:
            return _Vote((number, dim), sure=len(items) > 2 and len(set(shapes)) > 1)
        return _Vote((dim, number))
    alike = {
        (len(shape), shape[1:] and shape[-1], getattr(item, "dtype", None))
        for shape, item in zip(shapes, items, strict=True)
    }
    if len(alike) > 1:
        return _NOTHING
    return _Vote((number,), sure=len(items) > 2 and isinstance(items, list))


def _rows(rows: list[Any], votes: list[_Vote | None], number: Reading) -> _Vote | None:
    """Return the vote of a list of lists: fields of a batch, or (input, label) pairs, a sample each."""
    kinds = [{_scalar_kind(part) for part in row[:_LOOKED_AT]} for row in rows]
    if all(len(kind) > 1 for kind in kinds):
        return _Vote((number,))
    if all(kind in ({"text"}, {"number"}) for kind in kinds) and kinds[0] == kinds[-1]:
        # Sentence pairs: ("a1", "a2", ...), ("b1", "b2", ...) or ("a1", "b1"), ("a2", "b2"), ...
        fields = kinds[0] == {"text"} and len(set(map(len, rows))) == 1
        return _Vote((number,), sure=not fields, weak=True)
    if any(kind != {None} for kind in kinds):
        return _agree(votes)
    shared = _agree(votes)
    if shared is None or not shared.readings:
        return _Vote((number,), sure=len(rows) > 2)
    if len(rows) > 2 and not any(reading.kind == "len" for reading in shared.readings[:1]):
        return _Vote((number, *shared.readings), sure=number.size == shared.readings[0].size)
    return _Vote((*shared.readings, number), sure=shared.sure)


def _records(items: Sequence[Any], votes: list[_Vote | None], number: Reading) -> _Vote | None:
    """Return the vote of a list of mappings or objects: samples, or batches if they share one size."""
    told = [vote for vote in votes if vote is not None and vote.readings]
    if told and all(vote.readings[0].kind == "said" for vote in told):
        return _agree(votes)
    parts = [part for item in items for _, part in _fields(item) or ()]
    shared = _agree(votes)
    if len(told) < len(items) or any(map(_is_scalar, parts)) or shared is None or not shared.readings:
        return _Vote((number,))
    return _Vote((number, *shared.readings), sure=number.size == shared.readings[0].size)


def _packed(fields: Any) -> int | None:
    """Return the number of texts in a batch where several stand in one row."""
    if not isinstance(fields, Mapping):
        return None
    for name in _PACKED:
        shape = shape_of(fields.get(name))
        if shape and len(shape) == 1:
            return max(0, int(shape[0]) - 1)
    places = fields.get("position_ids")
    shape = shape_of(places)
    if not shape or shape[0] != 1 or "attention_mask" in fields:
        return None
    starts: Any = places == 0
    return as_count(starts.sum())


def _fields(value: Any) -> list[tuple[tuple[bool, Any], Any]] | None:
    """Return the named parts of a mapping, a named tuple, a dataclass or a plain object."""
    if isinstance(value, Mapping):
        return [((False, key), part) for key, part in value.items()]
    if isinstance(value, (list, set, frozenset, type)) or callable(value):
        return None
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif shape_of(value) is not None:
        return None
    else:
        names = [name for name in getattr(value, "__dict__", ()) if not name.startswith("_")]
    return None if names is None else [((True, name), getattr(value, name, None)) for name in names]


def _scalar_kind(value: Any) -> str | None:
    if isinstance(value, TEXT):
        return "text"
    return "number" if _is_scalar(value) else None


def _is_scalar(value: Any) -> bool:
    """Tell text, a single number and None from what can have a size."""
    return value is None or isinstance(value, (*TEXT, numbers.Number)) or shape_of(value) == ()
