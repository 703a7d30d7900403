"""The spool: what is appended comes out again, in order, through kills, damage and full disks."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from spool_parts import FINISHED, SUMMARY, alert, info, point, points

from trackperf.delivery.queue import End
from trackperf.delivery.spool import Spool
from trackperf.errors import ReadError
from trackperf.record import Alert, Point

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

END = End(summary=SUMMARY, status=FINISHED)


def create(folder: Path, *, max_bytes: int = 2**24) -> Spool:
    """Return a new spool."""
    return Spool.create("mlflow", info(folder), {"uri": "http://a"}, max_bytes=max_bytes)


def take_over(folder: Path, *, keep: bool = False) -> Spool:
    """Return the spool that is left in a folder."""
    spool = Spool.take_over(folder / "run" / "spool-mlflow", keep=keep)
    assert spool is not None
    return spool


def drain(spool: Spool, limit: int = 1000, *, settle: bool = True) -> list[Point | Alert | End]:
    """Take all that is there."""
    got: list[Point | Alert | End] = []
    while parcel := spool.take(limit):
        got += parcel.items
        if settle:
            parcel.settle(len(parcel.items), True)
    return got


def steps(items: list[Point | Alert | End]) -> list[int]:
    """Return the steps of points."""
    return [item.step for item in items if isinstance(item, Point)]


def segment(folder: Path, number: int = 1) -> Path:
    """Return a file of the spool."""
    return folder / "run" / "spool-mlflow" / f"{number:06d}.jsonl"


class TestOrder:
    """What goes in comes out."""

    def test_everything_comes_back_as_it_was(self, tmp_path: Path) -> None:
        """Points, alerts and the end come back equal and in order, also for the next process."""
        records: list[Point | Alert | End] = [point(1), point(2, 0.1 + 0.2), alert(2), point(3), END]
        spool = create(tmp_path)
        for record in records:
            spool.append([record] if isinstance(record, Point) else record)
        spool.close()
        later = take_over(tmp_path)
        assert (later.points, later.waiting, later.ended) == (3, 3, True)
        assert drain(later) == records
        assert (later.waiting, later.cursor.sent, later.cursor.step) == (0, 3, 3)
        assert later.manifest.run.tags == {"note": "größer \udc80"}
        assert later.manifest.address == {"uri": "http://a"}
        later.close()

    def test_a_batch_is_points_in_a_row(self, tmp_path: Path) -> None:
        """A parcel holds up to the limit of points, or one alert, or the end."""
        spool = create(tmp_path)
        spool.append(points(range(5)))
        spool.append(alert(4))
        spool.append(points(range(5, 7)))
        spool.append(END)
        sizes = []
        while parcel := spool.take(3):
            sizes.append((type(parcel.items[0]).__name__, len(parcel.items)))
        assert sizes == [("Point", 3), ("Point", 2), ("Alert", 1), ("Point", 2), ("End", 1)]
        spool.close()

    def test_a_point_is_compact(self, tmp_path: Path) -> None:
        """Keys are written once a file: a point of 40 values costs less than 25 bytes a value."""
        wide = [
            Point(
                step=step,
                wall_time=1.7e9,
                values={f"perf_gpu0/series_{n}": step / (n + 3) for n in range(40)},
            )
            for step in range(1000)
        ]
        spool = create(tmp_path)
        spool.append(wide)
        assert segment(tmp_path).stat().st_size / 1000 / 40 < 25
        assert drain(spool) == wide
        spool.close()

    def test_one_call_is_one_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch goes to the system at once, and is there when `append` returns."""
        spool, write = create(tmp_path), os.write
        sizes: list[int] = []
        spool.append(points([1]))

        def counted(fd: int, data: bytes) -> int:
            sizes.append(len(data))
            return write(fd, data)

        monkeypatch.setattr(os, "write", counted)
        before = segment(tmp_path).stat().st_size
        spool.append(points(range(2, 100)))
        assert sizes == [segment(tmp_path).stat().st_size - before]
        spool.close()


class TestCursor:
    """What the sink has is known after a kill."""

    def test_only_what_is_settled_is_done(self, tmp_path: Path) -> None:
        """Points that were taken but not settled come again for the next process; settled ones do not."""
        spool = create(tmp_path)
        spool.append(points(range(10)))
        parcel = spool.take(8)
        assert parcel is not None
        parcel.settle(3, True)
        parcel.settle(1, False)
        spool.close()
        later = take_over(tmp_path)
        assert (later.waiting, later.cursor.sent, later.cursor.lost) == (6, 3, 1)
        assert steps(drain(later)) == list(range(4, 10))
        later.close()

    def test_a_damaged_slot_costs_one_turn(self, tmp_path: Path) -> None:
        """Where the newer of the two slots is damaged, the older stands."""
        spool = create(tmp_path)
        spool.append(points(range(4)))
        for _ in range(2):
            parcel = spool.take(1)
            assert parcel is not None
            parcel.settle(1, True)
        turn = spool.cursor.turn
        spool.close()
        path = tmp_path / "run" / "spool-mlflow" / "cursor"
        data = bytearray(path.read_bytes())
        data[turn % 2 * 256 + 20] ^= 1
        path.write_bytes(data)
        later = take_over(tmp_path)
        assert steps(drain(later)) == [1, 2, 3]
        later.close()

    def test_what_arrived_leaves_the_disk(self, tmp_path: Path) -> None:
        """A file goes when the sink has all of it and works on the next."""
        spool = create(tmp_path, max_bytes=32_000)
        for step in range(100):
            spool.append(points([step]))
            drain(spool)
        assert len(list(segment(tmp_path).parent.glob("*.jsonl"))) <= 2
        spool.close()


class TestDamage:
    """Cut and damaged files."""

    def test_a_torn_last_line_is_normal(self, tmp_path: Path) -> None:
        """A line that was cut by a kill was never handed over: nothing is counted as lost."""
        spool = create(tmp_path)
        spool.append(points(range(5)))
        spool.close()
        data = segment(tmp_path).read_bytes()
        segment(tmp_path).write_bytes(data[:-7])
        later = take_over(tmp_path)
        assert later.waiting == 4
        assert steps(drain(later)) == [0, 1, 2, 3]
        assert (later.waiting, later.cursor.lost) == (0, 0)
        later.close()

    @pytest.mark.parametrize("at", [0, 12, 30])
    def test_a_damaged_line_is_counted_and_skipped(self, tmp_path: Path, at: int) -> None:
        """One damaged byte costs its own line, counted once, and no other."""
        spool = create(tmp_path)
        spool.append(points(range(5)))
        spool.close()
        lines = segment(tmp_path).read_bytes().splitlines(keepends=True)
        lines[3] = lines[3][:at] + bytes([lines[3][at] ^ 4]) + lines[3][at + 1 :]
        segment(tmp_path).write_bytes(b"".join(lines))
        later = take_over(tmp_path)
        assert steps(drain(later)) == [0, 1, 3, 4]
        assert (later.waiting, later.cursor.lost, later.cursor.sent) == (0, 1, 4)
        later.close()

    def test_without_its_keys_a_point_is_lost_and_counted(self, tmp_path: Path) -> None:
        """Where the line that names the keys is damaged, its points are lost, and only in that file."""
        spool = create(tmp_path, max_bytes=4000)
        spool.append(points(range(5)))
        spool.append(points(range(5, 10)))
        spool.close()
        data = bytearray(segment(tmp_path).read_bytes())
        data[20] ^= 1
        segment(tmp_path).write_bytes(data)
        later = take_over(tmp_path)
        assert steps(drain(later)) == [5, 6, 7, 8, 9]
        assert (later.waiting, later.cursor.lost) == (0, 5)
        later.close()

    @pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"version": 9}', "\x00"])
    def test_a_damaged_description(self, tmp_path: Path, text: str) -> None:
        """A spool whose description cannot be read is told as such, with its path."""
        create(tmp_path).close()
        folder = tmp_path / "run" / "spool-mlflow"
        (folder / "spool.json").write_text(text)
        with pytest.raises(ReadError, match=r"spool\.json is (damaged|of version 9)"):
            Spool.take_over(folder)


class TestBounds:
    """Disks have an end."""

    def test_the_oldest_points_give_way(self, tmp_path: Path) -> None:
        """Beyond its room the oldest points go, counted; alerts and the newest points stay, in order."""
        spool = create(tmp_path, max_bytes=50_000)
        gave = False
        for step in range(2000):
            gave = spool.append(points([step])) or gave
            if step % 100 == 50:
                spool.append(alert(step))
        size = sum(path.stat().st_size for path in segment(tmp_path).parent.iterdir())
        lost = spool.cursor.lost
        got = drain(spool)
        assert gave
        assert size < 60_000
        assert steps(got) == sorted(steps(got))
        assert steps(got)[-1] == 1999
        assert 0 < lost == 2000 - len(steps(got))
        assert [item.step for item in got if isinstance(item, Alert)] == list(range(50, 2000, 100))
        spool.close()

    @pytest.mark.parametrize("room", [0, 100, 700])
    def test_a_full_disk_leaves_nothing_half(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
    ) -> None:
        """A batch that does not fit is not there at all, and the next one that fits is sound."""
        spool = create(tmp_path)
        spool.append(points([1]))
        monkeypatch.setattr(os, "write", _full_after(room))
        with pytest.raises(OSError, match="No space"):
            spool.append([point(step, 1.0) for step in range(2, 20)])
        monkeypatch.undo()
        spool.append([point(20, 2.0)])
        assert (steps(drain(spool)), spool.points) == ([1, 20], 2)
        spool.close()


class TestPossession:
    """One process at a time, and nothing left behind."""

    def test_one_holds_it(self, tmp_path: Path) -> None:
        """A spool that is held cannot be taken; once let go, it can."""
        spool = create(tmp_path)
        folder = spool.folder
        assert Spool.take_over(folder) is None
        spool.close()
        later = Spool.take_over(folder)
        assert later is not None
        later.close()

    def test_two_sinks_of_one_name(self, tmp_path: Path) -> None:
        """A second spool for a sink of the same name gets a folder of its own."""
        one, other = create(tmp_path), create(tmp_path)
        assert [one.folder.name, other.folder.name] == ["spool-mlflow", "spool-mlflow-2"]
        one.close()
        other.close()

    def test_keeping_changes_nothing(self, tmp_path: Path) -> None:
        """A spool that is to be kept has the same bytes on disk after it was read to its end and removed."""
        spool = create(tmp_path, max_bytes=8000)
        for step in range(30):
            spool.append(points([step]))
        spool.close()
        folder = tmp_path / "run" / "spool-mlflow"
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        later = take_over(tmp_path, keep=True)
        assert steps(drain(later)) == list(range(30))
        later.describe(address={"uri": "elsewhere"})
        later.remove()
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    def test_removed_with_the_empty_folder(self, tmp_path: Path) -> None:
        """A spool goes whole, with the run's folder if that is empty then, and not if it is not."""
        spool = create(tmp_path)
        spool.append(points([1]))
        spool.remove()
        assert not (tmp_path / "run").exists()
        spool = create(tmp_path)
        (tmp_path / "run" / "events").touch()
        spool.remove()
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["events"]

    def test_the_description_holds_no_more_than_it_needs(self, tmp_path: Path) -> None:
        """A spool's description is one JSON object: version, sink, process, address, run."""
        spool = create(tmp_path)
        loaded = json.loads((spool.folder / "spool.json").read_text())
        assert sorted(loaded) == ["address", "pid", "run", "sink", "version"]
        spool.close()


def _full_after(room: int) -> Callable[[int, bytes], int]:
    write, left = os.write, [room]

    def full(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        part = bytes(data)[: left[0]]
        left[0] -= len(part)
        return write(fd, part)

    return full
