"""Moving batches: everything that can move does, in the shape that it had."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from trackperf.transfer import mover

# The one device besides the CPU that is there everywhere: tensors on it have no data.
META = torch.device("meta")


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A dataclass that refuses assignment, with a field that its construction makes."""

    x: Any
    extra: dataclasses.InitVar[int]
    double: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self, extra: int) -> None:
        object.__setattr__(self, "double", self.x * 2)


@dataclasses.dataclass(slots=True)
class Slotted:
    """A dataclass without a `__dict__`."""

    x: Any
    name: str = ""


class Encoding(collections.UserDict[str, Any]):
    """As a tokenizer's result: its `to` works in place and returns itself."""

    def to(self, device: Any) -> Encoding:
        """Move in place."""
        self.data = {key: part.to(device) for key, part in self.data.items()}
        return self


class Tags(list[Any]):
    """A list of the user's own kind."""

    source = ""


class Graph:
    """An object with a `to` of its own."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.non_blocking: bool | None = None

    def to(self, device: Any, *, non_blocking: bool = False) -> Graph:
        """Return a moved copy."""
        moved = Graph(self.x.to(device))
        moved.non_blocking = non_blocking
        return moved


def one() -> torch.Tensor:
    """Return a tensor on the CPU."""
    return torch.ones(4, 2)


def move(batch: Any) -> Any:
    """Move a batch with which nothing may be wrong."""
    return mover(META, pytest.fail)(batch)


class TestContainers:
    """Containers come back as the type that they were."""

    def test_tensor(self) -> None:
        """A tensor moves, without waiting."""
        assert move(one()).device == META

    @pytest.mark.parametrize("make", [list, tuple, collections.OrderedDict, dict])
    def test_plain(self, make: Any) -> None:
        """Lists, tuples and dicts come back of the same type with everything moved, in order."""
        plain = issubclass(make, dict)
        batch = make([("b", one()), ("a", one())]) if plain else make([one(), one()])
        moved = move(batch)
        assert make is type(moved)
        assert [part.device for part in (moved.values() if plain else moved)] == [META, META]
        if plain:
            assert list(moved) == ["b", "a"]

    def test_nested(self) -> None:
        """Tensors move at any depth, and what is none stays the very object that it was."""
        array, text = np.ones(3), "a"
        batch = ({"x": [one(), {"y": one()}], "names": [text, None, 5], "array": array}, one())
        moved = move(batch)
        assert [moved[0]["x"][0].device, moved[0]["x"][1]["y"].device, moved[1].device] == [META] * 3
        assert moved[0]["names"] is batch[0]["names"]
        assert moved[0]["array"] is array

    def test_containers_of_the_user(self) -> None:
        """Subclasses keep their type and what else they carry."""
        counts: Any = collections.defaultdict(list, x=one())
        moved = move(counts)
        assert collections.defaultdict is type(moved)
        assert moved["new"] == []

        tags = Tags([one(), "a"])
        tags.source = "disk"
        again = move(tags)
        assert Tags is type(again)
        assert (again.source, again[1], again[0].device) == ("disk", "a", META)

        view = move(MappingProxyType({"x": one()}))
        assert MappingProxyType is type(view)
        assert view["x"].device == META

    def test_named_tuple(self) -> None:
        """A named tuple keeps its names."""
        moved = move(Pair(one(), "a"))
        assert Pair is type(moved)
        assert (moved.x.device, moved.y) == (META, "a")

    def test_dataclasses(self) -> None:
        """Dataclasses move whether frozen, slotted or with fields that no argument sets."""
        frozen = move(Frozen(one(), extra=1))
        assert Frozen is type(frozen)
        assert (frozen.x.device, frozen.double.device) == (META, META)
        slotted = move(Slotted(one(), "a"))
        assert (slotted.x.device, slotted.name) == (META, "a")

    def test_packed_sequence(self) -> None:
        """A packed sequence moves by its own method, its lengths staying on the CPU."""
        moved = move([pack_sequence([one(), one()])])[0]
        assert PackedSequence is type(moved)
        assert (moved.data.device, moved.batch_sizes.device.type) == (META, "cpu")

    def test_own_method(self) -> None:
        """An object that moves itself is asked to, without waiting."""
        moved = move({"graph": Graph(one())})["graph"]
        assert (moved.x.device, moved.non_blocking) == (META, True)

    def test_method_that_returns_nothing(self) -> None:
        """An object that moves itself in place and returns nothing is kept."""

        class Silent:
            device: Any = None

            def to(self, device: Any) -> None:
                self.device = device

        assert move(Silent()).device == META

    def test_size_stays(self) -> None:
        """A tuple type whose content is no tensor is left alone."""
        batch = [torch.Size([1, 2]), dt.date(2024, 1, 1), {1, 2}, range(3)]
        assert batch is move(batch)

    def test_container_in_itself(self) -> None:
        """A container that holds itself ends."""
        batch: list[Any] = [one()]
        batch.append(batch)
        assert move(batch)[0].device == META


class TestTheUsersObjects:
    """What the user handed over stays as it was."""

    def test_nothing_is_changed(self) -> None:
        """The batch that came in still holds its own tensors, a tokenizer's result included."""
        x = one()
        batches: list[Any] = [
            [x],
            {"x": x},
            Encoding(x=x),
            Tags([x]),
            Slotted(x),
            collections.OrderedDict(x=x),
        ]
        for batch in batches:
            move(batch)
        assert all(part is x for part in (batches[0][0], batches[1]["x"], batches[2]["x"], batches[3][0]))
        assert batches[4].x is x
        assert batches[5]["x"] is x

    def test_already_there(self) -> None:
        """What is on the device already is not copied, nor its containers."""
        batch = {"x": [one()], "y": Pair(one(), one())}
        assert batch is mover("cpu", pytest.fail)(batch)


class TestErrors:
    """The user's errors are the user's; ours are told."""

    def test_a_failed_move_is_raised(self) -> None:
        """An error of the move goes on to the loop, which has no batch without it."""

        class Full:
            def to(self, device: Any, *, non_blocking: bool) -> Full:
                raise torch.cuda.OutOfMemoryError("out of memory")

        with pytest.raises(torch.cuda.OutOfMemoryError):
            move([Full()])

    @pytest.mark.parametrize("error", [TypeError, ValueError, AttributeError])
    def test_another_kind_of_to(self, error: type[Exception]) -> None:
        """An object whose `to` means something else is left as it is, told once."""

        class Moment:
            def to(self, zone: str) -> Moment:
                raise error("no such zone")

        said: list[str] = []
        moment = Moment()
        go = mover("meta", said.append)
        for _ in range(3):
            moved = go((moment, one()))
            assert moved[0] is moment
            assert moved[1].device == META
        assert len(said) == 1
        assert "Moment" in said[0]

    def test_container_that_cannot_be_made_again(self) -> None:
        """A container that cannot be rebuilt is left whole, and told."""

        class Fixed(tuple[Any, ...]):
            __slots__ = ()

            def __new__(cls, x: Any, y: Any) -> Any:
                return super().__new__(cls, (x, y))

        said: list[str] = []
        batch = Fixed(one(), one())
        assert mover("meta", said.append)(batch) is batch
        assert len(said) == 1
        assert "Fixed" in said[0]

    @pytest.mark.parametrize("device", ["cudda", "", None, True, -1, 1.5, object()])
    def test_no_device(self, device: Any) -> None:
        """What is no device is told at once, and batches go through as they are."""
        said: list[str] = []
        go = mover(device, said.append)
        batch = [one()]
        assert go(batch) is batch
        assert len(said) == 1
        assert "device=" in said[0]

    @pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cuda:1"])
    def test_devices(self, device: Any) -> None:
        """Names and devices are taken, also those of a device that is not here."""
        mover(device, pytest.fail)
