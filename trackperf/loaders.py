"""What a loader is: the settings of a DataLoader that decide how fast it can be, read without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LoaderFacts", "describe"]

_INNER: Final = ("base_dataloader", "dataloader", "_dataloader", "loader", "_loader", "iterable")
"""Where accelerate, Lightning, timm, torch_xla and tqdm keep the loader that they wrap."""

_DEPTH: Final = 8
"""Objects that are looked at: wrappers may go round in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Settings of a loader; None for what it does not say or does not have."""

    kind: str
    """Type name of what was given to `steps()`."""

    is_dataloader: bool = False
    """Whether it is a torch DataLoader, or wraps one, or has the settings of one."""

    batch_size: int | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    drop_last: bool | None = None
    start_method: str | None = None
    """How workers are started (`fork`, `spawn`, ...), where the loader was told."""

    dataset: str | None = None
    """Type name of the dataset."""

    sampler: str | None = None
    """Type name of the sampler."""

    iterable_dataset: bool | None = None
    """Whether the dataset is a stream, which every worker reads for itself."""

    def as_mapping(self) -> Mapping[str, str | int | float | bool]:
        """Return what is known, read-only, for `RunInfo.loader`."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return MappingProxyType({name: value for name, value in known.items() if value is not None})


def describe(loader: object) -> LoaderFacts:
    """
    Return the facts of a loader; of one that is no DataLoader only its type name. Never raises.

    Well-known wrappers are opened; the properties of a user's own object may raise, and are then unknown.
    """
    kind = type(loader).__name__
    inner = _dataloader(loader)
    if inner is None:
        return LoaderFacts(kind=kind)
    batch_sampler = _get(inner, "batch_sampler")
    dataset = _get(inner, "dataset")
    sampler = _get(inner, "sampler")
    return LoaderFacts(
        kind=kind,
        is_dataloader=True,
        batch_size=_first(_whole(_get(inner, "batch_size")), _whole(_get(batch_sampler, "batch_size"))),
        num_workers=_whole(_get(inner, "num_workers")),
        prefetch_factor=_whole(_get(inner, "prefetch_factor")),
        pin_memory=_flag(_get(inner, "pin_memory")),
        persistent_workers=_flag(_get(inner, "persistent_workers")),
        drop_last=_first(_flag(_get(batch_sampler, "drop_last")), _flag(_get(inner, "drop_last"))),
        start_method=_text(_get(_get(inner, "multiprocessing_context"), "_name")),
        dataset=_type_name(dataset),
        sampler=_type_name(sampler),
        iterable_dataset=None if dataset is None else _is_stream(dataset),
    )


def _dataloader(loader: object) -> object | None:
    """Return the DataLoader itself: the object, or what it wraps, that has the settings of one."""
    waiting = [loader]
    for _ in range(_DEPTH):
        if not waiting:
            return None
        candidate = waiting.pop(0)
        workers = _whole(_get(candidate, "num_workers"))
        if workers is not None and all(_has(candidate, name) for name in ("dataset", "batch_size")):
            return candidate
        inner = (_get(candidate, name) for name in _INNER)
        waiting.extend(item for item in inner if item is not None)
    return None


def _get(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's may fail in any way
        return None


def _has(owner: object, name: str) -> bool:
    try:
        return hasattr(owner, name)
    except Exception:  # noqa: BLE001 - as above
        return False


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _type_name(value: object) -> str | None:
    return None if value is None else type(value).__name__


def _is_stream(dataset: object) -> bool:
    return any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one
