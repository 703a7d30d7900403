"""Points to records: the bytes mean what TensorBoard's own classes would have written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google_crc32c import value as crc32c
from tensorboard.compat.proto import event_pb2, summary_pb2
from trackperf_tensorboard.encode import EventLayout, PointEncoder
from trackperf_tensorboard.events import Framer, masked, varint
from trackperf_tensorboard.wire import read_varint, simple_shape

from trackperf.record import Point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEPS = [0, 1, 127, 128, 16_383, 16_384, 2**31, 2**40, 2**63 - 1]


def _described(_key: str) -> bytes:
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="scalars")
    metadata = summary_pb2.SummaryMetadata(plugin_data=plugin, display_name="a name" * 40)
    serialised: bytes = metadata.SerializeToString()
    return serialised


def _events(records: bytes) -> list[Any]:
    """Take records apart, checking every checksum."""
    events, at = [], 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 8], "little")
        data = records[at + 12 : at + 12 + size]
        assert masked(crc32c(records[at : at + 8])) == int.from_bytes(records[at + 8 : at + 12], "little")
        at += 12 + size
        assert masked(crc32c(data)) == int.from_bytes(records[at : at + 4], "little")
        at += 4
        events.append(event_pb2.Event.FromString(data))
    return events


def _encode(values: Sequence[tuple[int, Mapping[str, Any]]], first_step: int = 0) -> tuple[list[Any], int]:
    encoder = PointEncoder(_described, first_step)
    points = [Point(step=step, wall_time=1.5, values=given) for step, given in values]
    return _events(encoder.encode(points)), encoder.dropped


@pytest.mark.parametrize("step", STEPS)
def test_an_event_means_what_the_proto_would(step: int) -> None:
    """Every step, tag and value comes out of the protocol-buffer class again."""
    keys = ("perf/step_ms", "k" * 300, "größe/é")
    data = EventLayout(keys, {}).encode(step, 1_700_000_000.125, (1.5, -2.0, 3e38))
    values = [
        summary_pb2.Summary.Value(tag=k, simple_value=v) for k, v in zip(keys, (1.5, -2.0, 3e38), strict=True)
    ]
    expected = event_pb2.Event(
        wall_time=1_700_000_000.125, step=step, summary=summary_pb2.Summary(value=values)
    )
    assert event_pb2.Event.FromString(data) == expected


def test_a_tag_carries_its_description_once() -> None:
    """The description goes with the first value of a tag, also where others of the event have theirs."""
    events, dropped = _encode([(1, {"a": 1.0}), (2, {"a": 2.0, "b": 5.0}), (3, {"a": 3.0, "b": 6.0})])
    assert dropped == 0
    found = [[(v.tag, v.simple_value, v.HasField("metadata")) for v in e.summary.value] for e in events]
    assert found == [
        [("a", 1.0, True)],
        [("a", 2.0, False), ("b", 5.0, True)],
        [("a", 3.0, False), ("b", 6.0, False)],
    ]
    assert events[1].summary.value[1].metadata.display_name == "a name" * 40


def test_what_is_no_finite_number_is_left_out_and_counted() -> None:
    """NaN, infinity, None, text and what 32 bits cannot hold never become another number."""
    odd = {"nan": math.nan, "inf": -math.inf, "none": None, "text": "x", "big": 1e300, "good": 2.5}
    events, dropped = _encode([(1, odd), (2, {"nan": math.nan})])
    assert [(v.tag, v.simple_value) for e in events for v in e.summary.value] == [("good", 2.5)]
    assert dropped == 6


def test_numbers_of_other_kinds_are_taken() -> None:
    """Integers, flags and numpy's numbers are numbers."""
    values = {"int": 3, "flag": True, "f32": np.float32(2.5), "i64": np.int64(7), "huge": 10**30}
    events, dropped = _encode([(1, values)])
    assert [v.simple_value for v in events[0].summary.value] == [3.0, 1.0, 2.5, 7.0, np.float32(1e30)]
    assert dropped == 0


def test_a_step_that_goes_back_is_dropped_tag_by_tag() -> None:
    """One tag may lie behind another; none may go back behind itself."""
    events, dropped = _encode([(10, {"a": 1.0}), (7, {"b": 2.0}), (9, {"a": 3.0, "b": 4.0}), (8, {"b": 5.0})])
    found = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert found == [(10, "a", 1.0), (7, "b", 2.0), (9, "b", 4.0)]
    assert dropped == 2


def test_keys_that_change_and_come_back_are_still_judged() -> None:
    """What a row of equal keys has reached is remembered when the keys change, and over a mark."""
    given = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (2, "a"), (5, "b"), (3, "b"), (3, "a")]
    encoder = PointEncoder(_described, 0)
    for step, key in given:
        encoder.encode([Point(step=step, wall_time=1.0, values={key: 1.0})])
        encoder.mark()
    assert encoder.dropped == 2
    events, dropped = _encode([(step, {key: 1.0}) for step, key in given])
    assert [event.step for event in events] == [1, 2, 3, 4, 5, 3]
    assert dropped == 2


def test_a_tag_that_lies_behind_goes_on_from_where_it_is() -> None:
    """A value at a step below the newest one does not bring its tag up to the newest one."""
    steps = [(1, "b"), (2, "b"), (10, "a"), (5, "b"), (7, "b"), (6, "b")]
    events, dropped = _encode([(step, {key: 1.0}) for step, key in steps])
    assert [event.step for event in events] == [1, 2, 10, 5, 7]
    assert dropped == 1


def test_a_row_of_equal_keys_is_judged_value_by_value() -> None:
    """In the middle of a row a step that goes back and a value that is no number are left out."""
    row = [(1, 1.0), (2, 1.0), (3, 1.0), (2, 9.0), (4, 1.0), (5, 1.0), (6, math.nan), (7, 1.0), (8, math.inf)]
    events, dropped = _encode([(step, {"a": value}) for step, value in row])
    assert [(e.step, e.summary.value[0].simple_value) for e in events] == [
        (s, 1.0) for s in (1, 2, 3, 4, 5, 7)
    ]
    assert dropped == 3


def test_steps_before_the_resume_are_dropped() -> None:
    """A process that went on at step 100 has nothing to say about step 99."""
    events, dropped = _encode([(99, {"a": 1.0}), (100, {"a": 2.0})], first_step=100)
    assert [e.step for e in events] == [100]
    assert dropped == 1


def test_a_reset_forgets_what_was_not_written() -> None:
    """After a write that failed the same points are encoded as if for the first time."""
    encoder = PointEncoder(_described, 0)
    points = [Point(step=step, wall_time=1.0, values={"a": math.nan, "b": 1.0}) for step in (1, 2)]
    mark = encoder.mark()
    first = encoder.encode(points)
    encoder.reset(mark)
    assert encoder.dropped == 0
    assert encoder.encode(points) == first
    behind = [Point(step=step, wall_time=1.0, values={"c": 1.0}) for step in (0, 1)]
    mark = encoder.mark()
    first = encoder.encode(behind)
    encoder.reset(mark)
    assert encoder.encode(behind) == first


def test_many_different_sets_of_keys_take_no_endless_memory() -> None:
    """The layouts that are kept are bounded."""
    encoder = PointEncoder(_described, 0)
    for step in range(3000):
        encoder.encode([Point(step=step, wall_time=1.0, values={"a": 1.0, f"k{step % 1000}": 1.0})])
    assert len(encoder._layouts) <= 512


@pytest.mark.parametrize("number", [*STEPS, 2**64 - 1])
def test_a_number_survives_the_variable_length_form(number: int) -> None:
    """What is written is read."""
    assert read_varint(varint(number), 0) == (number, len(varint(number)))


def test_only_plain_scalars_have_a_simple_shape() -> None:
    """A version, a tensor, a description, a cut event or none at all are left to the proto."""
    value = summary_pb2.Summary.Value(tag="a", simple_value=1.0)
    described = summary_pb2.Summary.Value(tag="a", simple_value=1.0)
    described.metadata.ParseFromString(_described("a"))
    plain = event_pb2.Event(wall_time=1.0, step=3, summary=summary_pb2.Summary(value=[value]))
    data = plain.SerializeToString()
    shape = simple_shape(data)
    assert shape is not None
    assert (shape.tags, shape.step_size) == ((b"a",), 1)
    other = [
        event_pb2.Event(wall_time=1.0, file_version="brain.Event:2"),
        event_pb2.Event(step=3, summary=summary_pb2.Summary(value=[value])),
        event_pb2.Event(wall_time=1.0, summary=summary_pb2.Summary(value=[described])),
        event_pb2.Event(wall_time=1.0, summary=summary_pb2.Summary()),
    ]
    assert [simple_shape(event.SerializeToString()) for event in other] == [None] * 4
    assert [simple_shape(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_a_record_is_framed_as_tensorboard_frames_it() -> None:
    """Length, checksum, data, checksum: equal to the bytes of TensorBoard's own writer."""
    import io

    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    for data in (b"", b"x", b"y" * 70_000):
        RecordWriter(out).write(data)
    framer = Framer()
    assert framer.frame(b"") + framer.frame(b"x") + framer.frame(b"y" * 70_000) == out.getvalue()
