"""What is asked of a device, how it went, and what follows: never again, later, or at the next poll."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Code", "Counter", "CounterFacts", "DriverError", "State"]

State: TypeAlias = Literal["unasked", "ok", "unsupported", "denied", "transient"]
"""How it is with a counter: `transient` is any failure that may pass."""

T = TypeVar("T")

_log: Final = logging.getLogger("trackperf")
_FIRST_NS: Final = 2_000_000_000
_LONGEST_NS: Final = 60_000_000_000


class Code(enum.IntEnum):
    """Codes of the driver that are told apart."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


_NEVER: Final = (
    Code.INVALID_ARGUMENT,
    Code.NOT_SUPPORTED,
    Code.FUNCTION_NOT_FOUND,
    Code.ARGUMENT_VERSION_MISMATCH,
)
_WHOLE_DEVICE: Final = (Code.UNINITIALIZED, Code.GPU_IS_LOST, Code.RESET_REQUIRED)


class DriverError(Exception):
    """The driver did not do what it was asked for."""

    def __init__(self, code: int, text: str, function: str) -> None:
        """
        Args:
            code: the driver's code.

            text: what the driver says of it.

            function: the function that failed.
        """
        super().__init__(f"{text} ({function})")
        self.code = code
        self.text = text
        self.function = function

    @property
    def of_device(self) -> bool:
        """Whether nothing else of the device will answer either."""
        return self.code in _WHOLE_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFacts:
    """How it is with one counter of one device."""

    state: State
    reason: str = ""
    """Why it is not `ok`; or what is doubtful about it."""

    rejected: int = 0
    """Values that could not be true, and were not used."""


class Counter:
    """
    One thing that is asked of one device.

    What the device does not have is asked once; what fails otherwise is asked again after 2 s, then after
    twice that, up to a minute. Each counter complains once: at level INFO of what there is not, as a warning
    of what somebody may be able to put right.
    """

    def __init__(self, name: str, device: str, *, quiet: bool = False) -> None:
        """
        Args:
            name: what is asked, as a message calls it.

            device: of what, as a message calls it; empty where the name says it all.

            quiet: whether another counter stands in for it, so that nobody need be told.
        """
        self.name = name
        self.device = device
        self.state: State = "unasked"
        self.reason = ""
        self.rejected = 0
        self.quiet = quiet
        self._wait_ns = _FIRST_NS
        self._retry_ns: int | None = None
        self._told: set[str] = set()

    @property
    def facts(self) -> CounterFacts:
        """How it is now."""
        return CounterFacts(state=self.state, reason=self.reason, rejected=self.rejected)

    def due(self, now_ns: int) -> bool:
        """Return whether it may be asked now."""
        if self.state == "unsupported":
            return False
        return self._retry_ns is None or now_ns >= self._retry_ns

    def ask(self, now_ns: int, call: Callable[[], T]) -> T | None:
        """
        Return what a call gives, or None when it fails or need not be tried.

        Args:
            now_ns: monotonic time.

            call: asks the driver.

        Raises:
            DriverError: the device as a whole does not answer any more.
        """
        if not self.due(now_ns):
            return None
        try:
            value = call()
        except DriverError as error:
            if error.of_device:
                raise
            self.failed(error, now_ns)
            return None
        self.answered()
        return value

    def answered(self) -> None:
        """Note that it works."""
        if self.state in {"denied", "transient"}:
            self._tell("back", logging.INFO, "answers again")
        if self.state != "ok":
            self.state, self.reason, self._wait_ns, self._retry_ns = "ok", "", _FIRST_NS, None

    def failed(self, error: DriverError, now_ns: int) -> None:
        """Note a failure, and when to try again."""
        if error.code in _NEVER and self.state in {"unasked", "unsupported"}:
            self.give_up(_why_never(error))
            return
        denied = error.code == Code.NO_PERMISSION
        self.state = "denied" if denied else "transient"
        text = f"{error.text} ({error.function})"
        self.reason = f"no permission: {text}" if denied else f"the driver did not answer: {text}"
        self._retry_ns = now_ns + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, _LONGEST_NS)
        if not self.quiet:
            self.say()

    def give_up(self, reason: str, level: int = logging.INFO) -> None:
        """
        Note that it is not there, and need not be asked again.

        Args:
            reason: why.

            level: how loud to say so.
        """
        self.state, self.reason = "unsupported", reason
        if not self.quiet:
            self.say(level)

    def say(self, level: int = logging.INFO) -> None:
        """
        Say, if it was not said before, that it does not answer.

        Args:
            level: how loud, where it is not there at all.
        """
        if self.state == "unsupported":
            self._tell("never", level, f"is absent: {self.reason}")
        elif self.state in {"denied", "transient"}:
            self._tell("failed", logging.WARNING, f"cannot be read for now; {self.reason}")

    def doubt(self, reason: str) -> None:
        """Note what is odd about values that are used all the same."""
        if self.state == "ok":
            self.reason = reason
        self._tell("doubt", logging.WARNING, f"is doubtful: {reason}")

    def reject(self, value: float) -> None:
        """Count a value that cannot be true."""
        self.rejected += 1
        self._tell("rejected", logging.WARNING, f"was given as {value:g}: such values are counted, not used")

    def _tell(self, what: str, level: int, text: str) -> None:
        if what in self._told or (what == "back" and "failed" not in self._told):
            return
        self._told.add(what)
        subject = f"{self.name} of {self.device}" if self.device else self.name
        _log.log(level, "trackperf: %s %s", subject, text)


def _why_never(error: DriverError) -> str:
    if error.code in {Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH}:
        return f"the driver or nvidia-ml-py is too old for it ({error.function})"
    return f"the driver does not report it for this device ({error.text})"
