"""A sink that somebody else publishes: the example as a script, and the page's sink as a wheel of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path

import pytest
from test_adapters_readme import blocks, plugin

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("custom_sink")]

EXAMPLE = Path(__file__).parents[1] / "examples" / "custom_sink.py"

TRAIN = """
import sys, trackperf
perf = trackperf.init(sink="sqlite", name="digits")
for _ in perf.steps([[1, 2]] * 20, samples=2): pass
perf.finish()
print("torch" in sys.modules)
"""


def said(folder: Path, *command: str, site: Path | None = None) -> str:
    """Run a command in a folder, with what is installed in `site`; return what it printed, of both kinds."""
    added = {"PYTHONPATH": str(site)} if site else {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", "COLUMNS": "200", **added}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def wheel(folder: Path) -> Path:
    """Return a wheel of the page's sink and reader, made from the project file that the page shows."""
    (package := folder / "trackperf_sqlite").mkdir(parents=True)
    (package / "__init__.py").write_text(plugin())
    (folder / "pyproject.toml").write_text(blocks("toml")[0])
    if importlib.util.find_spec("hatchling"):
        said(folder, sys.executable, "-m", "hatchling", "build", "-t", "wheel")
        (made,) = (folder / "dist").glob("*.whl")
        return made
    return zipped(folder)


def zipped(folder: Path) -> Path:
    """Return the wheel, put together by hand: what a build tool leaves where there is none."""
    project = (folder / "pyproject.toml").read_text()
    groups = re.findall(r'entry-points\."(.*?)"\]\n(.*?)\n', project)
    info = "trackperf_sqlite-1.0.dist-info"
    files = {
        "trackperf_sqlite/__init__.py": plugin(),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: trackperf-sqlite\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "".join(
            f"[{group}]\n{line.replace(chr(34), '')}\n" for group, line in groups
        ),
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    made = folder / "trackperf_sqlite-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, content)
    return made


def installed(made: Path, target: Path) -> Path:
    """Let pip install a wheel into a folder, and return the folder."""
    pip = [sys.executable, "-W", "ignore", "-m", "pip", "--disable-pip-version-check"]
    said(made.parent, *pip, "install", "--no-index", "--no-deps", "--target", str(target), str(made))
    return target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that pip has installed the wheel into."""
    folder = tmp_path_factory.mktemp("published")
    return installed(wheel(folder / "source"), folder / "site")


def test_the_example_trains_with_it_and_shows_what_it_has(tmp_path: Path) -> None:
    """The script checks the sink, trains, and reads its numbers with SQL; the run has ended well."""
    printed = said(tmp_path, sys.executable, str(EXAMPLE), "--steps", "30")
    assert "the sink keeps the contract" in printed
    assert re.search(r"step 30  perf/step_ms = [\d.]+", printed), printed
    with closing(sqlite3.connect(tmp_path / "runs" / "perf.sqlite")) as file:
        assert file.execute("SELECT status FROM runs").fetchall() == [("finished",)]
        steps = file.execute("SELECT MAX(step) FROM points WHERE key = 'perf/samples_per_s'").fetchone()
    assert steps == (30,)


def test_its_name_is_listed_with_its_distribution(site: Path, tmp_path: Path) -> None:
    """`trackperf sinks` names the sink, who brings it and that it is ready, beside ours."""
    listed = said(tmp_path, sys.executable, "-m", "trackperf", "sinks", site=site)
    assert re.search(r"^ *sqlite +trackperf-sqlite 1\.0 +ready *$", listed, re.MULTILINE), listed
    assert re.search(r"^ *tensorboard +trackperf ", listed, re.MULTILINE), listed


def test_a_run_goes_there_by_name_and_is_read_back(site: Path, tmp_path: Path) -> None:
    """`init(sink="sqlite")` writes with the installed sink, and `trackperf runs` reads it with its reader."""
    assert said(tmp_path, sys.executable, "-c", TRAIN, site=site).split()[-1] == "False"
    with closing(sqlite3.connect(tmp_path / "runs" / "perf.sqlite")) as file:
        assert file.execute("SELECT name, status FROM runs").fetchall() == [("digits", "finished")]
    listed = said(tmp_path, sys.executable, "-m", "trackperf", "runs", "sqlite:runs", site=site)
    assert "digits" in listed


def test_where_it_is_not_installed_the_message_says_what_is(tmp_path: Path) -> None:
    """The same name without the wheel raises at `init`, with the names that there are."""
    with pytest.raises(AssertionError, match="there is no sink 'sqlite'; installed are: console, jsonl"):
        said(tmp_path, sys.executable, "-c", TRAIN)


def test_a_broken_one_is_said_with_its_distribution(site: Path, tmp_path: Path) -> None:
    """A plug-in that cannot be built raises at `init`, and the message says who brought it."""
    body = f"import trackperf_sqlite as own; del own.SqliteSink.write\n{TRAIN}"
    match = r"the sink 'sqlite' of trackperf-sqlite 1\.0 does not keep to .* `write` is missing"
    with pytest.raises(AssertionError, match=match):
        said(tmp_path, sys.executable, "-c", body, site=site)


def test_the_wheel_made_by_hand_is_as_good(site: Path, tmp_path: Path) -> None:
    """Where there is no build tool, the tests' own wheel brings the same entry points."""
    (tmp_path / "pyproject.toml").write_text(blocks("toml")[0])
    by_hand = installed(zipped(tmp_path), tmp_path / "site")
    found = [
        {(point.group, point.name, point.value) for point in distribution.entry_points}
        for folder in (site, by_hand)
        for distribution in distributions(path=[str(folder)])
    ]
    assert (
        found
        == [
            {
                ("trackperf.sinks", "sqlite", "trackperf_sqlite:SqliteSink"),
                ("trackperf.readers", "sqlite", "trackperf_sqlite:SqliteReader"),
            }
        ]
        * 2
    )
