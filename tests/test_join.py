"""Windows wait for the device's times of their own batches, which come in pieces and late."""

from __future__ import annotations

from trackperf.timing.join import DeviceJoin
from trackperf.timing.windows import Totals, Window


def window(start_ns: int) -> Window:
    """Return a window of ten batches, one every 10 ns."""
    return Window(
        phase="train", start_ns=start_ns, end_ns=start_ns + 100, totals=Totals(), steps=10, batches=10
    )


def times(first_ns: int, batches: int) -> list[float]:
    """Return times of batches: 2 ns exposed, 8 ns in all, a copy of 1 ns each."""
    return [number for place in range(batches) for number in (first_ns + 10 * place, 2e-6, 6e-6, 1e-6)]


def test_times_in_pieces_add_up() -> None:
    """A window whose times come in three pieces is held until the last, and holds the sum of all."""
    join = DeviceJoin()
    first = window(0)
    assert join.feed([first], times(0, 4), active=True) == []
    assert join.feed([], times(40, 3), active=True) == []
    assert join.feed([], times(70, 3), active=True) == [first]
    assert (first.device_batches, first.exposed_ns, first.device_ns) == (10, 20, 80)
    assert (first.copied_batches, first.copied_ns) == (10, 10)


def test_times_before_their_window() -> None:
    """Times that come before their window closes wait for it."""
    join = DeviceJoin()
    assert join.feed([], times(0, 10), active=True) == []
    first = window(0)
    assert join.feed([first], [], active=True) == [first]
    assert first.exposed_ns == 20


def test_a_clock_that_has_run_for_a_year() -> None:
    """Moments further from zero than a float tells to the nanosecond fall into the windows they belong to."""
    year_ns = 365 * 24 * 3600 * 10**9 + 1
    join = DeviceJoin()
    first, second = window(year_ns), window(year_ns + 100)
    assert join.feed([first, second], times(year_ns, 20), active=True) == [first, second]
    assert (first.device_batches, second.device_batches) == (10, 10)


def test_a_window_waits_for_three_more_at_most() -> None:
    """Times that never come hold a window no longer than three windows; what comes after is counted."""
    join = DeviceJoin()
    windows = [window(100 * place) for place in range(4)]
    assert join.feed(windows[:3], [], active=True) == []
    assert join.feed(windows[3:], [], active=True) == windows[:1]
    assert join.feed([], times(0, 10), active=True) == []
    assert join.late == 10
    assert join.feed([], [], active=True, final=True) == windows[1:]


def test_without_a_device_windows_pass() -> None:
    """Where no device is timed nothing is held back."""
    first = window(0)
    assert DeviceJoin().feed([first], [], active=False) == [first]
