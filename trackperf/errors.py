"""
The errors trackperf raises, all of them before training starts or from a
reader, a command or a comparison; never out of a training loop.

    TrackperfError
    ├── ConfigError (ValueError)          a bad argument of `init`, or a bad setting
    ├── NotAvailableError                 a part of the interface that this version does not have
    ├── SinkError                         a sink cannot be found, loaded or built
    │   └── MissingDependencyError (ImportError)   the tracker's package is not installed
    ├── UnavailableError                  a sink's tracker is away: what it was handed comes again
    └── ReadError                         a run cannot be found or read

Every message says what was got, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "MissingDependencyError",
    "NotAvailableError",
    "ReadError",
    "SinkError",
    "TrackperfError",
    "UnavailableError",
]


class TrackperfError(Exception):
    """Base of every error that trackperf raises on purpose."""


class ConfigError(TrackperfError, ValueError):
    """An argument of `init`, or a setting, is not one that trackperf can use."""


class NotAvailableError(TrackperfError):
    """The interface names it, this version does not have it yet."""


class SinkError(TrackperfError):
    """A sink cannot be found, loaded or built."""


class MissingDependencyError(SinkError, ImportError):
    """The package that a sink or a reader needs is not installed."""

    def __init__(self, *, user: str, package: str, extra: str) -> None:
        """
        Args:
            user: who needs it, as the reader of the message knows it.

            package: the missing import name.

            extra: the extra of trackperf that brings it.
        """
        super().__init__(
            f"{user} needs the package {package!r}, which is not installed. "
            f'Install it with: pip install "trackperf[{extra}]"'
        )
        self.package = package


class UnavailableError(TrackperfError):
    """
    A tracker cannot be reached, or asks to wait; raised by a sink, on its own thread.

    From a sink with a spool (`trackperf.sink.Remote`), it means: hand me the same again later. Any other
    error means that what was handed over is refused for good.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """
        Args:
            message: what was tried and what came back.

            retry_after_s: seconds that the tracker asked to wait; None when it did not say.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ReadError(TrackperfError):
    """A run cannot be found, or what is there cannot be read."""


def did_you_mean(got: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the name nearest to `got`, else an empty string."""
    near = difflib.get_close_matches(got, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
