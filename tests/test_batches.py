"""Counting the samples and tokens of what people really pass."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset, default_collate

from trackperf.batch_size import infer
from trackperf.batches import sample_counter, token_counter, token_definition

if TYPE_CHECKING:
    from collections.abc import Callable


def zeros(*shape: int) -> torch.Tensor:
    """Return a tensor of a shape."""
    return torch.zeros(shape)


def tokens_of(tokens: Any, batch: Any) -> int:
    """Return the tokens of a batch, where nothing may be wrong with it."""
    count = token_counter(tokens, pytest.fail)
    assert count is not None
    return count(batch)


class Pair(NamedTuple):
    """A batch as a named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    """A batch, or a sample, as a dataclass."""

    x: Any
    y: Any = None


class Graphs:
    """As a batch of graphs: nodes of all graphs side by side."""

    num_graphs = 7

    def __init__(self) -> None:
        self.x = zeros(90, 4)
        self.edge_index = zeros(2, 300)


class Encoding(collections.UserDict[str, Any]):
    """As a tokenizer's result: a mapping that also gives its entries as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def boxes(*counts: int) -> list[dict[str, torch.Tensor]]:
    """Return detection targets, one mapping an image."""
    return [{"boxes": zeros(n, 4), "labels": zeros(n)} for n in counts]


KNOWN: dict[str, tuple[Any, int]] = {
    # The reported cases, by their letters.
    "a: fields collated into a list": ([zeros(16, 3), zeros(16)], 16),
    "b: a tensor a sample": ([zeros(n, 4) for n in (5, 3, 9, 1, 2, 8, 4, 6)], 8),
    "c: text beside tensors": ({"id": list("abcd"), "x": zeros(4, 7), "meta": {"h": zeros(4)}}, 4),
    "d: a tensor without dimensions": ({"t": torch.tensor(3.0), "x": zeros(5, 2)}, 5),
    "e: an object that says it": (SimpleNamespace(batch_size=12, x=zeros(99, 2)), 12),
    # Single things.
    "tensor": (zeros(16, 3), 16),
    "array": (np.zeros((16, 3)), 16),
    "empty batch": (zeros(0, 3), 0),
    "sparse tensor": (torch.eye(6).to_sparse(), 6),
    "batch size as an array": (SimpleNamespace(batch_size=np.int64(12)), 12),
    "batch size as dimensions": (SimpleNamespace(batch_size=torch.Size([12, 4])), 12),
    "packed sequence": (pack_sequence([zeros(5), zeros(3), zeros(2)]), 3),
    "graphs": (Graphs(), 7),
    "graphs beside labels": ((Graphs(), zeros(7)), 7),
    # Fields of one batch.
    "pair with equal dimensions": ((zeros(16, 3, 32, 32), zeros(16)), 16),
    "one field": ([zeros(16, 3, 32, 32)], 16),
    "two views": ([zeros(16, 128), zeros(16, 128)], 16),
    "ten crops": ([zeros(16, 3, 8 + n, 8 + n) for n in range(10)], 16),
    "nested pairs": (((zeros(16, 2), zeros(16)), (zeros(16), zeros(16))), 16),
    "tensor beside mappings": ((zeros(16, 3, 8, 8), [{"file": str(n)} for n in range(16)]), 16),
    "tensor beside other text": ({"classes": ["cat", "dog"], "x": zeros(16, 3)}, 16),
    "named tuple": (Pair(zeros(16, 3), zeros(16)), 16),
    "dataclass": (Record(zeros(16, 3), {"y": zeros(16)}), 16),
    "plain object": (SimpleNamespace(x=zeros(16, 3), y=zeros(16), _cache=zeros(3)), 16),
    "tokenizer's tensors": (Encoding(input_ids=zeros(4, 10), attention_mask=zeros(4, 10)), 4),
    "tokenizer's lists": (Encoding(input_ids=[[1, 2, 3], [4, 5]], labels=[0, 1]), 2),
    "text beside labels": ([("a", "b", "c"), zeros(3)], 3),
    "text beside plain labels": ([("a", "b", "c"), (0, 1, 2)], 3),
    # One thing a sample.
    "detection": ([zeros(3, 30, 40), zeros(3, 31, 41), zeros(3, 9, 9), zeros(3, 30, 40)], 4),
    "detection with targets": (([zeros(3, 30, 40)] * 4, boxes(2, 5, 1, 2)), 4),
    "detection, two images": (((zeros(3, 30, 40), zeros(3, 50, 40)), tuple(boxes(2, 5))), 2),
    "detection, one image": (([zeros(3, 30, 40)], boxes(2)), 1),
    "detection, equal counts": (([zeros(3, 30, 40)] * 4, boxes(2, 2, 2, 2)), 4),
    "detection with plain labels": (((zeros(3, 30, 40), zeros(3, 50, 40)), (1, 0)), 2),
    "mappings": ([{"a": 1}, {"a": 2}, {"a": 3}], 3),
    "mappings of tensors": (boxes(2, 5, 1), 3),
    "text": (["a", "b"], 2),
    "objects": ([object(), object(), object()], 3),
    "dataclasses": ([Record(zeros(3, 8, 8), 1) for _ in range(5)], 5),
    "named tuples": ([Pair(zeros(3, 8, 8), 1) for _ in range(5)], 5),
    "input and label": ([(zeros(3, 32, 32), 5)] * 8, 8),
    "tokens": ([[1, 2, 3], [4, 5]], 2),
    "labels": ([zeros(), zeros(), zeros()], 3),
    # Several texts in a row.
    "packed by lengths": (
        {"input_ids": zeros(1, 50), "cu_seqlens": torch.tensor([0, 10, 30, 50], dtype=torch.int32)},
        3,
    ),
    "packed by places": ({"input_ids": zeros(1, 5), "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}, 2),
}

UNKNOWN: dict[str, Any] = {
    "f: fields that contradict each other": {"x": zeros(6, 2), "y": zeros(18, 2)},
    "g: a bare string": "sixteen",
    "nothing": None,
    "number": 16,
    "empty list": [],
    "no dimensions": torch.tensor(1.0),
    "pair that contradicts": (zeros(6, 2), zeros(18, 2)),
    "list of two that contradicts": [zeros(6, 2), zeros(18, 2)],
    "one graph as a tuple": (zeros(100, 16), zeros(2, 300), zeros(100)),
    "one graph as a list": [zeros(100, 16), zeros(40, 4), zeros(1, 2)],
    "packed text as a tuple": (zeros(500), zeros(9), zeros(300)),
    "images, or fields of three": [zeros(3, 32, 32)] * 8,
    "pairs of images": [(zeros(3, 32, 32), zeros(3, 32, 32))] * 8,
    "sentence pairs, or two sentences": [("a", "b", "c"), ("d", "e", "f")],
    "views as mappings": [{"image": zeros(16, 3, 8, 8)}, {"image": zeros(16, 3, 8, 8)}],
    "generator": (n for n in range(3)),
    "batch size that is none": SimpleNamespace(batch_size=True),
}


class TestInference:
    """The batch itself is looked at."""

    @pytest.mark.parametrize("case", KNOWN)
    def test_known(self, case: str) -> None:
        """What a batch of this kind holds is told right, every time, with nothing said."""
        batch, expected = KNOWN[case]
        said: list[str] = []
        count = sample_counter(None, said.append)

        assert [expected] * 3 == [count(batch) for _ in range(3)]
        assert said == []

    @pytest.mark.parametrize("case", UNKNOWN)
    def test_unknown(self, case: str) -> None:
        """What cannot be told is unknown, never 1, and is said once with what to do."""
        said: list[str] = []
        count = sample_counter(None, said.append)

        assert [count(UNKNOWN[case]) for _ in range(40)] == [-1] * 40
        assert len(said) == 1
        assert "samples=" in said[0]

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested_tensors(self) -> None:
        """Both kinds of nested tensors have a first dimension."""
        for layout in (torch.strided, torch.jagged):
            batch = torch.nested.nested_tensor([zeros(2, 5), zeros(3, 5)], layout=layout)
            assert sample_counter(None, pytest.fail)(batch) == 2

    def test_no_device_is_read(self) -> None:
        """A tensor whose memory is not the CPU's is counted by its shape."""
        batch = {"x": torch.zeros(16, 3, device="meta"), "y": torch.zeros(16, device="meta")}
        assert sample_counter(None, pytest.fail)(batch) == 16

    def test_iterators_are_left_alone(self) -> None:
        """Looking at a batch takes nothing out of it."""
        batch = iter([1, 2, 3])
        sample_counter(None, lambda _: None)(batch)
        assert list(batch) == [1, 2, 3]

    def test_batch_that_fails(self) -> None:
        """A batch whose own attributes raise is unknown, and nothing comes out."""

        class Broken:
            @property
            def batch_size(self) -> int:
                raise RuntimeError("not yet")

        said: list[str] = []
        assert sample_counter(None, said.append)(Broken()) == -1
        assert len(said) == 1

    def test_batch_inside_itself(self) -> None:
        """A container that holds itself ends."""
        batch: dict[str, Any] = {"x": zeros(4, 2)}
        batch["self"] = batch
        assert sample_counter(None, pytest.fail)(batch) == 4


class TestLaterBatches:
    """The place that told is read again, as long as batches look alike."""

    def test_sizes_of_a_real_loader(self) -> None:
        """103 items by 16 are 16, 16, ..., 7."""
        loader = DataLoader(TensorDataset(zeros(103, 3), zeros(103)), batch_size=16)
        count = sample_counter(None, pytest.fail)
        assert [count(batch) for batch in loader] == [16] * 6 + [7]

    @pytest.mark.parametrize("key", [None, "x", 0])
    def test_varying_sizes(self, key: str | int | None) -> None:
        """Sizes that change at every step are each counted as they are."""
        count = sample_counter(None, pytest.fail)
        sizes = [1, 2, 1, *range(1, 60)]
        make: dict[str | int | None, Callable[[int], Any]] = {
            None: lambda n: zeros(n, 3),
            "x": lambda n: {"x": zeros(n, 3)},
            0: lambda n: [zeros(n, 3), zeros(n)],
        }
        assert sizes == [count(make[key](n)) for n in sizes]

    def test_last_batch_looks_like_an_image(self) -> None:
        """A partial batch that alone would be ambiguous is read as the batches before it."""
        count = sample_counter(None, pytest.fail)
        assert [count([zeros(n, 28, 28), zeros(n, 28, 28)]) for n in (16, 3)] == [16, 3]

    def test_few_ragged_samples(self) -> None:
        """Two or one tensors a sample are read as the eight before them."""
        count = sample_counter(None, pytest.fail)
        assert [count([zeros(n + 2, 4) for n in range(size)]) for size in (8, 2, 1)] == [8, 2, 1]

    def test_agreement_by_chance(self) -> None:
        """Samples that had equal lengths in the first batch are counted as samples from the next on."""
        count = sample_counter(None, pytest.fail)
        count([zeros(7) for _ in range(8)])
        assert count([zeros(n) for n in (5, 3, 9, 1, 2, 8, 4, 6)]) == 8

    def test_fields_that_come_to_contradict(self) -> None:
        """Fields that agreed in the first batch only make later batches unknown."""
        said: list[str] = []
        count = sample_counter(None, said.append)
        assert [count({"x": zeros(6), "y": zeros(6)}), count({"x": zeros(5), "y": zeros(18)})] == [6, -1]
        assert len(said) == 1

    def test_another_kind_of_batch(self) -> None:
        """A loader that alternates between kinds of batches is counted right."""
        count = sample_counter(None, pytest.fail)
        batches = [
            zeros(4, 2),
            [zeros(5), zeros(5)],
            {"x": zeros(6)},
            {"y": zeros(7)},
            Graphs(),
            Pair(zeros(8), None),
        ]
        assert [count(batch) for batch in batches * 2] == [4, 5, 6, 7, 7, 8] * 2

    def test_part_of_another_kind(self) -> None:
        """Text where a list of texts was is not read as the list."""
        count = sample_counter(None, lambda _: None)
        assert [count({"texts": texts}) for texts in (["a", "b"], "abc", ["c"])] == [2, -1, 1]

    def test_known_after_unknown(self) -> None:
        """A batch that cannot be told does not spoil the next."""
        count = sample_counter(None, lambda _: None)
        assert [count(batch) for batch in [None, zeros(4)] * 2] == [-1, 4, -1, 4]

    def test_default_collate(self) -> None:
        """What the default collate makes of nested samples is counted."""
        sample = ({"image": np.zeros((3, 8, 8)), "name": "a"}, 1, [zeros(2), zeros(2)])
        assert sample_counter(None, pytest.fail)(default_collate([sample] * 5)) == 5


class TestGivenSamples:
    """The user says it."""

    @pytest.mark.parametrize("value", [32, np.int32(32), torch.tensor(32)])
    def test_constant(self, value: Any) -> None:
        """A whole number counts for every batch, whatever the batch says."""
        assert sample_counter(value, pytest.fail)(zeros(7, 2)) == 32

    @pytest.mark.parametrize("value", [True, 0, -1, 2.5, "x", [1], float("nan")])
    def test_bad_constant(self, value: Any) -> None:
        """What is no count is said at once, with what was got and what is allowed; nothing is counted."""
        said: list[str] = []
        count = sample_counter(value, said.append)
        assert count(zeros(7, 2)) == -1
        assert len(said) == 1
        assert "samples=" in said[0]
        assert "whole number" in said[0]
        assert type(value).__name__ in said[0]

    @pytest.mark.parametrize(
        "value", [5, np.int64(5), np.float64(5), torch.tensor(5), torch.tensor(5.0), 5.0]
    )
    def test_function(self, value: Any) -> None:
        """A function may return any kind of single whole number on the CPU."""
        assert sample_counter(lambda batch: value, pytest.fail)(zeros(7, 2)) == 5

    def test_function_wins(self) -> None:
        """A function is believed against the batch, and asked every time."""
        count = sample_counter(lambda batch: len(batch) // 2, pytest.fail)
        assert [count(zeros(n)) for n in (8, 4, 0)] == [4, 2, 0]

    @pytest.mark.parametrize(
        "value",
        [-1, True, np.bool_(True), torch.tensor(True), None, "8", 2.5, zeros(3), np.zeros(1), float("inf")],
    )
    def test_function_returns_no_count(self, value: Any) -> None:
        """What a function returns that is no count is unknown, said once."""
        said: list[str] = []
        count = sample_counter(lambda batch: value, said.append)
        assert [count(None), count(None)] == [-1, -1]
        assert len(said) == 1
        assert type(value).__name__ in said[0]

    def test_function_returns_a_device_tensor(self) -> None:
        """A result that lies on a device is not waited for."""
        said: list[str] = []
        count = sample_counter(lambda batch: torch.ones((), device="meta"), said.append)
        assert count(None) == -1
        assert "meta" in said[0]

    def test_function_raises(self) -> None:
        """A function that raises costs the steps where it does, with its error told once."""
        said: list[str] = []
        count = sample_counter(lambda batch: 6 // batch, said.append)
        assert [count(n) for n in (0, 2, 0, 3)] == [-1, 3, -1, 2]
        assert len(said) == 1
        assert "ZeroDivisionError" in said[0]

    def test_interrupt_passes(self) -> None:
        """Ctrl-C inside the user's function is the user's."""

        def interrupted(batch: Any) -> int:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sample_counter(interrupted, pytest.fail)(None)


MASK = torch.tensor([[1] * n + [0] * (10 - n) for n in (10, 7, 5, 2)])


class TestTokens:
    """Padding is not a token unless asked for."""

    @pytest.mark.parametrize(
        "mask",
        [MASK, MASK.bool(), MASK.float(), MASK.numpy(), MASK.tolist()],
        ids=["int", "bool", "float", "array", "lists"],
    )
    def test_mask(self, mask: Any) -> None:
        """A mask of 4 x 10 with lengths 10, 7, 5 and 2 holds 24 tokens."""
        assert tokens_of("attention_mask", {"attention_mask": mask}) == 24

    @pytest.mark.parametrize(
        "batch",
        [
            Encoding(mask=MASK),
            SimpleNamespace(mask=MASK),
            ({"mask": MASK}, zeros(4)),
            [zeros(4), SimpleNamespace(mask=MASK)],
        ],
    )
    def test_where_a_mask_is_found(self, batch: Any) -> None:
        """A mask is found by its name as a key, as an attribute, and in the parts of a tuple or list."""
        assert tokens_of("mask", batch) == 24

    @pytest.mark.parametrize(
        "ids", [zeros(4, 10), torch.zeros(4, 10, device="meta"), np.zeros((4, 10)), zeros(4, 10).tolist()]
    )
    def test_padded(self, ids: Any) -> None:
        """Only by its own name is padding counted: 40; a tensor on a device has a shape too."""
        assert tokens_of("padded", {"input_ids": ids, "attention_mask": MASK}) == 40

    @pytest.mark.parametrize("tokens", [99, lambda batch: 99])
    def test_user_wins(self, tokens: Any) -> None:
        """A number or a function of the user's is believed against a mask."""
        assert tokens_of(tokens, {"attention_mask": MASK}) == 99

    @pytest.mark.parametrize(
        ("batch", "reason"),
        [
            ({"x": zeros(4)}, "has no 'attention_mask'"),
            ({"attention_mask": MASK.to("meta")}, "meta"),
            (None, "has no"),
            ({"attention_mask": "11"}, "cannot"),
        ],
    )
    def test_mask_that_cannot_be_counted(self, batch: Any, reason: str) -> None:
        """A mask that is missing, on a device or no mask is unknown, said once with the reason."""
        said: list[str] = []
        count = token_counter("attention_mask", said.append)
        assert count is not None
        assert [count(batch), count(batch)] == [-1, -1]
        assert len(said) == 1
        assert reason in said[0]

    def test_device_is_given_no_work(self) -> None:
        """A mask on a device is refused before anything is computed from it."""

        class Mask:
            device = torch.device("cuda:0")

            def count_nonzero(self) -> int:
                pytest.fail("the device was given work")

        count = token_counter("mask", lambda _: None)
        assert count is not None
        assert count({"mask": Mask()}) == -1

    @pytest.mark.parametrize("tokens", [True, -1, 0, 1.5, "", ["mask"]])
    def test_bad_tokens(self, tokens: Any) -> None:
        """What says nothing about tokens is said at once, and none are counted."""
        said: list[str] = []
        assert token_counter(tokens, said.append) is None
        assert len(said) == 1
        assert "attention_mask" in said[0]

    def test_none(self) -> None:
        """Nobody said what a token is: none are counted and nothing is said."""
        assert token_counter(None, pytest.fail) is None

    def test_definitions(self) -> None:
        """What a token is reads differently for every way to count."""
        ways: list[Any] = [None, True, "", 512, sum, "attention_mask", "padded"]
        assert [token_definition(way) for way in ways] == [
            None,
            None,
            None,
            "512 a batch",
            "function sum",
            "non-zero entries of attention_mask",
            "elements of input_ids, padding included",
        ]


def test_import_needs_no_torch() -> None:
    """Counting is told from the batch alone: importing it brings neither torch nor numpy."""
    code = "import sys, trackperf.batches; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_long_lists_are_not_read_to_the_end() -> None:
    """A list of many samples is judged by its first ones."""

    class Watched(dict[str, int]):
        reads = 0

        def items(self) -> Any:
            Watched.reads += 1
            return super().items()

    reading = infer([Watched(a=1) for _ in range(5000)])
    assert reading is not None
    assert reading.size == 5000
    assert Watched.reads < 500
