"""Numbers as people read them, for alerts, advice and verdicts."""

from __future__ import annotations

__all__ = ["count", "duration", "number", "percent"]


def number(value: float) -> str:
    """Return a value with two or three digits that count: `0.042`, `8.4`, `51`, `1 200`."""
    size = abs(value)
    if size >= 99.5:
        return count(value)
    return f"{value:.0f}" if size >= 9.95 else f"{value:.2g}"


def count(value: float) -> str:
    """Return a whole number with its thousands set apart by a space: `216 000`."""
    return f"{value:,.0f}".replace(",", " ")


def percent(value: float) -> str:
    """Return a share or a change in per cent: `34 %`, `3.2 %`."""
    return f"{number(value)} %"


def duration(seconds: float) -> str:
    """
    Return a duration in the unit that reads best: `0.42 ms`, `51 ms`, `1.2 s`, `1 200 s`, `5.6 h`.

    Seconds stand up to two hours, so that times of runs can be compared by eye.
    """
    if abs(seconds) < 0.9995:
        return f"{number(seconds * 1e3)} ms"
    return f"{number(seconds)} s" if abs(seconds) < 7200 else f"{number(seconds / 3600)} h"
