"""Advice: the right argument and number for each case, and a real loader that gets better by following it."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from trackperf.advice import advise_loader, loader_advice
from trackperf.loaders import LoaderFacts, describe


def facts(num_workers: int | None, **settings: Any) -> LoaderFacts:
    """Return the facts of a DataLoader."""
    return LoaderFacts(kind="DataLoader", is_dataloader=True, num_workers=num_workers, **settings)


def workers_in(advice: str) -> int | None:
    """Return the number of workers that the advice says to set."""
    found = re.match(r"Set num_workers=(\d+)", advice)
    return int(found[1]) if found else None


@pytest.mark.parametrize(
    ("now", "step_ms", "wait_ms", "cpus", "expected"),
    [
        (0, 150.0, 51.0, 8.0, 1),
        (0, 300.0, 100.0, 8.0, 1),
        (0, 700.0, 500.0, 8.0, 3),
        (0, 60.0, 51.0, 8.0, 6),
        (2, 60.0, 20.0, 8.0, 3),
        (4, 100.0, 50.0, 32.0, 8),
    ],
)
def test_workers_needed(now: int, step_ms: float, wait_ms: float, cpus: float, expected: int) -> None:
    """ceil(wait / compute) without workers, ceil(W x S / C) with W busy ones, while the CPUs suffice."""
    advice = loader_advice(facts(now), step_ms=step_ms, wait_ms=wait_ms, allowed_cpus=cpus)
    assert advice.startswith(f"Set num_workers={expected} (now {now}): ")
    assert "limit" not in advice


def test_numbers_are_in_the_sentence() -> None:
    """The advice states what a batch costs and what the rest of the step takes."""
    advice = loader_advice(facts(0), step_ms=150.0, wait_ms=51.0, allowed_cpus=8.0)
    assert advice == (
        "Set num_workers=1 (now 0): preparing a batch costs a worker about 51 ms, "
        "the rest of the step takes 99 ms."
    )


def test_most_that_helps_on_a_small_machine() -> None:
    """Where the CPUs do not suffice, the most that helps is advised, with the step it leads to."""
    advice = loader_advice(facts(0), step_ms=180.0, wait_ms=160.0, allowed_cpus=4.0)
    assert advice.startswith(
        "Set num_workers=4 (now 0), the most that helps here (at best 45 ms a step instead of 180 ms): "
    )
    assert "keeping up takes 8 beside the training, on 4 CPUs" in advice
    assert "Preprocessing is the limit, not the number of workers" in advice


@pytest.mark.parametrize(
    ("now", "step_ms", "wait_ms", "cpus"),
    [
        (0, 60.0, 51.0, 1.0),
        (4, 60.0, 20.0, 4.0),
        (16, 100.0, 50.0, 4.0),
        (2, 60.0, 20.0, 2.0),
        (1, 60.0, 20.0, 1.5),
    ],
)
def test_more_workers_will_not_help(now: int, step_ms: float, wait_ms: float, cpus: float) -> None:
    """Where the CPUs are used up, it says so and what to do instead of a number."""
    advice = loader_advice(facts(now), step_ms=step_ms, wait_ms=wait_ms, allowed_cpus=cpus)
    assert advice.startswith(f"More than num_workers={now} will not help: ")
    assert "prepare less for each batch" in advice


def test_never_more_workers_than_cpus() -> None:
    """Over many cases: more than now, never more than the CPUs, and what is promised is faster."""
    for cpus in (1.0, 1.5, 2.0, 3.0, 8.0, 64.0):
        for now in (0, 1, 2, 4, 8, 100):
            for share in (0.11, 0.3, 0.5, 0.9, 0.999):
                advice = loader_advice(facts(now), step_ms=100.0, wait_ms=100.0 * share, allowed_cpus=cpus)
                workers = workers_in(advice)
                if workers is not None:
                    assert now < workers <= cpus
                else:
                    assert advice.startswith("More than")


def test_workers_that_wait_for_storage() -> None:
    """Idle CPUs set no limit: workers that wait for storage may be more than the CPUs."""
    idle, busy = (
        loader_advice(facts(4), step_ms=60.0, wait_ms=20.0, allowed_cpus=4.0, cpu_pct=cpu_pct)
        for cpu_pct in (20.0, 95.0)
    )
    assert workers_in(idle) == 6
    assert workers_in(busy) is None
    assert workers_in(loader_advice(facts(0), step_ms=60.0, wait_ms=51.0, allowed_cpus=2.0, cpu_pct=5.0)) == 6


def test_exposed_wait_counts_on_a_device() -> None:
    """On a device a batch costs the host's wait, and the device's own time is what must be kept up with."""
    advice = loader_advice(facts(0), step_ms=60.0, wait_ms=51.0, exposed_ms=25.0, allowed_cpus=8.0)
    assert workers_in(advice) == 2
    assert "the rest of the step takes 35 ms" in advice


def test_pin_memory_only_where_the_copy_shows() -> None:
    """pin_memory is named on CUDA, when it is off and the copy takes more than 5 % of the step."""

    def told(*, h2d_ms: float | None, cuda: bool, pinned: bool | None) -> bool:
        loader = facts(2, pin_memory=pinned)
        return "pin_memory=True" in loader_advice(
            loader, step_ms=60.0, wait_ms=20.0, allowed_cpus=8.0, h2d_ms=h2d_ms, cuda=cuda
        )

    assert told(h2d_ms=9.0, cuda=True, pinned=False)
    assert not told(h2d_ms=9.0, cuda=False, pinned=False)
    assert not told(h2d_ms=9.0, cuda=True, pinned=True)
    assert not told(h2d_ms=9.0, cuda=True, pinned=None)
    assert not told(h2d_ms=1.0, cuda=True, pinned=False)
    assert not told(h2d_ms=None, cuda=True, pinned=False)


def test_persistent_workers_only_where_start_up_shows() -> None:
    """persistent_workers is named when there are workers, it is off, and the first batch takes long."""

    def told(workers: int, first_batch_ms: float | None, *, persistent: bool | None) -> bool:
        loader = facts(workers, persistent_workers=persistent)
        advice = loader_advice(
            loader, step_ms=60.0, wait_ms=20.0, allowed_cpus=8.0, first_batch_ms=first_batch_ms
        )
        return "persistent_workers=True" in advice

    assert told(2, 3000.0, persistent=False)
    assert not told(2, 3000.0, persistent=True)
    assert not told(2, 300.0, persistent=False)
    assert not told(2, None, persistent=False)
    assert not told(0, 3000.0, persistent=False)


def test_prefetch_only_where_waits_come_in_bursts() -> None:
    """prefetch_factor is doubled when the 95th percentile lies far above the mean."""

    def advice(workers: int, p95: float | None) -> str:
        loader = facts(workers, prefetch_factor=3 if workers else None)
        return loader_advice(loader, step_ms=60.0, wait_ms=10.0, allowed_cpus=8.0, wait_p95_ms=p95)

    assert "prefetch_factor=6 (now 3)" in advice(2, 80.0)
    assert "prefetch_factor" not in advice(2, 20.0)
    assert "prefetch_factor" not in advice(2, None)
    assert "prefetch_factor" not in advice(0, 80.0)


def test_stream_is_warned_of_repeats() -> None:
    """Workers of a stream must share it, or every sample comes as often as there are workers."""
    loader = facts(0, iterable_dataset=True)
    assert "own share of the stream" in loader_advice(loader, step_ms=60.0, wait_ms=20.0, allowed_cpus=8.0)


def test_foreign_loader() -> None:
    """A loader that is no DataLoader gets advice without arguments that it does not have."""
    advice = loader_advice(describe(iter([])), step_ms=100.0, wait_ms=60.0, allowed_cpus=4.0)
    assert advice == (
        "Prepare batches in the background, for example by a torch DataLoader with num_workers=2: "
        "'list_iterator' takes 60 ms for the data of a step, the rest of the step 40 ms."
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_useless_times_give_no_advice(bad: float) -> None:
    """Times that cannot be give an empty text, never an exception."""
    assert loader_advice(facts(0), step_ms=bad, wait_ms=1.0, allowed_cpus=4.0) == ""
    assert loader_advice(facts(0), step_ms=1.0, wait_ms=bad, allowed_cpus=4.0) == ""


def test_wait_of_the_whole_step() -> None:
    """A step that is all waiting divides by nothing."""
    assert "limit" in loader_advice(facts(0), step_ms=100.0, wait_ms=100.0, allowed_cpus=4.0)
    assert "limit" in loader_advice(facts(0), step_ms=100.0, wait_ms=130.0, allowed_cpus=4.0)


def test_from_window_values() -> None:
    """The values of a window by catalogue key lead to the same advice; without times there is none."""
    values = {"perf/step_ms": 60.0, "perf/data_wait_ms": 51.0, "perf_data/exposed_ms": 25.0}
    assert workers_in(advise_loader(values, facts(0), allowed_cpus=8.0)) == 2
    spiky = {
        **values,
        "perf_data/wait_p95_ms": 900.0,
        "perf_data/first_batch_ms": 9e3,
        "perf_data/h2d_ms": 30.0,
    }
    assert "prefetch_factor=4 (now 2)" in advise_loader(spiky, facts(1), allowed_cpus=8.0)
    assert "num_workers=7" in advise_loader({**values, "perf_host/cpu_pct": 1.0}, facts(4), allowed_cpus=4.0)
    assert advise_loader({"perf/step_ms": 60.0}, facts(0), allowed_cpus=8.0) == ""


def burn(rounds: int) -> bytes:
    """Use the CPU for about a millisecond for each three rounds."""
    block = bytes(500_000)
    for _ in range(rounds):
        block = hashlib.blake2b(block).digest() * 7812
    return block


class Hashed(Dataset[int]):
    """Samples that really cost CPU time."""

    def __init__(self, batches: int) -> None:
        self._samples = batches * 4

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> int:
        return burn(2)[0] + index


def timed(workers: int, batches: int = 24) -> tuple[DataLoader[int], float, float]:
    """Run a small training; return its loader, and milliseconds a step and a wait, first batch apart."""
    loader = DataLoader(Hashed(batches), batch_size=4, num_workers=workers)
    waits: list[float] = []
    steps: list[float] = []
    begin = time.perf_counter()
    for _ in loader:
        ready = time.perf_counter()
        burn(12)
        end = time.perf_counter()
        waits.append((ready - begin) * 1e3)
        steps.append((end - begin) * 1e3)
        begin = end
    return loader, sum(steps[1:]) / (batches - 1), sum(waits[1:]) / (batches - 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs the number of CPUs allowed")
def test_following_the_advice_lowers_the_wait() -> None:
    """A real loader that burns CPU in `__getitem__` waits less once the advice is followed."""
    cpus = float(len(os.sched_getaffinity(0)))
    if cpus < 2:
        pytest.skip("one CPU: no worker can help")
    outcomes: list[tuple[float, float]] = []
    for _ in range(5):
        loader, step_ms, wait_ms = timed(0)
        advice = loader_advice(describe(loader), step_ms=step_ms, wait_ms=wait_ms, allowed_cpus=cpus)
        workers = workers_in(advice)
        assert workers is not None, advice
        assert workers >= 1
        _, _, after_ms = timed(workers)
        outcomes.append((wait_ms, after_ms))
        if after_ms < 0.8 * wait_ms:
            return
    pytest.fail(f"waits before and after, in ms: {outcomes}")
