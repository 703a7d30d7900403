"""
What trackperf costs, beside others and against its floors: `python tests/benchmarks/bench.py`.

Prints tables and writes `bench-results.json`. Takes about five minutes on two CPUs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.gpu_sampler import gpu_readings
from benchmarks.memory import long_runs
from benchmarks.mlflow_rate import drain_into_mlflow
from benchmarks.reading import read_values
from benchmarks.report import Report, machine
from benchmarks.rows import Sizes
from benchmarks.step import late_steps, step_costs
from benchmarks.whole import all_in
from benchmarks.writing import write_values
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "measure"]


def measure(sizes: Sizes, folder: Path, *, peer_late: int = 20_000) -> Report:
    """
    Measure everything.

    Args:
        sizes: how much.

        folder: where runs may write.

        peer_late: see `step.late_steps`.
    """
    report = Report(machine=machine())
    one_logger = step_costs(report, folder, sizes)
    all_in(report, folder, sizes)
    write_values(report, folder, sizes)
    read_values(report, folder, sizes)
    drain_into_mlflow(report, folder, sizes)
    long_runs(report, sizes)
    gpu_readings(report, sizes)
    # The last: it fills this process's memory with another package's objects.
    late_steps(report, folder, sizes, one_logger, peer_late)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 when `--check` is given and a floor is missed."""
    parser = argparse.ArgumentParser(
        description="What trackperf costs, beside others and against its floors."
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"), help="where the results go")
    parser.add_argument("--repeats", type=int, default=12, help="repeats of each row")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of steps and points")
    parser.add_argument(
        "--peer-late",
        type=int,
        default=20_000,
        help="late step of nv-one-logger; 200000 takes ten minutes and more",
    )
    given = parser.parse_args(arguments)
    logging.getLogger("trackperf").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        sizes = Sizes(repeats=given.repeats, scale=given.scale)
        report = measure(sizes, Path(folder), peer_late=given.peer_late)
    given.json.write_text(json.dumps(report.as_mapping(), indent=2) + "\n")
    if given.markdown:
        print(report.as_markdown(), end="")
    else:
        report.print(Console())
    return 1 if given.check and not report.ok else 0


if __name__ == "__main__":
    sys.exit(main())
