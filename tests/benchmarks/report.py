"""What came out: figures, floors, what was left out; as a table, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.table import Table

from trackperf import environment

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Figure", "Floor", "Report", "machine"]

_PEERS: Final = (
    "torch",
    "tensorboard",
    "numpy",
    "pytorch-lightning",
    "traceml-ai",
    "nv-one-logger-training-telemetry",
    "tbparse",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Something that was measured."""

    section: str
    row: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Something that has to hold."""

    row: str
    value: float
    limit: float
    unit: str
    side: Literal["at most", "at least"]

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return self.value <= self.limit if self.side == "at most" else self.value >= self.limit

    @property
    def verdict(self) -> str:
        """`ok` or `MISSED`."""
        return "ok" if self.ok else "MISSED"


@dataclass(slots=True)
class Report:
    """Collects what is measured."""

    machine: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What was not measured, and why."""

    def figure(self, section: str, row: str, value: float, unit: str) -> None:
        """Take a figure."""
        self.figures.append(Figure(section=section, row=row, value=value, unit=unit))

    def at_most(self, row: str, value: float, limit: float, unit: str) -> None:
        """Take a floor that is kept from above."""
        self.floors.append(Floor(row=row, value=value, limit=limit, unit=unit, side="at most"))

    def at_least(self, row: str, value: float, limit: float, unit: str) -> None:
        """Take a floor that is kept from below."""
        self.floors.append(Floor(row=row, value=value, limit=limit, unit=unit, side="at least"))

    @property
    def ok(self) -> bool:
        """Whether all floors hold."""
        return all(floor.ok for floor in self.floors)

    def as_mapping(self) -> dict[str, Any]:
        """Return everything as JSON can carry it."""
        return {
            "machine": self.machine,
            "figures": [dataclasses.asdict(figure) for figure in self.figures],
            "floors": [{**dataclasses.asdict(floor), "ok": floor.ok} for floor in self.floors],
            "skipped": self.skipped,
        }

    def print(self, console: Console) -> None:
        """Print the tables."""
        console.print(_sentence(self.machine), highlight=False)
        for title, head, rows in self._tables():
            table = Table(title=title, title_justify="left")
            for place, column in enumerate(head):
                table.add_column(column, justify="left" if place == 0 else "right")
            for row in rows:
                table.add_row(*row, style="bold red" if row[-1] == "MISSED" else None)
            console.print(table)
        for line in self.skipped:
            console.print(f"left out: {line}", highlight=False)

    def as_markdown(self) -> str:
        """Return the tables as a README shows them."""
        lines = [_sentence(self.machine)]
        for title, head, rows in self._tables():
            rule = ["---", *["---:"] * (len(head) - 1)]
            lines += ["", f"**{title}**", ""]
            lines += [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
        lines += ["", *(f"Left out: {line}." for line in self.skipped)]
        return "\n".join(lines).rstrip() + "\n"

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables = []
        for section in dict.fromkeys(figure.section for figure in self.figures):
            rows = [[f.row, _told(f.value, f.unit)] for f in self.figures if f.section == section]
            tables.append((section, ["", "median"], rows))
        floors = [
            [f.row, _told(f.value, f.unit), f"{f.side} {_told(f.limit, f.unit)}", f.verdict]
            for f in self.floors
        ]
        return [*tables, ("Floors", ["", "measured", "floor", ""], floors)]


def machine() -> dict[str, str]:
    """Return what the numbers depend on: the processor and the versions; never a host's name."""
    facts = environment.facts()
    told = {"cpu": str(facts.get("cpu", platform.machine())), "cpus": f"{facts.get('cpus', '?'):g}"}
    told["python"] = platform.python_version()
    return told | {name: version for name in _PEERS if (version := _version(name))}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _sentence(told: dict[str, str]) -> str:
    rest = {name: version for name, version in told.items() if name not in ("cpu", "cpus")}
    software = ", ".join(f"{name} {version}" for name, version in rest.items())
    return f"{told.get('cpu', '?')}, {told.get('cpus', '?')} CPUs; {software}."


def _told(value: float, unit: str) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f} {unit}".replace(",", " ")
    return f"{value:.{2 if abs(value) < 10 else 1}f} {unit}"
