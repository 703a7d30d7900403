"""The registry, over real distributions laid out in a folder on the import path."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from trackperf.errors import MissingDependencyError, ReadError, SinkError
from trackperf.record import Point, RunInfo, RunSummary, Status
from trackperf.registry import faults_of_sink, find_runs, load_sink, read_run, sink_names
from trackperf.sinks.jsonl import JsonlSink
from trackperf.testing import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

Install = Callable[..., None]

GOOD = """
    class Good:
        name = "good"
        def open(self, run): ...
        def write(self, points): ...
        def alert(self, alert): ...
        def close(self, summary, status): ...
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Give a function that installs a distribution with one module, its entry points and requirements."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def put(dist: str, module: str, code: str, entries: str, requires: tuple[str, ...] = ()) -> None:
        monkeypatch.delitem(sys.modules, module, raising=False)
        (site / f"{module}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        info = site / f"{dist}-1.2.dist-info"
        info.mkdir()
        metadata = [f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.2"]
        metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(metadata) + "\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(textwrap.dedent(entries), encoding="utf-8")

    return put


def record(folder: Path, name: str) -> Path:
    """Record a run of two points with the sink 'jsonl'."""
    sink = JsonlSink()
    sink.open(RunInfo(run_id="0" * 32, name=name, dir=str(folder), started_at=1.7e9))
    sink.write([Point(step=step, wall_time=1.7e9, values={"perf/step_ms": 2.0}) for step in (1, 2)])
    sink.close(RunSummary(steps=2, samples=None), Status.FINISHED)
    return folder / name


class TestSinks:
    """Finding and loading sinks."""

    def test_our_own_are_listed(self) -> None:
        """The sinks of this distribution are listed with it, and can be imported."""
        found = {entry.name: entry for entry in sink_names()}
        assert {"console", "jsonl", "tensorboard"} <= set(found)
        assert found["console"].distribution.startswith("trackperf ")
        assert found["console"].importable

    def test_our_own_load(self) -> None:
        """Every sink listed as importable can be loaded by its name, and bears it."""
        for name in ("console", "jsonl"):
            assert load_sink(name).name == name

    def test_a_foreign_sink_is_listed_and_loaded(self, install: Install) -> None:
        """A sink of another distribution is found in the same way; listing does not import it."""
        install("acme-sinks", "acme_sinks", GOOD, "[trackperf.sinks]\nacme = acme_sinks:Good\n")
        entry = next(entry for entry in sink_names() if entry.name == "acme")
        assert (entry.distribution, entry.importable, entry.missing) == ("acme-sinks 1.2", True, ())
        assert "acme_sinks" not in sys.modules
        assert load_sink("acme").name == "good"

    def test_only_the_one_asked_for_is_imported(self, install: Install) -> None:
        """A plug-in that breaks when imported does no harm to another one's loading."""
        install(
            "broken",
            "broken_sinks",
            "raise RuntimeError('boom')",
            "[trackperf.sinks]\nbad = broken_sinks:X\n",
        )
        assert load_sink("jsonl").name == "jsonl"
        assert "broken_sinks" not in sys.modules

    def test_what_is_not_there_is_listed_as_missing(self, install: Install) -> None:
        """A sink whose module or whose extra's packages are missing is listed as not importable."""
        requires = (
            'no-such-package>=3; extra == "acme"',
            'pytest; extra == "acme"',
            'other; extra == "test"',
        )
        install("acme", "acme_sinks", GOOD, "[trackperf.sinks]\nacme = acme_sinks:Good\n", requires)
        install("gone", "gone", GOOD, "[trackperf.sinks]\ngone = no_such_module:Good\n")
        found = {entry.name: entry for entry in sink_names()}
        assert (found["acme"].importable, found["acme"].missing) == (False, ("no-such-package",))
        assert (found["gone"].importable, found["gone"].missing) == (False, ())

    def test_a_sink_is_returned_as_it_is(self) -> None:
        """An object that is a sink passes."""
        sink = MemorySink()
        assert load_sink(sink) is sink

    def test_an_unknown_name(self) -> None:
        """The message says what was got, what is allowed, and the nearest name."""
        with pytest.raises(SinkError, match=r"no sink 'consol'; installed are: .*console.*mean 'console'\?"):
            load_sink("consol")

    def test_the_same_name_twice(self, install: Install) -> None:
        """Two distributions that offer one name are both named."""
        install("acme", "acme_sinks", GOOD, "[trackperf.sinks]\njsonl = acme_sinks:Good\n")
        with pytest.raises(SinkError, match=r"'jsonl' is offered by acme 1\.2 and trackperf "):
            load_sink("jsonl")

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("raise RuntimeError('boom')", "RuntimeError: boom"),
            ("import no_such_package", "No module named 'no_such_package'"),
            ("raise SystemExit(3)", "SystemExit: 3"),
            ("x = 1", "no attribute 'Good'"),
            ("Good = 3", "not callable"),
            (
                "class Good:\n    def __init__(self, url): ...",
                "missing 1 required positional argument: 'url'",
            ),
        ],
    )
    def test_a_broken_plugin(self, install: Install, code: str, said: str) -> None:
        """A plug-in that cannot be imported or built is a `SinkError` that names its distribution."""
        install("acme", "acme_sinks", code, "[trackperf.sinks]\nacme = acme_sinks:Good\n")
        with pytest.raises(
            SinkError, match=r"plug-in 'acme' \(acme_sinks:Good\) of acme 1\.2 is broken"
        ) as caught:
            load_sink("acme")
        assert said in str(caught.value)

    def test_a_missing_tracker_passes_through(self, install: Install) -> None:
        """The error of a missing tracker, with its pip line, is not wrapped."""
        code = """
            from trackperf.errors import MissingDependencyError
            def Good():
                raise MissingDependencyError(user="the sink 'acme'", package="acme", extra="acme")
        """
        install("acme", "acme_sinks", code, "[trackperf.sinks]\nacme = acme_sinks:Good\n")
        with pytest.raises(MissingDependencyError, match=r'pip install "trackperf\[acme\]"'):
            load_sink("acme")

    def test_a_sink_that_does_not_keep_the_protocol(self, install: Install) -> None:
        """All that is wrong with a plug-in's sink is said when it is loaded, with its distribution."""
        code = """
            class Good:
                name = "Has Spaces"
                def open(self): ...
                async def write(self, points): ...
                alert = "no"
        """
        install("acme", "acme_sinks", code, "[trackperf.sinks]\nacme = acme_sinks:Good\n")
        with pytest.raises(SinkError, match=r"the sink 'acme' of acme 1\.2 does not keep to") as caught:
            load_sink("acme")
        for part in (
            "`name` must be a short lower-case word (got 'Has Spaces')",
            "`open` takes (): it must take (run)",
            "`write` is a coroutine",
            "`alert` is no method (got a str)",
            "`close` is missing: it must take (summary, status)",
        ):
            assert part in str(caught.value)

    @pytest.mark.parametrize(("given", "said"), [(3, "`name` must be"), (MemorySink, "write MemorySink()")])
    def test_an_object_that_is_no_sink(self, given: object, said: str) -> None:
        """What is given as a sink and is none is refused with the reason."""
        with pytest.raises(SinkError) as caught:
            load_sink(given)  # type: ignore[arg-type]
        assert said in str(caught.value)

    def test_more_parameters_are_fine_with_defaults(self) -> None:
        """A method may take more than the protocol gives, when it need not."""

        class Wide(MemorySink):
            def close(self, summary: RunSummary, status: Status, retry: bool = True) -> None: ...

        assert faults_of_sink(Wide()) == []


READER = """
    class Good:
        name = "acme"
        def find(self, address):
            return [address] if address.endswith("one") else []
        def read(self, address):
            raise OSError("disk on fire")
"""


class TestReaders:
    """Finding and reading runs."""

    def test_runs_below_a_folder(self, tmp_path: Path) -> None:
        """All runs at or below a path are found, and every address found can be read."""
        for name in ("b", "a"):
            record(tmp_path / "runs", name)
        found = [run for run in find_runs(str(tmp_path)) if run.startswith("jsonl:")]
        assert found == [f"jsonl:{tmp_path}/runs/a", f"jsonl:{tmp_path}/runs/b"]
        assert [read_run(run).name for run in found] == ["a", "b"]

    def test_a_plain_path_is_tried_on_all_readers(self, tmp_path: Path) -> None:
        """A path needs no reader's name."""
        assert len(read_run(str(record(tmp_path, "a"))).series["perf/step_ms"]) == 2
        assert len(read_run(f"jsonl:{tmp_path / 'a'}").series["perf/step_ms"]) == 2

    def test_several_runs_are_refused_with_their_names(self, tmp_path: Path) -> None:
        """A folder of several runs is no run; the message names them."""
        for name in ("a", "b"):
            record(tmp_path, name)
        with pytest.raises(ReadError, match=r"holds 2 runs; name one: jsonl:.*a, jsonl:.*b"):
            read_run(str(tmp_path))

    def test_nothing_there(self, tmp_path: Path) -> None:
        """Where nothing is found the message says what was asked, and the nearest reader's name."""
        assert find_runs(str(tmp_path)) == []
        with pytest.raises(ReadError, match=r"no run found at .*nowhere'. Readers asked: .*jsonl"):
            read_run(str(tmp_path / "nowhere"))
        with pytest.raises(ReadError, match=r"Did you mean 'jsonl'\?"):
            read_run("jsnl:runs/a")

    def test_a_drive_letter_is_a_path(self) -> None:
        """What stands before the colon is a reader only when one is called so."""
        with pytest.raises(ReadError, match=r"no run found at 'C:"):
            read_run("C:\\runs\\a")

    def test_a_broken_foreign_reader_stops_nobody(self, install: Install, tmp_path: Path) -> None:
        """A reader that cannot be imported, or raises, does not keep others from reading."""
        install(
            "acme",
            "acme_readers",
            "raise RuntimeError('boom')",
            "[trackperf.readers]\naaa = acme_readers:Good\n",
        )
        install("fire", "fire_readers", READER, "[trackperf.readers]\nacme = fire_readers:Good\n")
        run = record(tmp_path, "one")
        assert read_run(str(run)).name == "one"
        assert f"jsonl:{run}" in find_runs(str(run))
        with pytest.raises(ReadError, match=r"plug-in 'aaa' .* of acme 1\.2 is broken: RuntimeError: boom"):
            find_runs(f"aaa:{run}")
        with pytest.raises(ReadError, match=r"the reader 'acme' failed: OSError: disk on fire"):
            read_run("acme:one")

    def test_trouble_is_told_when_nothing_is_found(self, install: Install, tmp_path: Path) -> None:
        """When no run is found, readers that could not be asked are named with the reason."""
        install(
            "acme",
            "acme_readers",
            "raise RuntimeError('boom')",
            "[trackperf.readers]\naaa = acme_readers:Good\n",
        )
        with pytest.raises(ReadError, match=r"the reader 'aaa' of acme 1\.2 cannot be used: .*boom"):
            read_run(str(tmp_path))

    def test_a_reader_that_does_not_keep_the_protocol(self, install: Install) -> None:
        """A reader without `read` is refused with its distribution."""
        code = "class Good:\n    name = 'x'\n    def find(self, address): return []\n"
        install("acme", "acme_readers", code, "[trackperf.readers]\nacme = acme_readers:Good\n")
        with pytest.raises(ReadError, match=r"reader 'acme' of acme 1\.2 does not keep .*`read` is missing"):
            find_runs("acme:x")

    def test_the_same_reader_twice(self, install: Install) -> None:
        """Two distributions that offer one reader are both named."""
        install("acme", "acme_readers", READER, "[trackperf.readers]\njsonl = acme_readers:Good\n")
        with pytest.raises(ReadError, match=r"'jsonl' is offered by acme 1\.2 and trackperf "):
            find_runs("jsonl:runs")
