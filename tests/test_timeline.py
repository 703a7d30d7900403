"""Marks fold into the same windows however they are cut into pieces, and every second is somewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackperf.testing import FakeClock
from trackperf.timing.marks import STRIDE, Drained, Marks
from trackperf.timing.phases import Phase, Step, data_span, transfer_span
from trackperf.timing.steps import Plan, Steps
from trackperf.timing.timeline import Timeline
from trackperf.timing.windows import EXACT, Distribution, Window


@dataclass
class Scene:
    """A training thread on a fake clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    warmup_steps: int = 0
    window_s: float = 2.0

    def __post_init__(self) -> None:
        self.marks = Marks(self.clock)
        self.marks.wake_at = 1 << 62
        self.timeline = self.new_timeline()

    def new_timeline(self) -> Timeline:
        """Return a timeline that begins where the clock did."""
        return Timeline(
            begin_ns=FakeClock()(), warmup_steps=self.warmup_steps, window_ns=round(self.window_s * 1e9)
        )

    def plan(self, accumulate: int = 1) -> Plan:
        """Return how to count: a batch is its own size."""
        return Plan(marks=self.marks, samples=int, tokens=None, move=None, accumulate=accumulate)

    def phase(self, name: str) -> Phase:
        """Return a phase."""
        return Phase(self.marks, self.marks.kind_of_phase(name))

    def finish(self) -> list[Window]:
        """Return the windows that are left."""
        windows = self.timeline.feed(self.marks.drain(), self.marks.phases, self.clock())
        return windows + self.timeline.finish(self.clock())


actions = st.lists(
    st.tuples(
        st.sampled_from(["batch", "phase", "inside", "idle", "data", "step", "fetch"]),
        st.integers(min_value=0, max_value=3_000),
    ),
    max_size=60,
)


def play(scene: Scene, script: list[tuple[str, int]]) -> None:
    """Act out a training; times in milliseconds."""
    clock = scene.clock
    for what, ms in script:
        if what == "idle":
            clock.advance(ms / 1000)
        elif what == "phase":
            with scene.phase("eval"):
                clock.advance(ms / 2000)
                with scene.phase("checkpoint"):
                    clock.advance(ms / 2000)
        elif what == "step":
            with Step(scene.marks, 3, -1):
                clock.advance(ms / 1000)
        elif what == "data":
            with data_span(scene.marks):
                clock.advance(ms / 1000)
        else:
            for _ in Steps([1, 2, 3], scene.plan(accumulate=2 if what == "fetch" else 1)):
                clock.advance(ms / 3000)
                if what == "inside":
                    with scene.phase("eval"):
                        clock.advance(ms / 1000)


def sums(windows: list[Window]) -> list[Any]:
    """Return everything of windows that can be compared."""
    return [
        (
            (w.phase, w.start_ns, w.end_ns, w.steps, w.batches, w.samples, w.busy_ns, w.waits, w.wait_ns),
            (w.first_wait_ns, w.first_batches, w.step_ms.n, w.step_ms.total, w.longest_wait_ns),
            w.totals,
        )
        for w in windows
    ]


class TestFold:
    """Folding is arithmetic: it depends on the marks and on nothing else."""

    @settings(deadline=None, max_examples=150)
    @given(script=actions, warmup=st.integers(0, 4))
    def test_every_second_is_in_one_phase(self, script: list[tuple[str, int]], warmup: int) -> None:
        """The phases add up to the wall time to the nanosecond, and none is negative, at every window."""
        scene = Scene(warmup_steps=warmup)
        begin = scene.clock()
        play(scene, script)
        windows = scene.finish()
        totals = scene.timeline.totals()
        assert totals.wall_ns == scene.clock() - begin
        for each in [*(window.totals for window in windows), totals]:
            assert min(each.phase_ns.values()) >= 0
        assert [w.totals.wall_ns for w in windows] == [w.end_ns - begin for w in windows]
        assert sum(window.steps for window in windows) == totals.steps
        assert sum(window.busy_ns for window in windows) == totals.train_ns

    @settings(deadline=None, max_examples=100)
    @given(script=actions, cuts=st.lists(st.integers(0, 400), max_size=6))
    def test_pieces_do_not_matter(self, script: list[tuple[str, int]], cuts: list[int]) -> None:
        """Marks fed in pieces give the totals and the number of steps that they give in one piece."""
        whole = Scene()
        play(whole, script)
        drained = whole.marks.drain()
        now = whole.clock()
        windows = whole.timeline.feed(drained, whole.marks.phases, now) + whole.timeline.finish(now)

        other = whole.new_timeline()
        parts: list[Window] = []
        last = 0
        rows = len(drained.batches) // STRIDE
        events = drained.events
        for cut in sorted({min(cut, rows) for cut in cuts} | {rows}):
            batches = drained.batches[last * STRIDE : cut * STRIDE]
            # What was appended before the end of the last body of the piece.
            end = batches[-STRIDE + 2] if batches else 0
            later = (place for place in range(0, len(events), 2) if cut < rows and events[place + 1] > end)
            n = next(later, len(events))
            piece = Drained(batches=batches, events=events[:n], lost=[], cost_ns=0, probes=0)
            events = events[n:]
            parts += other.feed(piece, whole.marks.phases, now if cut == rows else end)
            last = cut
        parts += other.finish(now)
        assert other.totals() == whole.timeline.totals()
        assert sum(w.wait_ns for w in parts) == sum(w.wait_ns for w in windows)
        assert sum(w.steps for w in parts) == sum(w.steps for w in windows)

    def test_a_window_closes_at_two_seconds(self) -> None:
        """Steps of 0.3 s close windows of seven steps: the first at whose end two seconds are full."""
        scene = Scene()
        for _ in Steps([1] * 20, scene.plan()):
            scene.clock.advance(0.3)
        assert [window.steps for window in scene.finish()] == [7, 7, 6]

    def test_a_step_longer_than_a_window(self) -> None:
        """A step of 7 s is a window of its own."""
        scene = Scene()
        for _ in Steps([1] * 3, scene.plan()):
            scene.clock.advance(7.0)
        assert [window.steps for window in scene.finish()] == [1, 1, 1]

    def test_a_phase_closes_the_window(self) -> None:
        """Where an evaluation begins the window ends, so that none reaches over it."""
        scene = Scene()
        for place, _ in enumerate(Steps([1] * 10, scene.plan())):
            scene.clock.advance(0.2)
            if place == 4:
                with scene.phase("eval"):
                    scene.clock.advance(9.0)
                assert [
                    w.steps
                    for w in scene.timeline.feed(scene.marks.drain(), scene.marks.phases, scene.clock())
                ] == [4]
        windows = scene.finish()
        assert [window.steps for window in windows] == [6]
        assert windows[0].busy_ns == 1_200_000_000

    def test_a_phase_in_every_step_closes_no_window(self) -> None:
        """Phases of a millisecond in every step leave windows of two seconds."""
        scene = Scene()
        for _ in Steps([1] * 400, scene.plan()):
            scene.clock.advance(0.019)
            with scene.phase("logging"):
                scene.clock.advance(0.001)
        windows = scene.finish()
        assert [window.steps for window in windows] == [106, 106, 106, 82]
        assert windows[-1].totals.phase_ns["logging"] == 400_000_000

    def test_the_warm_up_ends_its_window(self) -> None:
        """Three warm-up steps are a window of their own, and the windows after it are training."""
        scene = Scene(warmup_steps=3)
        for _ in Steps([1] * 10, scene.plan()):
            scene.clock.advance(0.4)
        assert [(w.phase, w.steps) for w in scene.finish()] == [("warmup", 3), ("train", 5), ("train", 2)]

    def test_a_moment_in_a_body_is_that_step(self) -> None:
        """A value observed in the body of step 3 belongs to step 3; one observed after it as well."""
        scene = Scene()
        moments = []
        for place, _ in enumerate(Steps([1] * 6, scene.plan())):
            scene.clock.advance(0.1)
            if place == 2:
                moments.append(scene.clock())
                scene.clock.advance(0.1)
        scene.timeline.feed(scene.marks.drain(), scene.marks.phases, scene.clock())
        assert scene.timeline.place(moments[0]) == (3, 400_000_000)
        assert scene.timeline.place(scene.clock() + 1) is None

    def test_state_counts_the_open_body(self) -> None:
        """Asked inside the body of step 3, after the update, the run stands at 3 steps."""
        scene = Scene()
        for place, _ in enumerate(Steps([4] * 6, scene.plan())):
            scene.clock.advance(0.1)
            if place == 2:
                owner = scene.marks.owner
                assert owner is not None
                scene.timeline.feed(scene.marks.drain(), scene.marks.phases, scene.clock())
                totals = scene.timeline.totals_at(scene.clock(), owner.open_batch())
                assert (totals.steps, totals.samples, totals.train_ns) == (3, 12, 300_000_000)
        scene.finish()
        assert scene.timeline.totals().steps == 6

    def test_transfers(self) -> None:
        """Time in transfers is added up, and absent where none was marked."""
        scene = Scene()
        for _ in Steps([1] * 4, scene.plan()):
            with transfer_span(scene.marks):
                scene.clock.advance(0.01)
            scene.clock.advance(0.1)
        assert [window.transfer_ns for window in scene.finish()] == [40_000_000]
        bare = Scene()
        for _ in Steps([1] * 4, bare.plan()):
            bare.clock.advance(0.1)
        assert [window.transfer_ns for window in bare.finish()] == [None]

    def test_two_threads_in_one_loop(self) -> None:
        """Marks that cannot be true are left out and counted, and raise nothing."""
        scene = Scene()
        now = scene.clock()
        scene.marks.batches.extend((now, now + 5, now + 10, 1, -1, 5))
        scene.marks.batches.extend((now + 3, now + 4, now + 12, 1, -1, 5))
        scene.marks.batches.extend((now + 12, now + 13, now + 20, 1, -1, 5))
        scene.clock.advance(1.0)
        assert sum(window.steps for window in scene.finish()) == 2
        assert scene.timeline.invalid == 1


class TestMarks:
    """A reporter that is stuck costs memory up to a limit, and no step."""

    def test_memory_is_bounded_and_sums_are_kept(self) -> None:
        """Of 300 000 steps that nobody takes, steps, samples and time are all there; quantiles are not."""
        scene = Scene()
        scene.marks.wake_at = 0
        scene.marks.limit = 64
        most = 0
        for _ in Steps(range(300_000), scene.plan()):
            scene.clock.now_ns += 1000
            most = max(most, len(scene.marks.batches))
        assert most <= STRIDE * ((1 << 16) + (1 << 12))
        windows = scene.finish()
        assert sum(window.steps for window in windows) == 300_000
        assert scene.timeline.totals().train_ns == 300_000_000
        assert scene.timeline.totals().samples == sum(range(300_000))
        assert scene.timeline.bundled >= 200_000
        assert sum(window.step_ms.n for window in windows) == 300_000 - scene.timeline.bundled

    def test_phases_that_nobody_takes(self) -> None:
        """Phases in 300 000 steps that nobody takes are bounded as well, and none stays open."""
        scene = Scene()
        phase = scene.phase("eval")
        with phase:
            scene.clock.advance(1.0)
        scene.marks.wake_at = 0
        scene.marks.limit = 64
        most = 0
        for place, _ in enumerate(Steps(range(300_000), scene.plan())):
            if place == 1:
                phase.__enter__()
                scene.timeline.feed(scene.marks.drain(), scene.marks.phases, scene.clock())
                phase.__exit__(None, None, None)
            with phase:
                scene.clock.now_ns += 1000
            most = max(most, len(scene.marks.events))
        assert most <= (1 << 18) + (1 << 15)
        assert sum(window.steps for window in scene.finish()) == 300_000

    def test_phases_without_steps_are_not_kept(self) -> None:
        """Phases between loops add up to seconds and leave nothing behind, and later steps are right."""
        scene = Scene()
        phase = scene.phase("eval")
        for _ in range(50):
            for _ in range(1000):
                with phase:
                    scene.clock.now_ns += 1000
            now = scene.clock()
            scene.timeline.feed(scene.marks.drain(), scene.marks.phases, now, now)
        events = scene.timeline._events
        assert (len(events.outer), len(events.segments)) == (0, 0)
        for _ in Steps([1] * 10, scene.plan()):
            scene.clock.advance(0.1)
            with phase:
                scene.clock.advance(0.1)
        assert sum(window.busy_ns for window in scene.finish()) == 1_000_000_000
        assert scene.timeline.totals().phase_ns["eval"] == 50_000_000 + 1_000_000_000

    def test_a_closed_run_keeps_nothing(self) -> None:
        """Loops that outlive their run leave nothing in memory."""
        scene = Scene()
        scene.marks.wake_at = 0
        loop = iter(Steps(range(100_000), scene.plan()))
        next(loop)
        scene.marks.close()
        phase = scene.phase("eval")
        for _ in loop:
            with phase:
                pass
        assert len(scene.marks.batches) <= scene.marks.limit
        assert len(scene.marks.events) <= 1 << 15


class TestDistribution:
    """Quantiles are exact up to a number of values, and merge."""

    def test_small(self) -> None:
        """Up to 4 096 values the quantiles are numpy's own."""
        values = np.random.default_rng(0).gamma(2.0, 10.0, EXACT)
        whole, parts = Distribution(), Distribution()
        whole.add(values)
        for part in np.array_split(values, 7):
            piece = Distribution()
            piece.add(part)
            parts.merge(piece)
        for q in (0.0, 0.5, 0.95, 1.0):
            assert whole.quantile(q) == parts.quantile(q) == pytest.approx(float(np.quantile(values, q)))

    @pytest.mark.parametrize("pieces", [1, 3, 50])
    def test_large(self, pieces: int) -> None:
        """Beyond that they are within 1 %, however the values were merged."""
        values = np.random.default_rng(1).gamma(2.0, 10.0, 100_000)
        merged = Distribution()
        for part in np.array_split(values, pieces):
            piece = Distribution()
            piece.add(part)
            merged.merge(piece)
        assert merged.n == 100_000
        assert merged.total == pytest.approx(values.sum())
        assert merged.largest == values.max()
        for q in (0.5, 0.95, 0.999):
            assert merged.quantile(q) == pytest.approx(float(np.quantile(values, q)), rel=0.01)

    def test_zeros(self) -> None:
        """Waits of zero stay zero in the bins."""
        merged = Distribution()
        merged.add(np.zeros(10_000))
        merged.add(np.ones(1_000))
        assert merged.quantile(0.5) == 0.0
        assert merged.quantile(0.99) == pytest.approx(1.0, rel=0.01)

    def test_empty(self) -> None:
        """No values, no quantile."""
        with pytest.raises(ValueError, match="no values"):
            Distribution().quantile(0.5)
