"""
What to change, computed from the loader's own settings and the measured times.

A batch costs a worker B seconds, and the step needs C seconds beside waiting. With W workers on N CPUs a
step takes the longest of C, B / W and (B + C) / N. B is the wait itself where there are no workers, and at
most W times the step where W workers are busy all the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from trackperf.text import count, duration, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackperf.loaders import LoaderFacts

__all__ = ["advise_loader", "loader_advice"]

_SPIKY: Final = 4.0
"""A 95th percentile of the waits so many times their mean: bursts, not a steady lack."""

_COPY_SHARE: Final = 0.05
"""Share of the step from which a copy to the device is worth a word."""

_START_STEPS: Final = 20.0
"""A first batch that takes so many steps' time is worth a word."""

_NO_GAIN: Final = 0.95
"""A step that keeps this share of its time was not made faster."""

_LIMIT: Final = "Preprocessing is the limit, not the number of workers"

_LIGHTER: Final = (
    "prepare less for each batch (decode once and cache, smaller images), move work to the device, or give "
    "the process more CPUs"
)

_IDLE: Final = 0.5
"""Workers that are busy all the time but use less than this share of their CPUs wait for storage."""


def advise_loader(
    values: Mapping[str, float], facts: LoaderFacts, *, allowed_cpus: float, cuda: bool = False
) -> str:
    """
    Return the advice for a window's values, or an empty text where these do not suffice.

    Args:
        values: the window's values by catalogue key.

        facts: what `loaders.describe` found.

        allowed_cpus: CPUs that the process may use.

        cuda: whether the run trains on a CUDA device.
    """
    step_ms, wait_ms = values.get("perf/step_ms"), values.get("perf/data_wait_ms")
    if step_ms is None or wait_ms is None:
        return ""
    return loader_advice(
        facts,
        step_ms=step_ms,
        wait_ms=wait_ms,
        exposed_ms=values.get("perf_data/exposed_ms"),
        first_batch_ms=values.get("perf_data/first_batch_ms"),
        h2d_ms=values.get("perf_data/h2d_ms"),
        wait_p95_ms=values.get("perf_data/wait_p95_ms"),
        cpu_pct=values.get("perf_host/cpu_pct"),
        allowed_cpus=allowed_cpus,
        cuda=cuda,
    )


def loader_advice(
    facts: LoaderFacts,
    *,
    step_ms: float,
    wait_ms: float,
    allowed_cpus: float,
    first_batch_ms: float | None = None,
    h2d_ms: float | None = None,
    exposed_ms: float | None = None,
    wait_p95_ms: float | None = None,
    cpu_pct: float | None = None,
    cuda: bool = False,
) -> str:
    """
    Return one or two sentences that say which argument of the loader to set to what, and why.

    Args:
        facts: what `loaders.describe` found.

        step_ms: time per step, waiting included.

        wait_ms: time per step inside `next(loader)`.

        allowed_cpus: CPUs that the process may use, by affinity and cgroup limit.

        first_batch_ms: wait for the first batch of a pass.

        h2d_ms: time per step of the copy to the device.

        exposed_ms: time per step that the device had nothing to do; the wait itself where it is not known.

        wait_p95_ms: 95th percentile of the waits.

        cpu_pct: CPU use of the process and its workers, of the CPUs that it may use.

        cuda: whether the run trains on a CUDA device.
    """
    exposed = wait_ms if exposed_ms is None else exposed_ms
    if not all(math.isfinite(value) and value > 0 for value in (step_ms, wait_ms, exposed, allowed_cpus)):
        return ""
    rest_ms = max(step_ms - exposed, step_ms / 1000)
    cpus = max(allowed_cpus, 1.0)
    if not facts.is_dataloader or facts.num_workers is None:
        return _foreign(facts.kind, wait_ms=wait_ms, rest_ms=rest_ms, cpus=cpus)
    busy = min(wait_ms / step_ms, 1.0)
    if _waits_for_storage(facts.num_workers, cpu_pct=cpu_pct, busy=busy, cpus=cpus):
        # Waiting takes no CPU, so the CPUs set no limit to the number of those who wait.
        cpus = math.inf
    main = _workers(facts, step_ms=step_ms, wait_ms=wait_ms, rest_ms=rest_ms, cpus=cpus)
    extras = [
        _prefetch(facts, wait_ms=wait_ms, wait_p95_ms=wait_p95_ms),
        _persistent(facts, first_batch_ms=first_batch_ms, step_ms=step_ms),
        _pinned(facts, h2d_ms=h2d_ms, step_ms=step_ms) if cuda else "",
    ]
    return " ".join([main, *[extra for extra in extras if extra][:1]])


def _workers(facts: LoaderFacts, *, step_ms: float, wait_ms: float, rest_ms: float, cpus: float) -> str:
    now = facts.num_workers or 0
    cost_ms = now * step_ms if now else wait_ms
    needed = max(math.ceil(cost_ms / rest_ms - 1e-9), now + 1)
    if cost_ms <= (cpus - 1) * rest_ms:
        return f"{_set(facts, needed)}: {_cost(cost_ms)}, the rest of the step takes {_ms(rest_ms)}."
    best = max(min(math.ceil(cost_ms / max((cost_ms + rest_ms) / cpus, rest_ms) - 1e-9), math.floor(cpus)), 1)
    reach_ms = max((cost_ms + rest_ms) / cpus, rest_ms, cost_ms / best)
    limit = f"{_cost(cost_ms)}, so keeping up takes {count(needed)} beside the training, on {_cpus(cpus)}"
    if now >= math.floor(cpus) > 1:
        limit = f"they are as many as the {_cpus(cpus)} that this process may use"
    if best <= now or reach_ms > _NO_GAIN * step_ms:
        return f"More than num_workers={now} will not help: {limit}. {_LIMIT}: {_LIGHTER}."
    return (
        f"{_set(facts, best)}, the most that helps here (at best {_ms(reach_ms)} a step instead of "
        f"{_ms(step_ms)}): {limit}. {_LIMIT}: to go further, {_LIGHTER}."
    )


def _set(facts: LoaderFacts, workers: int) -> str:
    # Each worker of a stream reads all of it unless it is told which part is its own.
    stream = ", each with its own share of the stream" if facts.iterable_dataset else ""
    return f"Set num_workers={workers} (now {facts.num_workers}){stream}"


def _cost(cost_ms: float) -> str:
    return f"preparing a batch costs a worker about {_ms(cost_ms)}"


def _waits_for_storage(workers: int, *, cpu_pct: float | None, busy: float, cpus: float) -> bool:
    """Return whether the CPUs are too idle for preprocessing to be what takes the time."""
    at_work = min(workers, cpus) if workers else busy
    return cpu_pct is not None and cpu_pct < _IDLE * at_work / cpus * 100


def _foreign(kind: str, *, wait_ms: float, rest_ms: float, cpus: float) -> str:
    workers = min(math.ceil(wait_ms / rest_ms - 1e-9), max(math.floor(cpus) - 1, 1))
    return (
        f"Prepare batches in the background, for example by a torch DataLoader with num_workers={workers}: "
        f"{kind!r} takes {_ms(wait_ms)} for the data of a step, the rest of the step {_ms(rest_ms)}."
    )


def _prefetch(facts: LoaderFacts, *, wait_ms: float, wait_p95_ms: float | None) -> str:
    if not facts.num_workers or wait_p95_ms is None or wait_p95_ms <= _SPIKY * wait_ms:
        return ""
    now = facts.prefetch_factor or 2
    return (
        f"The wait comes in bursts (mean {_ms(wait_ms)}, 95th percentile {_ms(wait_p95_ms)}): "
        f"prefetch_factor={2 * now} (now {now}) evens them out."
    )


def _persistent(facts: LoaderFacts, *, first_batch_ms: float | None, step_ms: float) -> str:
    if first_batch_ms is None or first_batch_ms <= _START_STEPS * step_ms:
        return ""
    if not facts.num_workers or facts.persistent_workers is not False:
        return ""
    return (
        f"Set persistent_workers=True too: the first batch of a pass takes {_ms(first_batch_ms)}, "
        "as all workers start anew."
    )


def _pinned(facts: LoaderFacts, *, h2d_ms: float | None, step_ms: float) -> str:
    if facts.pin_memory is not False or h2d_ms is None or h2d_ms <= _COPY_SHARE * step_ms:
        return ""
    return f"Set pin_memory=True too: copying to the device takes {_ms(h2d_ms)} a step."


def _ms(milliseconds: float) -> str:
    return duration(milliseconds / 1e3)


def _cpus(cpus: float) -> str:
    return f"{number(cpus)} CPU" if cpus == 1 else f"{number(cpus)} CPUs"
