"""One line that says how training goes, on a terminal or in a notebook; nothing in a log file."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ProgressLine"]

_EVERY_NS: Final = 250_000_000
_BAR: Final = 20
_GAP: Final = "  "


class _Part(NamedTuple):
    text: str
    worth: int  # what is worth least goes first where the terminal is narrow
    style: str = ""


class ProgressLine:
    """
    Keeps one line up to date: steps, samples a second, share of waiting for data, time gone, time left.

    On a terminal the line is written over itself, four times a second at most; in a notebook one output
    is updated; anywhere else (a file, a pipe, a job's log) nothing is written at all. The cursor is never
    hidden and the user's own output is not caught. It never raises, and where the terminal does not take
    the line at once (it is stopped, gone, or another job's) the line is left out.
    """

    def __init__(
        self,
        *,
        total_steps: int | None,
        stream: TextIO | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """
        Args:
            total_steps: steps of the whole run, where known: brings the bar and the time left.

            stream: the terminal; standard error, or the notebook's output, unless told.

            clock: monotonic time in nanoseconds.
        """
        self._total = total_steps if total_steps and total_steps > 0 else None
        self._clock = clock
        self._start_ns = clock()
        self._first: tuple[int, int] | None = None  # step and time of the first update
        self._shown_ns: int | None = None
        self._state: tuple[int, dict[str, float]] | None = None
        self._lock = threading.Lock()
        self._place: _Place | None = _notebook() if stream is None else None
        if self._place is None:
            self._place = _terminal(sys.stderr if stream is None else stream)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """
        Show where the run stands.

        Args:
            step: finished steps.

            values: of the last window, by the catalogue's keys; what is not in it is not shown.
        """
        if self._place is None:
            return
        with self._lock:
            now = self._clock()
            self._state = (step, dict(values))
            if self._first is None:
                self._first = (step, now)
            if self._shown_ns is None or now - self._shown_ns >= _EVERY_NS:
                self._shown_ns = now
                self._show(now)

    def close(self, final_line: str | None) -> None:
        """Show the last state, end the line, and write `final_line` below it; later calls do nothing."""
        if self._place is None or not self._lock.acquire(timeout=1.0):
            return
        try:
            self._show(self._clock())
            place, self._place = self._place, None
            if place is not None:
                with contextlib.suppress(Exception):  # the terminal may be gone
                    place.end(final_line)
        finally:
            self._lock.release()

    def _show(self, now: int) -> None:
        if self._place is None or self._state is None:
            return
        try:
            self._place.show(self._parts(*self._state, now))
        except Exception:  # noqa: BLE001 - a terminal or a kernel that is gone ends the line, not the training
            self._place = None

    def _parts(self, step: int, values: Mapping[str, float], now: int) -> list[_Part]:
        """Return what the line says, from left to right."""
        parts = []
        if self._total is None:
            parts.append(_Part(f"step {step:,}", 9))
        else:
            share = min(1.0, max(0.0, step / self._total))
            full = int(share * _BAR)
            parts.append(_Part(f"step {step:,}/{self._total:,}", 9))
            parts.append(_Part(f"{100 * share:3.0f}% {'━' * full}{'─' * (_BAR - full)}", 1, "cyan"))
        rate = _rate(values)
        if rate:
            parts.append(_Part(rate, 8, "bold"))
        data = values.get("perf/data_pct")
        if data is not None:
            parts.append(_Part(f"data {data:.1f}%", 7, "yellow" if data > 10 else ""))
        parts.append(_Part(f"{_time((now - self._start_ns) / 1e9)} elapsed", 2, "dim"))
        left = self._left_s(step, values, now)
        if left is not None:
            parts.append(_Part(f"ETA {_time(left)}", 5))
        return parts

    def _left_s(self, step: int, values: Mapping[str, float], now: int) -> float | None:
        """Return the seconds left, by this line's own updates where the run does not tell them yet."""
        if self._total is None:
            return None
        told = values.get("perf_time/eta_s")
        if told is not None and math.isfinite(told):
            return told
        first_step, first_ns = self._first or (step, now)
        if step <= first_step or now <= first_ns:
            return None
        return max(0, self._total - step) * (now - first_ns) / (step - first_step) / 1e9


class _Place(Protocol):
    """Where a line is shown."""

    def show(self, parts: Sequence[_Part]) -> None:
        """Put a line in the place of the one before."""

    def end(self, final_line: str | None) -> None:
        """Leave the line as it is, and put another below it."""


class _Terminal:
    """A line that is written over itself."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415 - only who has a terminal pays for it

        self._stream = stream
        self._fd = stream.fileno()
        self._console = Console(file=stream, force_terminal=True)
        self._written = 0

    def show(self, parts: Sequence[_Part]) -> None:
        from rich.text import Text  # noqa: PLC0415 - as above

        if not self._takes():
            return
        # A line that fills the last column makes some terminals wrap, and every next one start a new line.
        room = max(1, (os.get_terminal_size(self._fd).columns or 80) - 2)
        text = Text(_GAP).join(Text(part.text, part.style) for part in _fitting(parts, room))
        if self._stream.encoding.lower().replace("-", "") not in ("utf8", "utf16", "utf32"):
            text = Text(text.plain.replace("━", "#").replace("─", "."))
        text.truncate(room)
        with self._console.capture() as capture:
            self._console.print(text, end="", no_wrap=True, crop=False, soft_wrap=True)
        dumb = self._console.is_dumb_terminal
        rest = " " * max(1, self._written - text.cell_len) if dumb else " \x1b[K"
        self._put(f"\r{capture.get()}{rest}")
        self._written = text.cell_len

    def end(self, final_line: str | None) -> None:
        if self._takes():
            self._put(("\n" if self._written else "") + (f"{final_line}\n" if final_line else ""))

    def _put(self, text: str) -> None:
        with contextlib.suppress(Exception):  # what the user wrote before goes out before
            self._stream.flush()
        # Past the stream: what a broken terminal did not take must not wait in its buffer for the exit.
        os.write(self._fd, text.encode(self._stream.encoding, "replace"))

    def _takes(self) -> bool:
        """Tell whether the terminal takes a line now; a stopped one would keep the writer waiting."""
        with contextlib.suppress(OSError, AttributeError):
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                return False  # a job in the background may be stopped for writing
        try:
            return bool(select.select([], [self._fd], [], 0)[1])
        except (OSError, ValueError):  # more files than select can tell, or no select for terminals
            return True


class _Notebook:
    """An output that is updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._line = ""

    def show(self, parts: Sequence[_Part]) -> None:
        self._line = _GAP.join(part.text for part in parts)
        self._publish(self._line)

    def end(self, final_line: str | None) -> None:
        lines = [line for line in (self._line, final_line) if line]
        if final_line:
            self._publish("\n".join(lines))

    def _publish(self, text: str) -> None:
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


def _terminal(stream: TextIO | None) -> _Terminal | None:
    try:
        return _Terminal(stream) if stream is not None and stream.isatty() else None
    except Exception:  # noqa: BLE001 - a closed stream is no terminal
        return None


def _notebook() -> _Notebook | None:
    """Return a place in a notebook when this process is its kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return _Notebook() if getattr(shell, "kernel", None) is not None else None


def _fitting(parts: Sequence[_Part], room: int) -> list[_Part]:
    """Return the parts that fit, the most worth ones, in their order."""
    kept = list(parts)
    while len(kept) > 1 and sum(len(part.text) for part in kept) + len(_GAP) * (len(kept) - 1) > room:
        kept.remove(min(kept, key=lambda part: part.worth))
    return kept


def _rate(values: Mapping[str, float]) -> str:
    for key, unit in (("perf/samples_per_s", "samples/s"), ("perf/tokens_per_s", "tokens/s")):
        rate = values.get(key)
        if rate is not None:
            return f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.2f} {unit}"
    step_ms = values.get("perf/step_ms")
    return f"{1000 / step_ms:,.2f} steps/s" if step_ms else ""


def _time(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days} d {hour}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"
