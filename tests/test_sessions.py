"""Sessions of a resumed run into one: what stands, what was done twice, and what that took."""

from __future__ import annotations

import numpy as np

from trackperf.history import Series
from trackperf.record import Alert
from trackperf.sessions import Session, merge_sessions

TRAIN = "perf/train_s"


def series(steps: list[int], values: list[float]) -> Series:
    """Return a series whose wall time is its step."""
    return Series(
        step=np.array(steps, dtype=np.int64),
        wall_time=np.array(steps, dtype=np.float64),
        value=np.array(values, dtype=np.float64),
    )


def pairs(found: Series) -> list[tuple[int, float]]:
    """Return steps and values."""
    return list(zip(found.step.tolist(), found.value.tolist(), strict=True))


def alert(step: int) -> Alert:
    """Return an alert at a step."""
    return Alert(
        rule="loader_latency", state="raised", level="warning", step=step, wall_time=0.0,
        value=1.0, threshold=0.0, cause="c",
    )  # fmt: skip


def test_steps_done_again_are_replaced() -> None:
    """Steps 0-149, then 100-199 from a resume at 99: 200 steps, the later values, 50 steps done twice."""
    first = series(list(range(150)), [1.0] * 150)
    second = series(list(range(100, 200)), [2.0] * 100)
    trained = series(list(range(150)), [step / 10 for step in range(150)])
    merged = merge_sessions(
        [Session(series={"x": first, TRAIN: trained}), Session(resume_step=99, series={"x": second})], TRAIN
    )
    assert merged.series["x"].step.tolist() == list(range(200))
    assert dict(pairs(merged.series["x"]))[120] == 2.0
    assert merged.redone_steps == 50
    assert abs(merged.redone_s - 5.0) < 1e-9


def test_a_series_that_is_not_written_again_ends_at_the_resume() -> None:
    """Later points of every earlier series go, also of one that the new session does not write."""
    old = series([10, 20, 30], [1.0, 2.0, 3.0])
    merged = merge_sessions([Session(series={"x": old}), Session(resume_step=20)], TRAIN)
    assert pairs(merged.series["x"]) == [(10, 1.0), (20, 2.0)]
    merged = merge_sessions([Session(series={"x": old}), Session(resume_step=5)], TRAIN)
    assert "x" not in merged.series


def test_resume_between_two_points() -> None:
    """Where the resume lies between two points, the time done twice counts from there."""
    trained = series([10, 20, 30], [1.0, 2.0, 3.0])
    merged = merge_sessions([Session(series={TRAIN: trained}), Session(resume_step=25)], TRAIN)
    assert (merged.redone_steps, merged.redone_s) == (5, 0.5)
    merged = merge_sessions([Session(series={TRAIN: trained}), Session(resume_step=5)], TRAIN)
    assert (merged.redone_steps, merged.redone_s) == (25, 2.5)


def test_a_resume_after_the_last_point_redoes_nothing() -> None:
    """A clean resume replaces nothing."""
    trained = series([10, 20], [1.0, 2.0])
    merged = merge_sessions([Session(series={TRAIN: trained}), Session(resume_step=20)], TRAIN)
    assert (merged.redone_steps, merged.redone_s) == (0, 0.0)


def test_several_resumes_add_up() -> None:
    """Each resume counts what it replaced of the run as it then stood."""
    first = series([10, 20, 30], [1.0, 2.0, 3.0])
    second = series([20, 30, 40], [2.5, 3.5, 4.5])
    third = series([20], [9.0])
    merged = merge_sessions(
        [
            Session(series={TRAIN: first}),
            Session(resume_step=10, series={TRAIN: second}),
            Session(resume_step=10, series={TRAIN: third}),
        ],
        TRAIN,
    )
    assert pairs(merged.series[TRAIN]) == [(10, 1.0), (20, 9.0)]
    assert (merged.redone_steps, merged.redone_s) == (20 + 30, 2.0 + 3.5)


def test_unsorted_and_repeated_steps() -> None:
    """Within a session, and between sessions that say nothing of a resume, the later of two points stands."""
    merged = merge_sessions(
        [
            Session(series={"x": series([3, 1, 3], [1.0, 2.0, 3.0])}),
            Session(series={"x": series([1], [9.0])}),
        ],
        TRAIN,
    )
    assert pairs(merged.series["x"]) == [(1, 9.0), (3, 3.0)]
    many = series([7] * 500 + [3] * 500, [float(n) for n in range(1000)])
    assert pairs(merge_sessions([Session(series={"x": many})], TRAIN).series["x"]) == [(3, 999.0), (7, 499.0)]
    assert merged.redone_steps == 0


def test_alerts_of_replaced_steps_go_too() -> None:
    """An alert of a step that was done again is replaced with it."""
    merged = merge_sessions(
        [Session(alerts=(alert(5), alert(50))), Session(resume_step=10, alerts=(alert(40),))], TRAIN
    )
    assert [found.step for found in merged.alerts] == [5, 40]


def test_nothing_at_all() -> None:
    """No session, and empty series, give an empty run."""
    assert dict(merge_sessions([], TRAIN).series) == {}
    empty = Session(series={"x": series([], [])})
    merged = merge_sessions([empty, Session(resume_step=3, series={TRAIN: series([], [])})], TRAIN)
    assert (dict(merged.series), merged.redone_steps, merged.redone_s) == ({}, 0, 0.0)
