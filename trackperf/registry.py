"""
Sinks and readers by name: the entry points of every installed distribution, ours and foreign ones alike.

Only what is asked for is imported. A plug-in is checked here, before training, and a message about it names
the distribution that brought it.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from trackperf.errors import ReadError, SinkError, TrackperfError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from trackperf.history import Reader, RunHistory
    from trackperf.sink import Sink

__all__ = ["SinkEntry", "faults_of_sink", "find_runs", "load_sink", "read_run", "sink_names"]

_log = logging.getLogger("trackperf")

_SINKS: Final = "trackperf.sinks"
_READERS: Final = "trackperf.readers"

_SINK_METHODS: Final = {
    "open": ("run",),
    "write": ("points",),
    "alert": ("alert",),
    "close": ("summary", "status"),
}
_READER_METHODS: Final = {"find": ("address",), "read": ("address",)}

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_LISTED: Final = 10

_PluginError: TypeAlias = type[SinkError] | type[ReadError]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEntry:
    """A sink that an installed distribution offers."""

    name: str
    """Name to give to `init(sink=)`."""

    distribution: str
    """Distribution that brings it, with its version."""

    importable: bool
    """Whether its module is there, and every package of the distribution's extra of the same name."""

    missing: tuple[str, ...] = ()
    """Packages of that extra that are not installed."""


def sink_names() -> list[SinkEntry]:
    """Return the sinks of all installed distributions, in order of name; imports none of them."""
    entries = []
    for point in _entry_points(_SINKS):
        missing = _missing_packages(point)
        found = importlib.util.find_spec(point.module.partition(".")[0]) is not None
        entries.append(
            SinkEntry(
                name=point.name,
                distribution=_origin(point),
                importable=found and not missing,
                missing=missing,
            )
        )
    return entries


def load_sink(spec: str | Sink) -> Sink:
    """
    Return the sink that `spec` names, newly built, or `spec` itself when it is one.

    Raises:
        SinkError: no such sink, or its plug-in is broken or does not keep to the protocol.

        MissingDependencyError: the package of its tracker is not installed.
    """
    if isinstance(spec, str):
        point = _entry_point(_SINKS, spec)
        sink = _build(point, SinkError)
        faults, what = faults_of_sink(sink), f"the sink {spec!r} of {_origin(point)}"
    else:
        sink = spec
        faults, what = faults_of_sink(sink), f"{spec!r}, given as a sink,"
    if faults:
        raise SinkError(f"{what} does not keep to trackperf.sink.Sink: {'; '.join(faults)}.")
    return cast("Sink", sink)


def faults_of_sink(sink: object) -> list[str]:
    """Return what keeps an object from being a sink, a few words each; an empty list for a sink."""
    return _faults(sink, _SINK_METHODS)


def find_runs(address: str) -> list[str]:
    """
    Return the addresses of all runs at or below an address, each as `<reader>:<address>`.

    Args:
        address: `<reader>:<address>`, or an address that every installed reader is asked about.

    Raises:
        ReadError: the one reader that was named cannot be used.
    """
    return [f"{name}:{run}" for name, _, runs in _found(address, []) for run in runs]


def read_run(address: str) -> RunHistory:
    """
    Read one run.

    Where several readers know the run at a plain address, the first by name that can read it does.

    Args:
        address: `<reader>:<address>`, as `find_runs` returns it, or an address that every installed reader
            is asked about.

    Raises:
        ReadError: there is no run, more than one, or it cannot be read.
    """
    trouble: list[str] = []
    found = list(_found(address, trouble))
    if not found:
        raise ReadError(_nothing_at(address, trouble))
    if any(len(runs) > 1 for _, _, runs in found):
        every = [f"{name}:{run}" for name, _, runs in found for run in runs]
        more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
        raise ReadError(f"{address!r} holds {len(every)} runs; name one: {', '.join(every[:_LISTED])}{more}")
    for name, reader, runs in found:
        if history := _read(name, reader, runs[0], trouble):
            return history
    raise ReadError(f"cannot read {address!r}: {'; '.join(trouble)}")


def _read(name: str, reader: Reader, address: str, trouble: list[str]) -> RunHistory | None:
    try:
        return reader.read(address)
    except TrackperfError as error:
        trouble.append(str(error))
    except Exception as error:  # noqa: BLE001 - a foreign reader may raise anything
        trouble.append(f"the reader {name!r} failed: {type(error).__name__}: {error}")
    return None


def _found(address: str, trouble: list[str]) -> Iterator[tuple[str, Reader, Sequence[str]]]:
    """Yield the readers that find runs at an address; what fails on the way is added to `trouble`."""
    points = _entry_points(_READERS)
    prefix, colon, rest = address.partition(":")
    asked = bool(colon) and any(point.name == prefix for point in points)
    if asked:
        points, address = [_entry_point(_READERS, prefix)], rest
    for point in points:
        try:
            reader = _reader(point)
            runs = list(reader.find(address))
        except Exception as error:
            if asked:
                if isinstance(error, TrackperfError):
                    raise
                raise ReadError(f"the reader {point.name!r} of {_origin(point)} failed: {error!r}") from error
            trouble.append(f"the reader {point.name!r} of {_origin(point)} cannot be used: {error}")
            _log.debug("trackperf: %s", trouble[-1], exc_info=error)
            continue
        if runs:
            yield point.name, reader, runs


def _reader(point: EntryPoint) -> Reader:
    reader = _build(point, ReadError)
    if faults := _faults(reader, _READER_METHODS):
        raise ReadError(
            f"the reader {point.name!r} of {_origin(point)} does not keep to trackperf.history.Reader: "
            f"{'; '.join(faults)}."
        )
    return cast("Reader", reader)


def _nothing_at(address: str, trouble: Sequence[str]) -> str:
    names = sorted({point.name for point in _entry_points(_READERS)})
    text = f"no run found at {address!r}. Readers asked: {', '.join(names) or 'none is installed'}."
    prefix, colon, _ = address.partition(":")
    if colon and len(prefix) > 1:
        text += did_you_mean(prefix, names)
    return " ".join([text, *trouble])


def _build(point: EntryPoint, failure: _PluginError) -> Any:
    """Import what an entry point names and call it without arguments."""
    try:
        return point.load()()
    except TrackperfError:
        raise
    except (Exception, SystemExit) as error:
        raise failure(
            f"the plug-in {point.name!r} ({point.value}) of {_origin(point)} is broken: "
            f"{type(error).__name__}: {error}"
        ) from error


def _entry_point(group: str, name: str) -> EntryPoint:
    points = _entry_points(group)
    matching = [point for point in points if point.name == name]
    if not matching:
        names = sorted({point.name for point in points})
        known = ", ".join(names) or "none"
        raise SinkError(f"there is no sink {name!r}; installed are: {known}.{did_you_mean(name, names)}")
    if len(matching) > 1:
        origins = " and ".join(sorted(_origin(point) for point in matching))
        failure: _PluginError = SinkError if group == _SINKS else ReadError
        raise failure(f"{name!r} is offered by {origins}; uninstall all but one of them")
    return matching[0]


def _entry_points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and seldom needed

    return sorted(entry_points(group=group), key=lambda point: (point.name, _origin(point)))


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


def _missing_packages(point: EntryPoint) -> tuple[str, ...]:
    """Return the packages that the distribution's extra of the entry point's name asks for in vain."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - as above

    only_extra = re.compile(rf"""\s*\(?\s*extra\s*==\s*(['"]){re.escape(point.name)}\1\s*\)?\s*""")
    missing = []
    for line in (point.dist.requires if point.dist else None) or ():
        requirement, _, marker = line.partition(";")
        package = re.match(r"[A-Za-z0-9._-]+", requirement)
        if package and only_extra.fullmatch(marker):
            try:
                version(package.group())
            except PackageNotFoundError:
                missing.append(package.group())
    return tuple(missing)


def _faults(plugin: object, methods: Mapping[str, tuple[str, ...]]) -> list[str]:
    if isinstance(plugin, type):
        return [f"it is a class, not an instance of one: write {plugin.__name__}()"]
    faults = []
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        faults.append(f"`name` must be a short lower-case word (got {name!r})")
    for method, parameters in methods.items():
        if fault := _fault(getattr(plugin, method, None), parameters):
            faults.append(f"`{method}` {fault}")
    return faults


def _fault(method: Any, parameters: tuple[str, ...]) -> str:
    wanted = f"it must take ({', '.join(parameters)})"
    if method is None:
        return f"is missing: {wanted}"
    if not callable(method):
        return f"is no method (got a {type(method).__name__}): {wanted}"
    if inspect.iscoroutinefunction(method):
        return f"is a coroutine, which nobody would await: {wanted} and work when called"
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return ""  # not every callable written in C can tell
    try:
        signature.bind(*parameters)
    except TypeError:
        return f"takes {signature}: {wanted}"
    return ""
