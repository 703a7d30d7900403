"""Runs, comparisons and sinks as tables for a terminal. What is absent is a dash, never a zero."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from trackperf.metrics import CATALOGUE, HEADLINE, QUESTIONS, full_key
from trackperf.registry import SinkEntry
from trackperf.text import count, duration, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from trackperf import Comparison, RunHistory, RunRow
    from trackperf.comparison import ComparisonRow

__all__ = [
    "ABSENT",
    "absent_lines",
    "absent_of",
    "comparison_table",
    "comparison_view",
    "console",
    "doctor_view",
    "figure",
    "runs_table",
    "sinks_table",
    "verdict_line",
]

ABSENT: Final = "–"  # noqa: RUF001 - as in printed tables
"""What stands for a value that was not measured."""

_WIDE: Final = 200
"""Columns where no terminal sets a limit: a line in a file or a pipe is not folded."""

_STYLES: Final = {"better": "green", "worse": "red", "same": "dim", "absent": "dim"}


def console(*, stderr: bool = False) -> Console:
    """Return a console that folds nothing where its output is no terminal."""
    made = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not made.is_terminal:
        made.width = _WIDE
    return made


def figure(value: float | None, *, whole: bool = False) -> str:
    """Return a value with three digits that count: `0.0421`, `8.43`, `51.2`, `1 200`; a dash for None."""
    if value is None:
        return ABSENT
    size = abs(value)
    if whole or size >= 99.95 or value == 0:
        return count(value)
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.9995 else f"{value:.3g}"


def runs_table(rows: Sequence[RunRow], address: str) -> RenderableType:
    """
    Return a table of runs, with what is wrong with their data below it.

    Args:
        rows: the runs.

        address: what was looked through; runs below it are named by their place.
    """
    table = _table("run", "began", "steps", "samples/s", "step ms", "GPU %", "data %", "training", "alerts")
    table.add_column("status")
    for row in rows:
        table.add_row(
            _place(row, address),
            _date(row.started_at),
            ABSENT if row.steps is None else count(row.steps),
            figure(row.samples_per_s),
            figure(row.step_ms),
            figure(row.gpu_util_pct),
            figure(row.data_pct),
            _training(row),
            _alerts(row.alerts),
            Text(row.status, "dim" if row.status == "finished" else "yellow"),
        )
    problems = [f"{_place(row, address)}: {problem}" for row in rows for problem in row.problems]
    return Group(table, *(Text(problem, "yellow") for problem in problems))


def comparison_table(comparison: Comparison) -> Table:
    """Return both runs' medians side by side, each of the five questions with a row at least."""
    table = _table("", comparison.a, comparison.b, "change")
    table.add_column("")
    for row in _told(comparison.rows):
        change = ABSENT if row.change_pct is None else f"{row.change_pct:+.1f} %"
        style = _STYLES.get(row.judgement, "")
        judged = "" if row.judgement in ("absent", "neutral") else row.judgement
        title = row.title if row.unit in ("1", "1/s") else f"{row.title} ({row.unit})"
        a, b = (figure(value, whole=row.unit == "1") for value in (row.a, row.b))
        table.add_row(title, a, b, Text(change, style), Text(judged, style))
    return table


def comparison_view(comparison: Comparison, absent: Mapping[str, str]) -> RenderableType:
    """
    Return a whole comparison: the table, what is absent and why, differences, notes, and the verdict.

    Args:
        comparison: the two runs.

        absent: reasons by catalogue key.
    """
    missing = {row.key for row in comparison.rows if row.a is None and row.b is None}
    parts: list[RenderableType] = [comparison_table(comparison), *absent_lines(absent, missing)]
    for title, lines in (("Differences", comparison.differences), ("Notes", comparison.notes)):
        if lines:
            parts += [Text(f"\n{title}", "bold"), *(Text(f"  {line}") for line in lines)]
    return Group(*parts, Text(), verdict_line(comparison))


def verdict_line(comparison: Comparison) -> Text:
    """Return the verdict's sentence, in the colour of the verdict."""
    return Text(comparison.sentence, f"bold {_STYLES.get(comparison.verdict, 'yellow')}")


def absent_lines(absent: Mapping[str, str], keys: Iterable[str]) -> list[Text]:
    """
    Return a line for each reason why series are absent.

    Args:
        absent: reasons by catalogue key.

        keys: the series that are told about.
    """
    wanted = set(keys)
    titles: dict[str, list[str]] = {}
    for key, reason in absent.items():
        if key in wanted and key in CATALOGUE:
            titles.setdefault(reason, []).append(CATALOGUE[key].title)
    return [Text(f"{ABSENT} {', '.join(names)}: {reason}", "dim") for reason, names in titles.items()]


def absent_of(history: RunHistory) -> dict[str, str]:
    """Return a run's reasons by catalogue key, whatever prefix it was written with."""
    if history.info is None:
        return {}
    catalogue = {full_key(key, history.info.prefix): key for key in CATALOGUE}
    return {catalogue.get(key, key): reason for key, reason in history.info.absent.items()}


def sinks_table(entries: Sequence[SinkEntry]) -> Table:
    """Return a table of sinks, with the line that installs what one lacks."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("sink", "comes with", "state"):
        table.add_column(title, overflow="fold")
    for entry in entries:
        table.add_row(entry.name, entry.distribution, _state(entry))
    return table


def doctor_view(found: Mapping[str, Any]) -> RenderableType:
    """Return what `doctor.examine` found, on one screen."""
    machine, host, packages = found["machine"], found["host"], found["packages"]
    grid = Table.grid(padding=(0, 2))
    python, system = machine.get("python"), machine.get("platform")
    grid.add_row("trackperf", f"{machine.get('trackperf', ABSENT)} on Python {python}, {system}")
    cpus = number(machine["cpus"]) if "cpus" in machine else ABSENT
    grid.add_row("CPU", f"{machine.get('cpu', ABSENT)}: this process may use {cpus}")
    grid.add_row("memory", f"{figure(machine.get('memory_gib'))} GiB that this process may use")
    for gpu in found["gpus"]:
        grid.add_row(f"GPU {gpu['index']}", _gpu(gpu))
    if not found["gpus"]:
        grid.add_row("GPU", machine.get("gpu") or Text("none that this process can see", "dim"))
    grid.add_row("torch", _torch(packages["torch"], beside_gpu=bool(found["gpus"])))
    missing = Text('not installed: pip install "trackperf[tensorboard]"', "yellow")
    opens = f"{packages['tensorboard']}, opens with: {found['tensorboard']} --logdir runs"
    grid.add_row("TensorBoard", opens if found["tensorboard"] else missing)
    readings = ", ".join(CATALOGUE[key].title for key in host)
    grid.add_row("host", f"{readings}: readable" if host else Text("no readings", "yellow"))
    return Group(grid, _series_table(found), sinks_table([SinkEntry(**entry) for entry in found["sinks"]]))


def _torch(version: str | None, *, beside_gpu: bool) -> str | Text:
    """Return torch's version, and whether it leaves the machine's GPU alone."""
    if version is None:
        return Text('not installed: pip install "torch"', "yellow")
    if beside_gpu and version.endswith("+cpu"):
        unused = "built without CUDA: a run with it uses no GPU, and reads none but those of init(devices=)"
        return Text(f"{version}: {unused}", "yellow")
    return version


def _gpu(gpu: Mapping[str, Any]) -> Text:
    """Return what a GPU is, how it was found, and what it does not tell, with the reasons."""
    told = Text(gpu["name"])
    facts = [
        f"{gpu['memory_gib']:.0f} GiB" if gpu["memory_gib"] else "",
        f"peak {number(gpu['peak_bandwidth_gb_s'])} GB/s" if gpu["peak_bandwidth_gb_s"] else "",
        f"compute {gpu['compute_capability']}" if gpu["compute_capability"] else "",
        f"driver {gpu['driver']}" if gpu["driver"] else "",
        f"found by {gpu['match']}" if gpu["match"] else "",
        "GPM" if gpu["gpm"] else "no GPM",
        "MIG" if gpu["mig"] else "",
    ]
    told.append(f": {', '.join(fact for fact in facts if fact)}", "dim")
    silent: dict[str, list[str]] = {}
    for key, counter in gpu["counters"].items():
        if counter["state"] != "ok":
            silent.setdefault(f"{counter['state']}: {counter['reason']}", []).append(key)
    for reason, keys in silent.items():
        told.append(f"\n  not {', '.join(keys)} ({reason})", "yellow")
    if gpu["state"]["state"] != "ok":
        told.append(f"\n  {gpu['state']['state']}: {gpu['state']['reason']}", "yellow")
    return told


def _series_table(found: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("question", "number", "measured here"):
        table.add_column(title, overflow="fold")
    for question in QUESTIONS:
        metrics = [metric for metric in HEADLINE if metric.question == question]
        for metric in metrics:
            reason = found["absent"].get(metric.key)
            told = Text(f"no: {reason}", "yellow") if reason else found["measured"].get(metric.key, "yes")
            table.add_row(question if metric is metrics[0] else "", metric.title, told)
    return table


def _state(entry: SinkEntry) -> Text:
    """Return whether a sink can be used, and else what to install."""
    if entry.importable:
        return Text("ready", "green")
    if not entry.missing:
        return Text("broken: its module is not there", "red")
    line = f'pip install "{entry.distribution.split(" ")[0]}[{entry.name}]"'
    return Text(f"needs {', '.join(entry.missing)}: {line}", "yellow")


def _table(*titles: str) -> Table:
    """Return a table whose first column is text and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        numeric = title not in (titles[0], "began")
        table.add_column(Text(title), justify="right" if numeric else "left", overflow="fold")
    return table


def _told(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return the rows that at least one run has, and one of each question that neither can answer."""
    present = [row for row in rows if row.a is not None or row.b is not None]
    answered = {CATALOGUE[row.key].question for row in present}
    for question in QUESTIONS:
        if question not in answered:
            present += [row for row in rows if CATALOGUE[row.key].question == question][:1]
    return present


def _place(row: RunRow, address: str) -> str:
    """Return where a run is below the address that was asked for: names alone may be there twice."""
    reader, colon, rest = row.source.partition(":")
    path, asked = Path(rest if colon else reader), address.removeprefix(f"{reader}:")
    below = bool(asked) and path != Path(asked) and path.is_relative_to(asked)
    return str(path.relative_to(asked)) if below else row.name


def _training(row: RunRow) -> str:
    if row.train_s is None:
        return ABSENT
    redone = f" (+{duration(row.redone_s)} redone)" if row.redone_s else ""
    return f"{duration(row.train_s)}{redone}"


def _alerts(alerts: int | None) -> Text:
    return Text(ABSENT if alerts is None else str(alerts), "yellow" if alerts else "")


def _date(seconds: float | None) -> str:
    return ABSENT if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
