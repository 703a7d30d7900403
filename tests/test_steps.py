"""A loader wrapped by `steps` behaves as the loader does."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

import trackperf
from trackperf.timing.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness import Maker


class Fails(Dataset[int]):
    """Raises at item 7."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise KeyError("item seven")
        return index


class Interrupted(IterableDataset[int]):
    """Is interrupted from the keyboard while it fetches its third item."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        yield 2
        raise KeyboardInterrupt


class Batch:
    """A batch that can be watched."""

    batch_size = 3


def dataset() -> TensorDataset:
    """Return 20 numbered items."""
    return TensorDataset(torch.arange(20).float().reshape(20, 1), torch.arange(20))


class TestTransparent:
    """Length, attributes and batches are the loader's own."""

    def test_batches_are_identical(self, bench: Maker) -> None:
        """Two seeded passes give the same batches with and without the wrapper, and the very same objects."""
        plain = DataLoader(dataset(), batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(1))
        ours = DataLoader(dataset(), batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(1))
        wrapped = bench().perf.steps(ours)
        for _ in range(2):
            pairs = list(zip(plain, wrapped, strict=True))
            assert len(pairs) == 4
            assert all(torch.equal(a[1], b[1]) for a, b in pairs)
        items = [object(), object()]
        assert all(a is b for a, b in zip(items, bench().perf.steps(items, samples=1), strict=True))

    def test_attributes_both_ways(self, bench: Maker) -> None:
        """What the loader has is reached; `set_epoch` and an assignment reach the loader."""
        sampler: DistributedSampler[Any] = DistributedSampler(dataset(), num_replicas=2, rank=0)
        loader = DataLoader(dataset(), batch_size=4, sampler=sampler)
        wrapped: Any = bench().perf.steps(loader)
        assert len(wrapped) == len(loader) == 3
        assert wrapped.dataset is loader.dataset
        assert wrapped.batch_size == 4
        wrapped.sampler.set_epoch(3)
        assert sampler.epoch == 3
        wrapped.mixup_enabled = False
        assert loader.mixup_enabled is False  # type: ignore[attr-defined]
        del wrapped.mixup_enabled
        assert not hasattr(loader, "mixup_enabled")
        assert "num_workers" in dir(wrapped)
        assert repr(loader) in repr(wrapped)

    def test_lists(self, bench: Maker) -> None:
        """Truth, containment and indexing are the loader's own, and count nothing."""
        run = bench()
        wrapped: Any = run.perf.steps([5, 6], samples=1)
        assert wrapped
        assert not run.perf.steps([], samples=1)
        assert 6 in wrapped
        assert wrapped[1] == 6
        assert run.total().steps == 0

    def test_a_generator_is_consumed_once(self, bench: Maker) -> None:
        """An iterable without length works, has no length, and is not read ahead."""
        run = bench()
        seen = []

        def numbers() -> Iterator[int]:
            for number in range(5):
                seen.append(number)
                yield number

        wrapped: Any = run.perf.steps(numbers(), samples=1)
        with pytest.raises(TypeError):
            len(wrapped)
        for place, number in enumerate(wrapped):
            assert seen[-1] == number == place
        assert list(wrapped) == []
        assert run.total().steps == 5

    def test_next_on_an_iterator(self, bench: Maker) -> None:
        """`next()` works where the loader is an iterator, and fails as without us where it is not."""
        run = bench()
        wrapped: Any = run.perf.steps(iter([1, 2, 3]), samples=1)
        assert [next(wrapped), next(wrapped)] == [1, 2]
        with pytest.raises(TypeError, match="'list' object is not an iterator"):
            next(run.perf.steps([1]))  # type: ignore[call-overload]
        assert next(wrapped) == 3
        with pytest.raises(StopIteration):
            next(wrapped)
        assert run.total().steps == 3

    def test_the_batch_is_not_kept_alive(self, bench: Maker) -> None:
        """A batch that the body deletes is gone, as it would be without us."""
        for batch in bench().perf.steps(Batch() for _ in range(3)):
            gone = weakref.ref(batch)
            del batch
            assert gone() is None

    def test_copies_and_pickles_count_nothing(self, bench: Maker) -> None:
        """A copied or pickled wrapper still iterates, and adds no steps to the run."""
        run = bench()
        wrapped = run.perf.steps([1, 2, 3], samples=1)
        for clone in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
            assert isinstance(clone, Steps)
            assert list(clone) == [1, 2, 3]
        assert run.total().steps == 0

    def test_it_moves_batches(self, bench: Maker) -> None:
        """With `device=` the batch is moved, nested containers included, and the move is timed."""
        run = bench()
        batch: dict[str, Any] = {"x": torch.zeros(4, 2), "more": [torch.ones(4), "text"]}
        for moved in run.perf.steps([batch] * 3, device="meta"):
            run.clock.advance(0.1)
            assert moved["x"].device.type == "meta"
            assert moved["more"][0].device.type == "meta"
            assert moved["more"][1] == "text"
        run.perf.finish()
        assert batch["x"].device.type == "cpu"
        assert run.values("perf_data/h2d_ms") == [0.0]


class TestEnds:
    """Loops end in many ways."""

    def test_break(self, bench: Maker) -> None:
        """A body left by `break` is a step; workers of the loader are gone afterwards."""
        run = bench()
        loader = DataLoader(dataset(), batch_size=2, num_workers=1)
        for place, _ in enumerate(run.perf.steps(loader)):
            if place == 2:
                break
        gc.collect()
        assert torch.multiprocessing.active_children() == []
        summary = run.total()
        assert (summary.steps, summary.samples) == (3, 6)

    def test_a_dataset_that_raises(self, bench: Maker) -> None:
        """The original exception comes through, and the steps before it are kept."""
        run = bench()
        with pytest.raises(KeyError, match="item seven"):
            for _ in run.perf.steps(DataLoader(Fails(), batch_size=1)):
                run.clock.advance(0.1)
        summary = run.total()
        assert (summary.steps, summary.samples) == (7, 7)

    def test_an_interrupt_in_next(self, bench: Maker) -> None:
        """Ctrl-C inside the loader comes through, and the steps before it are kept."""
        run = bench()
        with pytest.raises(KeyboardInterrupt):
            for _ in run.perf.steps(DataLoader(Interrupted(), batch_size=None), samples=1):
                run.clock.advance(0.1)
        assert run.total().steps == 2

    def test_several_passes(self, bench: Maker) -> None:
        """Passes over one loader add up, and each has a first batch of its own."""
        run = bench()
        loader = run.perf.steps(DataLoader(dataset(), batch_size=5))
        for _ in range(3):
            for _ in loader:
                run.clock.advance(0.1)
        summary = run.total()
        assert (summary.steps, summary.samples) == (12, 60)

    def test_finish_inside_the_loop(self, bench: Maker) -> None:
        """Ending the run inside the body counts that step, and the loop goes on without us."""
        run = bench()
        bodies = 0
        for place, _ in enumerate(run.perf.steps(list(range(10)), samples=1)):
            run.clock.advance(0.1)
            bodies += 1
            if place == 4:
                run.perf.finish()
        assert bodies == 10
        assert run.total().steps == 5


class TestNested:
    """Loops inside loops."""

    def test_an_inner_loop_makes_the_steps(self, bench: Maker) -> None:
        """In a loop over tasks around loops over batches the batches are the steps: none counts twice."""
        run = bench()
        for _ in run.perf.steps(run.loader(range(3), 0.5), samples=100):
            for _ in run.perf.steps(run.loader(range(10)), samples=4):
                run.clock.advance(0.1)
        summary = run.total()
        assert (summary.steps, summary.samples) == (30, 120)
        assert sum(summary.phases.values()) == pytest.approx(4.5)
        # The first outer wait comes before it is known that an inner loop makes the steps.
        assert summary.phases["startup"] == pytest.approx(0.5)
        assert summary.train_s == pytest.approx(4.0)

    def test_several_optimizer_steps_an_iteration(self, bench: Maker) -> None:
        """`step()` inside a loop makes the steps; the loop's waits are theirs."""
        run = bench()
        for _ in run.perf.steps(run.loader(range(20), 0.1), samples=64):
            for _ in range(2):
                with run.perf.step(samples=32):
                    run.clock.advance(0.1)
        summary = run.total()
        assert (summary.steps, summary.samples) == (40, 1280)
        assert summary.train_s == pytest.approx(20 * 0.3 - 0.1)
        assert summary.metrics["perf/data_pct"].mean == pytest.approx(100 * 1.9 / 5.9)

    def test_a_second_iterator_beside_the_first(self, bench: Maker) -> None:
        """Two loaders read side by side make one step an iteration, not two."""
        run = bench()
        other = iter(run.perf.steps(run.loader(range(100)), samples=8))
        for _ in run.perf.steps(run.loader(range(10)), samples=8):
            next(other)
            run.clock.advance(0.1)
        summary = run.total()
        assert summary.steps in (9, 10)
        assert summary.samples == 8 * summary.steps

    def test_an_abandoned_iterator(self, bench: Maker) -> None:
        """An iterator that was begun, left open and forgotten does not take the steps of the real loop."""
        run = bench()
        peek = iter(run.perf.steps([1, 2, 3], samples=1))
        next(peek)
        run.clock.advance(5.0)
        for _ in run.perf.steps(run.loader(range(10)), samples=4):
            run.clock.advance(0.1)
        summary = run.total()
        assert (summary.steps, summary.samples) == (10, 40)
        assert summary.metrics["perf/step_ms"].mean == pytest.approx(100)
        del peek

    def test_a_validation_inside_a_step(self, bench: Maker) -> None:
        """A loop over a wrapped loader inside `phase("eval")` inside a step leaves that one step."""
        run = bench()
        for place, _ in enumerate(run.perf.steps(run.loader(range(10)), samples=4)):
            run.clock.advance(0.1)
            if place == 5:
                with run.perf.phase("eval"):
                    for _ in run.perf.steps(run.loader(range(7), 0.2), samples=4):
                        run.clock.advance(0.3)
        summary = run.total()
        assert (summary.steps, summary.samples) == (10, 40)
        assert summary.phases["eval"] == pytest.approx(3.5)
        assert summary.metrics["perf/step_ms"].p95 == pytest.approx(100)


class TestOff:
    """A run that is off changes nothing."""

    def test_disabled(self, tmp_path: Path) -> None:
        """`enabled=False` hands back the very same loader, and makes no folder and no thread."""
        perf = trackperf.init(enabled=False, dir=tmp_path / "runs")
        loader = [1, 2]
        assert perf.steps(loader) is loader
        with perf.phase("eval"), perf.data(), perf.transfer(), perf.step(samples=1):
            perf.observe("x", 1.0)
        assert perf.state_dict() == {}
        assert perf.summary().steps == 0
        assert not perf.enabled
        perf.finish()
        assert not (tmp_path / "runs").exists()

    def test_disabled_still_moves(self) -> None:
        """`enabled=False` with `device=` still moves the batch: the training relies on it."""
        perf = trackperf.init(enabled=False)
        assert [batch.device.type for batch in perf.steps([torch.zeros(2)], device="meta")] == ["meta"]
