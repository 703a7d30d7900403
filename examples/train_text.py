"""
A small character-level transformer learns to write Python, from the standard library's own source.

    pip install "trackperf[demo]"
    python examples/train_text.py
    python examples/train_text.py --resume --steps 600
    tensorboard --logdir runs

Shows tokens a second, evaluation and checkpoints as phases, a goal, and a run that goes on where a checkpoint
was taken: the second command continues the first one's run, steps and times included. Takes half a minute on
a CPU.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler

import trackperf

if TYPE_CHECKING:
    from trackperf import Collector

STEPS = 300
BATCH = 32
CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 2
LEARNING_RATE = 2e-3
EVALUATE_EVERY = 50
CHARACTERS = 1_000_000
GOAL = "val/loss <= 2.2"
RUNS = "runs"
CHECKPOINT = "train_text.pt"


class Text(Dataset[Tensor]):
    """Pieces of a text: CONTEXT characters and the one after each."""

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.codes) - CONTEXT - 1

    def __getitem__(self, index: int) -> Tensor:
        """Return one more character than a piece has: inputs and targets overlap."""
        return self.codes[index : index + CONTEXT + 1]


class Writer(nn.Module):
    """A transformer that says which byte comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(256, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, codes: Tensor) -> Tensor:
        """Return scores for the character after each one."""
        embedded = self.characters(codes) + self.places
        scores: Tensor = self.head(self.layers(embedded, mask=self.mask, is_causal=True))
        return scores


def read_source(characters: int) -> tuple[Tensor, Tensor]:
    """Return the standard library's source as bytes: most of it to train with, a tenth to validate with."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = bytearray()
    for file in files:
        text += file.read_bytes()
        if len(text) >= characters:
            break
    codes = torch.frombuffer(text, dtype=torch.uint8).long()[:characters]
    return codes[: -len(codes) // 10], codes[-len(codes) // 10 :]


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """Return how badly the model guesses the next character, in nats."""
    return cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def evaluate(model: nn.Module, codes: Tensor) -> float:
    """Return the loss on the validation text's first pieces."""
    pieces = codes[: 32 * (CONTEXT + 1)].view(32, CONTEXT + 1)
    with torch.inference_mode():
        return float(loss_of(model, pieces))


def save(path: Path, perf: Collector, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint whole or not at all, the run's own state in it."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "perf": perf.state_dict(),
    }
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)


def main(steps: int, runs: str, *, resume: bool) -> None:
    """Train until so many steps are done, from the checkpoint where asked to."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a network gains nothing from more
    train_codes, val_codes = read_source(CHARACTERS)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    checkpoint = Path(runs) / CHECKPOINT
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True) if resume else {"step": 0}
    done = state["step"]
    if done >= steps:
        raise SystemExit(f"{checkpoint} has done {done} steps already: give --steps a larger number")

    perf = trackperf.init(
        dir=runs,
        config={"batch": BATCH, "context": CONTEXT, "width": WIDTH, "layers": LAYERS, "lr": LEARNING_RATE},
        tags={"model": "transformer", "data": "python-stdlib"},
        goal=GOAL,
        total_steps=steps,
        progress=True,
    )
    if resume:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        perf.load_state_dict(state["perf"])

    pieces = Text(train_codes)
    order = torch.Generator().manual_seed(done)  # so that a resumed run goes on with other pieces
    sampler = RandomSampler(pieces, num_samples=(steps - done) * BATCH, generator=order)
    loader = DataLoader(pieces, batch_size=BATCH, sampler=sampler)
    for step, batch in enumerate(perf.steps(loader, tokens=BATCH * CONTEXT), done + 1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % EVALUATE_EVERY == 0 or step == steps:
            with perf.phase("eval"):
                loss = evaluate(model, val_codes)
            perf.observe("val/loss", loss)
            with perf.phase("checkpoint"):
                save(checkpoint, perf, model, optimizer, step)
            print(f"step {step}: validation loss {loss:.3f}")
    perf.finish()

    total = perf.summary()
    reached = "not reached" if total.to_goal_s is None else f"reached after {total.to_goal_s:.1f} s"
    print(f"{perf.name}: {total.steps} steps, {total.train_s:.1f} s of training, {GOAL} {reached}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A character-level transformer with trackperf in its loop.")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the whole run")
    parser.add_argument("--runs", default=RUNS, help="folder of runs and of the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, in the same run")
    options = parser.parse_args()
    main(options.steps, options.runs, resume=options.resume)
