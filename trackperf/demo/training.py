"""The demo's training: a small convolutional network on the CPU, an ordinary loop with trackperf in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, cast

from trackperf.demo.data import SIDE, DigitImages, Draws

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from trackperf import Collector

__all__ = ["BATCH", "GOAL", "LEARNING_RATE", "make_loader", "seconds_a_step", "train"]

BATCH: Final = 32
LEARNING_RATE: Final = 3e-3
GOAL: Final = "val/accuracy >= 0.9"
_EVALUATIONS: Final = 5
_WIDTH: Final = 32
_SEED: Final = 7
_TRIED: Final = 5
_TRIED_BEFORE: Final = 2


def train(
    perf: Collector,
    loader: DataLoader[Any],
    validation: tuple[Tensor, Tensor],
    *,
    steps: int,
    enough: Callable[[], bool],
) -> float:
    """
    Train until the loader ends, or before that after `steps`; return the last validation accuracy.

    Args:
        perf: the run.

        loader: gives that many batches at least.

        validation: images and labels.

        steps: steps to do at least.

        enough: asked from then on whether to stop.
    """
    model, optimizer = _make_model()
    every = max(1, steps // _EVALUATIONS)
    accuracy, step, evaluated = 0.0, 0, -1
    for step, (images, labels) in enumerate(perf.steps(loader), 1):
        _update(model, optimizer, images, labels)
        if step >= steps and enough():
            break
        if step % every == 0:
            accuracy, evaluated = _evaluate(perf, model, validation), step
    return accuracy if evaluated == step else _evaluate(perf, model, validation)


def make_loader(images: DigitImages, *, steps: int, workers: int) -> DataLoader[Any]:
    """Return a loader of so many batches, the same whatever the number of workers."""
    from torch.utils.data import DataLoader, Dataset

    return DataLoader(
        cast("Dataset[Any]", images),
        batch_size=BATCH,
        sampler=Draws(len(images), steps * BATCH),
        num_workers=workers,
    )


def seconds_a_step(images: DigitImages, clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return what a step of a starving run takes here, by trying a few."""
    model, optimizer = _make_model()
    begin = clock()
    for tried, (batch, labels) in enumerate(make_loader(images, steps=_TRIED + _TRIED_BEFORE, workers=0)):
        if tried == _TRIED_BEFORE:
            begin = clock()
        _update(model, optimizer, batch, labels)
    return (clock() - begin) / _TRIED / 1e9


def _make_model() -> tuple[nn.Module, Optimizer]:
    import torch
    from torch import nn

    torch.manual_seed(_SEED)
    model = nn.Sequential(
        nn.Conv2d(1, _WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(_WIDTH, 2 * _WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * _WIDTH * (SIDE // 4) ** 2, 10),
    )
    return model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def _update(model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor) -> None:
    from torch.nn.functional import cross_entropy

    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _evaluate(perf: Collector, model: nn.Module, validation: tuple[Tensor, Tensor]) -> float:
    import torch

    images, labels = validation
    with perf.phase("eval"), torch.inference_mode():
        accuracy = float((model(images).argmax(1) == labels).float().mean())
    perf.observe("val/accuracy", accuracy)
    return accuracy
