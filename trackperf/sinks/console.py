"""A line a point on the terminal, for runs that somebody watches and for jobs whose log is all there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from trackperf.metrics import full_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from trackperf.record import Alert, Point, RunInfo, RunSummary, Status

__all__ = ["ConsoleSink"]


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


_COLUMNS: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    ("perf/samples_per_s", "{:,.1f} samples/s".format),
    ("perf/tokens_per_s", "{:,.0f} tokens/s".format),
    ("perf/step_ms", "{:,.1f} ms/step".format),
    ("perf/gpu_util_pct", "gpu {:.0f} %".format),
    ("perf/mem_bw_pct", "memory bandwidth {:.0f} %".format),
    ("perf/data_pct", "data {:.1f} %".format),
    ("perf/train_s", lambda seconds: f"trained {_clock_time(seconds)}"),
)

_SUMMARY: Final = _COLUMNS[:-1]
_OWN_VALUES: Final = 3


class ConsoleSink:
    """
    Writes a short line for each point and alert, and a few at the end.

    Colours appear on a terminal only; a file or a pipe gets plain text.
    """

    name = "console"
    """Name of the sink."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """
        Args:
            stream: where the lines go; whatever `sys.stderr` is at that moment when not given.
        """
        self._stream = stream
        self._console: Console | None = None
        self._prefix = "perf"
        self._names: Mapping[str, str] = {}

    def open(self, run: RunInfo) -> None:
        """Say which run it is."""
        from rich.console import Console  # noqa: PLC0415 - a tenth of a second, for this sink alone

        self._console = Console(
            file=self._stream,
            stderr=self._stream is None,
            force_jupyter=False,
            highlight=False,
            soft_wrap=True,
        )
        self._prefix, self._names = run.prefix, run.names
        going_on = "" if run.resume_step is None else f", going on after step {run.resume_step}"
        self._say(f"trackperf: run {run.name}{going_on}")

    def write(self, points: Sequence[Point]) -> None:
        """Write a line for each point, of the headline values that it has."""
        for point in points:
            parts = self._parts(point.values, _COLUMNS) + self._own(point.values)
            self._say("  ".join([f"step {point.step}", *parts]))

    def alert(self, alert: Alert) -> None:
        """Write a highlighted line with cause and advice."""
        if alert.state == "cleared":
            self._say(f"[ok] step {alert.step} {alert.rule}: over. {alert.cause}", "green")
            return
        style = "bold yellow" if alert.level == "warning" else "cyan"
        self._say(f"[{alert.level}] step {alert.step} {alert.rule}: {alert.cause} {alert.advice}", style)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Write the summary: the headline's medians over the steady windows."""
        medians = {key: stat.p50 for key, stat in summary.metrics.items()}
        samples = "" if summary.samples is None else f", {summary.samples} samples"
        train = f", {_clock_time(summary.train_s)} of training"
        self._say(f"trackperf: {status.value} after {summary.steps} steps{samples}{train}", "bold")
        if parts := self._parts(medians, _SUMMARY):
            self._say("  ".join(["median:", *parts]))
        for kind, lost in sorted(summary.dropped.items()):
            self._say(f"lost: {lost} {kind}", "yellow")

    def _parts(
        self, values: Mapping[str, float], columns: Sequence[tuple[str, Callable[[float], str]]]
    ) -> list[str]:
        keyed = ((full_key(key, self._prefix), text) for key, text in columns)
        return [text(values[key]) for key, text in keyed if key in values]

    def _own(self, values: Mapping[str, float]) -> list[str]:
        """Return the first few of the user's own values: all that is in no section of ours."""
        ours = (f"{self._prefix}/", f"{self._prefix}_")
        own = [key for key in values if not key.startswith(ours)]
        return [f"{self._names.get(key, key)} {values[key]:.6g}" for key in own[:_OWN_VALUES]]

    def _say(self, line: str, style: str | None = None) -> None:
        if self._console is None:
            return
        # One line whatever is in it: a name or a cause must not break the log or steer the terminal.
        plain = "".join(letter if letter.isprintable() else " " for letter in line)
        self._console.print(plain.rstrip(), style=style, markup=False, emoji=False)
