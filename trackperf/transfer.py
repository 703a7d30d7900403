"""Moving a batch to a device, whatever it is made of."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

__all__ = ["mover"]

_DEPTH: Final = 32
_NOT_A_DEVICE: Final = (AttributeError, TypeError, ValueError)


def mover(device: Any, warn: Callable[[str], None]) -> Callable[[Any], Any]:
    """
    Return what moves a batch to a device, without waiting for the copy where the memory is pinned.

    Tensors, and whatever brings a `.to` of its own, are moved wherever they stand in mappings, lists, tuples,
    named tuples and dataclasses. Everything else stays as it is. Containers come back as the type they
    were; those that hold something moved are copies, the others are the very same objects.

    An error of the move itself, such as a device out of memory, goes on to the caller: the user asked
    for the move, and the training cannot go on without its batch.

    Args:
        device: a `torch.device`, or what it can be made from ("cuda", "cuda:1", 0).

        warn: is told when `device` is none, and of an object whose `.to` moves to no device.
    """
    try:
        import torch

        if isinstance(device, bool):
            raise TypeError("a bool is no device")  # noqa: TRY301 - as torch says it of other types
        target = torch.device(device)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        warn(
            f"Batches are not moved: steps(device={device!r}) is no device ({reason}). "
            f'Give a torch.device, a name such as "cuda:0", or an index.'
        )
        return _stay
    return _Mover(target, torch.Tensor, warn).move


def _stay(batch: Any) -> Any:
    return batch


class _Mover:
    """Moves what it meets, by its type."""

    __slots__ = ("_device", "_tensor", "_told", "_warn")

    def __init__(self, device: Any, tensor: type[Any], warn: Callable[[str], None]) -> None:
        self._device = device
        self._tensor = tensor
        self._warn = warn
        self._told: set[type[Any]] = set()

    def move(self, value: Any, depth: int = 0) -> Any:
        """Return a batch, or a part of one, on the device."""
        if isinstance(value, self._tensor):
            return value.to(self._device, non_blocking=True)
        if value is None or depth > _DEPTH or isinstance(value, (str, bytes, int, float, type)):
            return value
        if callable(getattr(value, "to", None)):
            return self._by_itself(value)
        parts: Iterable[tuple[Any, Any]]
        rebuild: Callable[[Any, dict[Any, Any]], Any]
        if isinstance(value, Mapping):
            parts, rebuild = value.items(), self._put
        elif isinstance(value, (list, tuple)):
            parts, rebuild = enumerate(value), self._sequence
        elif dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
            parts, rebuild = [(name, getattr(value, name)) for name in names], _replace
        else:
            return value
        changed = self._changed(parts, depth)
        return rebuild(value, changed) if changed else value

    def _changed(self, parts: Iterable[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
        """Return the parts that moved, by name."""
        moved = {}
        for name, part in parts:
            there = self.move(part, depth + 1)
            if there is not part:
                moved[name] = there
        return moved

    def _by_itself(self, value: Any) -> Any:
        """Return an object moved by its own method."""
        # A tokenizer's result moves its entries in place, which would change what the user's loader keeps.
        mine: Any = copy.copy(value) if isinstance(value, Mapping) else value
        try:
            try:
                moved = mine.to(self._device, non_blocking=True)
            except TypeError:
                moved = mine.to(self._device)
        except _NOT_A_DEVICE as error:
            self._tell(value, error)
            return value
        return mine if moved is None else moved

    def _sequence(self, value: Any, changed: dict[Any, Any]) -> Any:
        parts = [changed.get(at, part) for at, part in enumerate(value)]
        if type(value) is list:
            return parts
        if type(value) is tuple:
            return tuple(parts)
        try:
            if isinstance(value, list):
                mine = copy.copy(value)
                mine[:] = parts
                return mine
            make = getattr(type(value), "_make", type(value))
            return make(parts)
        except _NOT_A_DEVICE as error:
            self._tell(value, error)
            return value

    def _put(self, value: Any, changed: dict[Any, Any]) -> Any:
        """Return a copy of a mapping with some entries changed, in the order that they had."""
        try:
            if hasattr(value, "__setitem__"):
                mine = copy.copy(value)
                for key, part in changed.items():
                    mine[key] = part
                return mine
            return type(value)({**value, **changed})
        except _NOT_A_DEVICE as error:
            self._tell(value, error)
            return value

    def _tell(self, value: Any, error: Exception) -> None:
        kind = type(value)
        if kind not in self._told:
            self._told.add(kind)
            self._warn(
                f"A {kind.__qualname__} in the batch was left where it is: it cannot be moved to "
                f"{self._device} ({type(error).__name__}: {error}). "
                f"Move it in the loop, and leave steps(device=...) away."
            )


def _replace(value: Any, changed: dict[str, Any]) -> Any:
    """Return a copy of a dataclass with some fields changed; nothing of its construction runs again."""
    mine = copy.copy(value)
    for name, part in changed.items():
        object.__setattr__(mine, name, part)
    return mine
