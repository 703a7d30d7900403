"""
A sink of one's own: runs in a SQLite file, to be asked with SQL.

    pip install "trackperf[demo]"
    python examples/custom_sink.py
    sqlite3 runs/perf.sqlite "SELECT step, value FROM points WHERE key = 'perf/step_ms'"

Puts the sink through the contract kit, trains a small network that writes to it, and reads the numbers back.
Takes some ten seconds on a CPU. How to publish such a sink is in adapters/README.md.
"""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import trackperf
from trackperf import Alert, Point, RunInfo, RunSummary, Status
from trackperf.codec import to_json
from trackperf.testing import check_sink

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = 500
BATCH = 64
FEATURES = 256
WIDTH = 1024
CLASSES = 10
RUNS = "runs"

FILE = "perf.sqlite"
TABLES = """
CREATE TABLE IF NOT EXISTS runs (run PRIMARY KEY, name, info, summary, status);
CREATE TABLE IF NOT EXISTS points (run, key, step, wall_time, value, PRIMARY KEY (run, key, step));
CREATE TABLE IF NOT EXISTS alerts (run, step, alert, PRIMARY KEY (run, step, alert));
"""


class SqliteSink:
    """Keeps the runs of a folder in one SQLite file."""

    name = "sqlite"

    def open(self, run: RunInfo) -> None:
        """Begin a run; or go on with it, without what came after the step that it resumes from."""
        Path(run.dir).mkdir(parents=True, exist_ok=True)
        self._run = run.run_id
        self._file = sqlite3.connect(Path(run.dir) / FILE, timeout=30)
        self._file.executescript(TABLES)
        with self._file:
            entry = (run.run_id, run.name, to_json(run))
            self._file.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, NULL, NULL)", entry)
            if run.resume_step is not None:
                kept = (run.run_id, run.resume_step)
                self._file.execute("DELETE FROM points WHERE run = ? AND step > ?", kept)
                self._file.execute("DELETE FROM alerts WHERE run = ? AND step > ?", kept)

    def write(self, points: Sequence[Point]) -> None:
        """Add points: a row for each value."""
        rows = [
            (self._run, key, p.step, p.wall_time, value) for p in points for key, value in p.values.items()
        ]
        with self._file:
            self._file.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)", rows)

    def alert(self, alert: Alert) -> None:
        """Add an alert."""
        with self._file:
            row = (self._run, alert.step, to_json(alert))
            self._file.execute("INSERT OR REPLACE INTO alerts VALUES (?, ?, ?)", row)

    def close(self, summary: RunSummary, status: Status) -> None:
        """Say how the run ended, and let go of the file."""
        with self._file:
            end = (to_json(summary), status.value, self._run)
            self._file.execute("UPDATE runs SET summary = ?, status = ? WHERE run = ?", end)
        self._file.close()


def train(sink: SqliteSink, steps: int, runs: str) -> str:
    """Train for so many steps; return the run's name."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a network gains nothing from more
    data = TensorDataset(torch.randn(steps * BATCH, FEATURES), torch.randint(CLASSES, (steps * BATCH,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters())

    perf = trackperf.init(sink=sink, dir=runs)
    for inputs, labels in perf.steps(loader):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    perf.finish()
    return str(perf.name)


def show(name: str, runs: str) -> None:
    """Print the last value of each headline series of a run."""
    with sqlite3.connect(Path(runs) / FILE) as file:
        question = "SELECT key, MAX(step), value FROM points NATURAL JOIN runs WHERE name = ? GROUP BY key"
        for key, step, value in file.execute(question, (name,)):
            if key.startswith("perf/"):
                print(f"{name}  step {step}  {key} = {value:.4g}")
    file.close()


def main(steps: int, runs: str) -> None:
    """Check the sink, train with it, and read the file."""
    check_sink(SqliteSink)
    print("the sink keeps the contract")
    show(train(SqliteSink(), steps, runs), runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A sink of one's own.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--runs", default=RUNS, help="folder of runs")
    options = parser.parse_args()
    main(options.steps, options.runs)
