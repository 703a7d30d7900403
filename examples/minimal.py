"""
The two lines: a small network on generated data.

    pip install "trackperf[demo]"
    python examples/minimal.py
    tensorboard --logdir runs

Takes some ten seconds on a CPU.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import trackperf

STEPS = 1000
BATCH = 64
FEATURES = 256
WIDTH = 2048
CLASSES = 10
RUNS = "runs"


def main(steps: int, runs: str) -> None:
    """Train for so many steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a network gains nothing from more
    data = TensorDataset(torch.randn(steps * BATCH, FEATURES), torch.randint(CLASSES, (steps * BATCH,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters())

    perf = trackperf.init(dir=runs)  # the first line
    for inputs, labels in perf.steps(loader):  # and the second
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    print(f"last loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The two lines.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--runs", default=RUNS, help="folder of runs")
    options = parser.parse_args()
    main(options.steps, options.runs)
