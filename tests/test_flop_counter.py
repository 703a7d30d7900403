"""The FLOP of a step, counted while real torch runs it."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trackperf.flop_counter import CountedStep, StepCount

FORWARD = 2 * 8 * 64 * 64
"""FLOP of a layer of 64 by 64 on 8 samples."""


def model() -> nn.Module:
    """Return two layers."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def batch(*, grad: bool = False) -> torch.Tensor:
    """Return 8 samples."""
    return torch.randn(8, 64, requires_grad=grad)


def count(step: Any) -> StepCount:
    """Return what is counted of a call."""
    counted = CountedStep()
    with counted.body(1):
        step()
    assert counted.result is not None, counted.failure
    return counted.result


class TestCount:
    """The number is right."""

    def test_forward_and_backward(self) -> None:
        """A layer is 2 m n k forward and twice that backward; but a first input needs no gradient."""
        found = count(lambda: model()(batch()).sum().backward())
        assert (found.flops, found.blind, found.kind) == (5 * FORWARD, (), "float32")
        assert count(lambda: model()(batch(grad=True)).sum().backward()).flops == 6 * FORWARD

    def test_convolution(self) -> None:
        """A convolution is 2 x outputs x inputs x kernel for every place."""
        layer = nn.Conv2d(3, 8, 3, padding=1)
        assert count(lambda: layer(torch.randn(2, 3, 10, 10))).flops == 2 * 2 * 100 * 8 * 3 * 9

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing(self, reentrant: bool) -> None:
        """What activation checkpointing computes a second time is no FLOP of the model."""
        layers = model()

        def step() -> None:
            out: Any = checkpoint(layers, batch(grad=True), use_reentrant=reentrant)
            out.sum().backward()

        assert count(step).flops == 6 * FORWARD

    def test_gradient_of_a_gradient(self) -> None:
        """A backward pass that is itself differentiated counts, although gradients are on in it."""
        x = batch(grad=True)
        weight = torch.randn(64, 64, requires_grad=True)

        def step() -> None:
            (grad,) = torch.autograd.grad((x @ weight).square().sum(), x, create_graph=True)
            torch.autograd.backward(grad.square().sum())

        assert count(step).flops > 3 * FORWARD

    def test_inference(self) -> None:
        """A teacher's pass without gradients counts as well, where torch keeps operations whole."""

        def step() -> None:
            with torch.inference_mode():
                model()(batch())

        assert count(step).flops == 2 * FORWARD

    def test_tensors_of_another_kind(self) -> None:
        """A tensor that is made of others counts as those: of a distributed one, this rank's part."""
        from torch.testing._internal.two_tensor import TwoTensor

        twice: Any = TwoTensor(batch(), batch())  # type: ignore[no-untyped-call]
        assert count(lambda: twice @ torch.randn(64, 64)).flops == 2 * FORWARD


class TestKind:
    """The kind of number is what was multiplied, not what the parameters are."""

    def test_autocast(self) -> None:
        """Under autocast in the body, parameters of float32 are multiplied as bfloat16."""

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model()(batch()).sum()
            loss.backward()

        assert count(step).kind == "bfloat16"

    def test_mixed(self) -> None:
        """Where two kinds share the FLOP, there is no kind; a few of another one do not count."""
        half = {"bfloat16": 60, "float32": 40}
        assert StepCount(kinds=half, blind=()).kind is None
        assert StepCount(kinds={"bfloat16": 96, "float32": 4}, blind=()).kind == "bfloat16"
        assert StepCount(kinds={}, blind=()).kind is None

    @pytest.mark.parametrize(
        ("device", "allowed", "kind"),
        [("cuda", "tf32", "tf32"), ("cuda", "ieee", "float32"), ("cpu", "tf32", "float32")],
    )
    def test_tf32(self, device: str, allowed: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a CUDA device, and only there, float32 is TF32 where torch may round to it."""
        from trackperf import flop_counter

        precision = types.SimpleNamespace(fp32_precision=allowed)
        monkeypatch.setattr(torch.backends, "cuda", types.SimpleNamespace(matmul=precision))
        monkeypatch.setattr(torch.Tensor, "device", types.SimpleNamespace(type=device))
        factor = batch()
        assert flop_counter._kind(torch.ops.aten.mm.default, [factor, factor]) == kind


class TestBlind:
    """What cannot be counted is named."""

    def test_custom_operation(self) -> None:
        """An operation of somebody else's that takes floating-point numbers may do anything."""
        attend = torch.library.custom_op("test_flops::attend", mutates_args=())(_squared)
        found = count(lambda: attend(batch()))
        assert (found.blind, found.flops) == (("test_flops::attend",), 0)

    def test_custom_operation_with_a_formula(self) -> None:
        """With a formula registered the same way as for torch's own counter, it is counted."""
        from torch.utils import flop_counter

        norm = torch.library.custom_op("test_flops::norm", mutates_args=())(_squared)
        flop_counter.register_flop_formula(torch.ops.test_flops.norm)(lambda *_, **__: 7)
        found = count(lambda: norm(batch()))
        assert (found.blind, found.flops) == ((), 7)

    def test_recurrent_layer(self) -> None:
        """Torch's own operations without a formula are told by name: an LSTM's."""
        lstm = nn.LSTM(8, 8)
        found = count(lambda: lstm(torch.randn(3, 2, 8))[0].sum().backward())
        assert found.blind
        assert all("rnn" in name for name in found.blind)

    def test_formula_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A formula that does not fit its arguments costs the count, not the step."""
        from torch.utils import flop_counter

        def fails(*_: Any, **__: Any) -> int:
            raise AssertionError("no such shape")

        monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, fails)
        assert count(lambda: model()(batch())).blind == ("aten::addmm",)

    def test_lengths_on_the_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A formula that would read lengths of sequences from the device, and wait for it, is not asked."""
        from torch.utils import flop_counter

        def asked(*_: Any, **__: Any) -> int:
            return 5

        asked._get_raw = True  # type: ignore[attr-defined]
        packed = torch.library.custom_op("test_flops::packed", mutates_args=())(_packed)
        packed.register_fake(lambda x, lengths: torch.empty_like(x))
        monkeypatch.setitem(flop_counter.flop_registry, torch.ops.test_flops.packed, asked)
        x, lengths = batch().to("meta"), torch.tensor([0, 8], device="meta")
        assert count(lambda: packed(x, lengths)) == StepCount(kinds={}, blind=("test_flops::packed",))

    def test_graph(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A replayed CUDA graph computes without telling, and is put back as it was."""

        def replay(graph: Any) -> str:
            return "replayed"

        graph = torch.cuda.CUDAGraph
        monkeypatch.setattr(graph, "replay", replay)
        found = count(lambda: graph.replay(None))  # type: ignore[arg-type]
        assert found.blind == ("a replayed CUDA graph",)
        assert vars(graph)["replay"] is replay

    def test_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A Triton kernel that is launched by itself is told by its name."""

        class JITFunction:
            fn = _squared

            def run(self, *args: Any, grid: int) -> tuple[Any, ...]:
                return (*args, grid)

        module = types.ModuleType("triton.runtime.jit")
        module.JITFunction = JITFunction  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
        seen: list[Any] = []
        found = count(lambda: seen.append(JITFunction().run(1, 2, grid=3)))
        assert (found.blind, seen) == (("Triton kernel _squared",), [(1, 2, 3)])

    def test_light_operations(self) -> None:
        """Element-wise work, norms and look-ups are no FLOP of a model, and blind nobody."""
        layers = nn.Sequential(nn.Embedding(10, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout())
        assert count(lambda: layers(torch.zeros(4, dtype=torch.long)).sum().backward()) == StepCount(
            kinds={}, blind=()
        )


class TestTraining:
    """The training does not notice."""

    def test_once(self) -> None:
        """The first step is counted, and no other."""
        counted = CountedStep()
        for size in (8, 16):
            with counted.body(1):
                model()(torch.randn(size, 64))
        assert counted.result is not None
        assert counted.result.flops == 2 * FORWARD

    def test_accumulation(self) -> None:
        """With several batches to a step, all of their bodies are counted, and it is settled then."""
        counted = CountedStep()
        for _ in range(3):
            assert not counted.settled
            with counted.body(3):
                model()(batch())
            assert counted.begun != counted.settled
        assert counted.result is not None
        assert counted.result.flops == 3 * 2 * FORWARD

    def test_same_numbers(self) -> None:
        """A counted step computes what an uncounted one does."""
        layers, x = model(), batch()
        layers(x).sum().backward()
        plain = [parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None]
        layers.zero_grad()
        count(lambda: layers(x).sum().backward())
        for before, parameter in zip(plain, layers.parameters(), strict=True):
            assert torch.equal(before, parameter.grad)  # type: ignore[arg-type]

    def test_exception(self) -> None:
        """What the body raises passes through, nothing stays behind, and it is not tried again."""
        counted = CountedStep()
        with pytest.raises(ZeroDivisionError), counted.body(1):
            raise ZeroDivisionError
        assert "raised" in counted.failure
        with counted.body(1):
            model()(batch())
        assert counted.result is None
        assert torch._C._len_torch_dispatch_stack() == 0

    def test_nested(self) -> None:
        """A count in a count is one."""
        counted = CountedStep()
        with counted.body(1), counted.body(1):
            model()(batch())
        assert counted.result is not None
        assert counted.result.flops == 2 * FORWARD

    def test_older_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A torch that cannot leave compiled functions alone does not count, and says so."""
        monkeypatch.delattr(torch.compiler, "set_stance")
        counted, ran = CountedStep(), []
        with counted.body(1):
            ran.append(1)
        assert ran
        assert "torch 2.6" in counted.failure

    def test_compiled(self) -> None:
        """A compiled model is counted as what it is compiled from, and stays compiled for all other steps."""
        done = subprocess.run(
            [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, timeout=100
        )
        assert done.stdout.splitlines() == [f"{2 * FORWARD} True True"] * 2, done.stderr


COMPILED = """
import torch
from torch import nn
from trackperf.flop_counter import CountedStep
calls = []
def backend(graph, inputs):
    def run(*args):
        calls.append(1)
        return graph(*args)
    return run
x = torch.randn(8, 64)
for compiled_before in (False, True):
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model = torch.compile(layers, backend=backend)
    if compiled_before:
        model(x)
    before = len(calls)
    counted = CountedStep()
    with counted.body(1):
        model(x)
    during = len(calls)
    model(x), model(x)
    print(counted.result.flops, during == before, len(calls) == before + 2)
"""


def _squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _packed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x * lengths[0]
