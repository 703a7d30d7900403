"""Facts of loaders: real DataLoaders, wrappers of all kinds, and things that are no loader."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from trackperf.loaders import LoaderFacts, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = TensorDataset(torch.zeros(32, 2))


class Stream(IterableDataset[int]):
    """A dataset without indices."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_real_dataloader() -> None:
    """All settings of a DataLoader with workers are read."""
    loader = DataLoader(
        DATA,
        batch_size=8,
        shuffle=True,
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=True,
        drop_last=True,
        multiprocessing_context="spawn",
    )
    assert describe(loader) == LoaderFacts(
        kind="DataLoader",
        is_dataloader=True,
        batch_size=8,
        num_workers=2,
        prefetch_factor=3,
        pin_memory=False,
        persistent_workers=True,
        drop_last=True,
        start_method="spawn",
        dataset="TensorDataset",
        sampler="RandomSampler",
        iterable_dataset=False,
    )


def test_plain_dataloader_as_mapping() -> None:
    """What a loader does not have is not in the mapping, which cannot be changed."""
    mapping = describe(DataLoader(DATA)).as_mapping()
    assert mapping["num_workers"] == 0
    assert mapping["batch_size"] == 1
    assert "prefetch_factor" not in mapping
    assert "start_method" not in mapping
    with pytest.raises(TypeError):
        mapping["num_workers"] = 4  # type: ignore[index]


def test_batch_sampler_gives_the_batch_size() -> None:
    """With a batch sampler of the user's own, the batch size is the sampler's."""
    loader = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 16, drop_last=True))
    facts = describe(loader)
    assert (facts.batch_size, facts.drop_last) == (16, True)


def test_stream_and_subclass() -> None:
    """A stream is told from a dataset with indices, and a subclass of DataLoader is one."""

    class Mine(DataLoader[Any]):
        pass

    facts = describe(Mine(Stream(), batch_size=None))
    assert (facts.kind, facts.is_dataloader, facts.iterable_dataset) == ("Mine", True, True)
    assert facts.batch_size is None


@pytest.mark.parametrize(
    "name", ["base_dataloader", "dataloader", "_dataloader", "loader", "_loader", "iterable"]
)
def test_wrappers_are_opened(name: str) -> None:
    """A wrapper, and a wrapper of a wrapper, lead to the DataLoader; the kind stays what was given."""

    class Wrapper:
        def __init__(self, inner: object) -> None:
            setattr(self, name, inner)

    facts = describe(Wrapper(Wrapper(DataLoader(DATA, batch_size=4))))
    assert (facts.kind, facts.is_dataloader, facts.batch_size) == ("Wrapper", True, 4)


def test_no_dataloader() -> None:
    """A generator, a list, None and an endless circle of wrappers have a kind and nothing else."""

    class Circle:
        def __init__(self) -> None:
            self.loader = self

    things: list[tuple[object, str]] = [
        ((number for number in range(3)), "generator"),
        ([], "list"),
        (None, "NoneType"),
        (Circle(), "Circle"),
    ]
    for thing, kind in things:
        assert describe(thing) == LoaderFacts(kind=kind)
        assert describe(thing).as_mapping() == {"kind": kind, "is_dataloader": False}


def test_hostile_objects() -> None:
    """Properties that raise and attributes of absurd types are unknown, never an exception."""

    class Raising:
        num_workers = 2
        batch_size = "many"
        pin_memory = 1
        dataset = None

        @property
        def sampler(self) -> object:
            raise RuntimeError("not yet")

    class Anything:
        def __getattr__(self, name: str) -> object:
            return Anything()

    class Nothing:
        def __getattr__(self, name: str) -> object:
            raise OSError(name)

    class Boolean:
        num_workers = True
        batch_size = 1
        dataset = ()

    assert not describe(Boolean()).is_dataloader
    facts = describe(Raising())
    assert (facts.num_workers, facts.batch_size, facts.pin_memory, facts.sampler) == (2, None, None, None)
    assert not describe(Anything()).is_dataloader
    assert not describe(Nothing()).is_dataloader


def test_needs_no_torch() -> None:
    """Neither importing the modules nor describing something imports torch or numpy."""
    code = (
        "import sys, trackperf.loaders, trackperf.advice, trackperf.alerts, trackperf.goal; "
        "import trackperf.comparison, trackperf.listing; trackperf.loaders.describe([1]); "
        "print([name for name in ('torch', 'numpy', 'tensorboard') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
