"""The public surface, what importing it does, and the documents that describe it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trackperf
from trackperf.metrics import CATALOGUE, HEADLINE, QUESTIONS, full_key

ROOT = Path(__file__).parents[1]

PUBLIC = {
    "Alert",
    "Collector",
    "Comparison",
    "ConfigError",
    "MissingDependencyError",
    "NotAvailableError",
    "Point",
    "ReadError",
    "RunHistory",
    "RunInfo",
    "RunRow",
    "RunSummary",
    "Sink",
    "SinkError",
    "Stat",
    "Status",
    "TrackperfError",
    "compare",
    "diagnose",
    "init",
    "runs",
    "tune_loader",
}


class TestSurface:
    """Small and deliberate."""

    def test_all(self) -> None:
        """The public names are these, sorted, importable and documented, and nothing else is public."""
        assert set(trackperf.__all__) == PUBLIC
        assert trackperf.__all__ == sorted(trackperf.__all__)
        for name in trackperf.__all__:
            assert inspect.getdoc(getattr(trackperf, name)), name
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            trackperf.nothing  # noqa: B018

    def test_compare_stays_a_function(self) -> None:
        """No module of the package takes the place of a public function."""
        for path in (ROOT / "trackperf").rglob("*.py"):
            if path.stem != "__main__":
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name in ("compare", "diagnose", "init", "runs", "tune_loader"):
            assert inspect.isfunction(getattr(trackperf, name)), name

    def test_collector(self) -> None:
        """The methods of a run are these, each documented."""
        public = {name for name in vars(trackperf.Collector) if not name.startswith("_")}
        assert public == {
            "alerts",
            "count_flops",
            "data",
            "enabled",
            "finish",
            "flush",
            "load_state_dict",
            "name",
            "observe",
            "phase",
            "state_dict",
            "step",
            "steps",
            "summary",
            "transfer",
        }
        assert all(inspect.getdoc(getattr(trackperf.Collector, name)) for name in public)

    def test_version(self) -> None:
        """The version is the distribution's."""
        assert trackperf.__version__.count(".") == 2


class TestImport:
    """Importing is free."""

    def test_nothing_heavy(self) -> None:
        """`import trackperf` imports no torch, no tracker, no NumPy, and starts no thread."""
        code = (
            "import sys, threading, trackperf; "
            "heavy = {'torch', 'numpy', 'tensorboard', 'pandas', 'rich', 'typer', 'psutil', 'pynvml', "
            "'wandb', 'mlflow', 'filelock', 'trackperf_tensorboard'}; "
            "print(sorted(heavy & set(sys.modules)), threading.active_count())"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert out.stdout == "[] 1\n"

    def test_a_readers_question_imports_no_other_tracker(self, tmp_path: Path) -> None:
        """Runs in local files are found and read without MLflow and W&B, which take seconds to import."""
        code = (
            "import sys, trackperf\n"
            "from trackperf.registry import find_runs, read_run\n"
            "perf = trackperf.init(sink='jsonl', name='a')\n"
            "for _ in perf.steps([1, 2], samples=1): pass\n"
            "perf.finish()\n"
            "read_run('runs/a')\n"
            "print(find_runs('runs'), find_runs('nothing'), sorted({'mlflow', 'wandb'} & set(sys.modules)))"
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        out = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=environ,
        )
        assert out.stdout == "['jsonl:runs/a'] [] []\n"

    def test_a_run_imports_no_torch(self, tmp_path: Path) -> None:
        """A run whose script has no torch brings none in, and neither does the TensorBoard sink."""
        code = (
            "import sys, trackperf\n"
            "perf = trackperf.init()\n"
            "for _ in perf.steps([1, 2], samples=1): pass\n"
            "perf.finish()\n"
            "print(sorted({'torch', 'tensorflow', 'pandas'} & set(sys.modules)))"
        )
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert out.stdout == "[]\n"


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports at its top level or anywhere else."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


class TestLayers:
    """Who may import whom."""

    LOW = ("record", "errors")
    MIDDLE = ("metrics", "sink", "history", "names", "text")
    TOP = ("trackperf.collector", "trackperf.reporter", "trackperf.run", "trackperf.cli", "trackperf.demo")

    def test_core_imports_no_adapter_and_no_tracker(self) -> None:
        """The core knows adapters by entry-point names only."""
        for path in (ROOT / "trackperf").rglob("*.py"):
            for name in imports(path):
                assert not name.startswith(("trackperf_", "tensorboard", "wandb", "mlflow")), (path, name)

    def test_adapters_import_the_core_and_one_tracker(self) -> None:
        """An adapter imports no other adapter, and nothing of the core that measures."""
        for path in (ROOT / "adapters").rglob("*.py"):
            own = path.parent.name
            for name in imports(path):
                assert not name.startswith("trackperf_") or name.startswith(own), (path, name)
                assert not name.startswith((*self.TOP, "trackperf.timing", "trackperf.delivery")), (
                    path,
                    name,
                )

    def test_layers(self) -> None:
        """Records and errors import nothing of ours; the middle only them; timing nothing above it."""
        core = ROOT / "trackperf"
        for stem in self.LOW:
            assert not any(name.startswith("trackperf") for name in imports(core / f"{stem}.py"))
        for stem in self.MIDDLE:
            for name in imports(core / f"{stem}.py"):
                if name.startswith("trackperf."):
                    assert name.removeprefix("trackperf.") in (*self.LOW, *self.MIDDLE), (stem, name)
        for room in ("timing", "devices", "delivery"):
            for path in (core / room).glob("*.py"):
                for name in imports(path):
                    assert not name.startswith(self.TOP), (path, name)

    def test_no_file_is_too_long(self) -> None:
        """Files stay short enough to be read in one go."""
        for folder in ("trackperf", "adapters"):
            for path in (ROOT / folder).rglob("*.py"):
                assert len(path.read_text().splitlines()) <= 400, path


class TestCatalogue:
    """Each series is described once."""

    def test_keys(self) -> None:
        """Keys are lower case, carry their unit where they have one, and begin with the prefix."""
        units = {"%": "_pct", "ms": "_ms", "s": "_s", "GiB": "_gib", "1/s": "_per_s"}
        for key, metric in CATALOGUE.items():
            assert key == metric.key
            assert metric.meaning.endswith(".")
            assert metric.unit not in units or key.endswith(units[metric.unit]), key
            assert full_key(key, "speed").startswith("speed")

    def test_headline(self) -> None:
        """The headline section answers five questions."""
        assert all(metric.key.startswith("perf/") for metric in HEADLINE)
        assert {metric.question for metric in HEADLINE} == set(QUESTIONS)
        for question in QUESTIONS:
            shown = [metric for metric in HEADLINE if metric.question == question and metric.dashboard]
            assert len({metric.unit for metric in shown}) == 1

    def test_readme(self) -> None:
        """The README's table is the catalogue."""
        from readme_table import table

        assert table() in (ROOT / "README.md").read_text()
