"""
The FLOP of one step, counted while the step runs, by the formulas that torch keeps of its operations.

Not by torch's own `FlopCounterMode`: over a compiled function that switches compilation off for the rest of
the process, it hooks every module, and what a formula raises ends the step. Here compiled functions run
uncompiled for the one step, and then as before.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["CountedStep", "StepCount"]

_MOST_OF_IT: Final = 0.95
_NO_ARITHMETIC: Final = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "fsdp", "prim", "profiler",
})  # fmt: skip
_HEAVY: Final = re.compile(
    r"(?:^|_)(?:mm|bmm|addmm|addbmm|baddbmm|matmul|linear|trilinear|rnn|conv|convolution|conv\dd|attention|transformer)"
    r"(?:_|$)"
)
_UNSEEN: Final = (
    ("torch.cuda.graphs", "CUDAGraph", "replay", "a replayed CUDA graph"),
    ("triton.runtime.jit", "JITFunction", "run", "Triton kernel"),
)
"""What computes without telling torch's dispatcher: module, class, method, and what to call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """What one step of this process computes: its matrix products, convolutions and attention."""

    kinds: Mapping[str, int]
    """FLOP by the kind of number that was multiplied: `bfloat16`, `tf32`, ..."""

    blind: tuple[str, ...]
    """Operations that computed nobody knows how much: the count is too low where there are any."""

    @property
    def flops(self) -> int:
        """FLOP of the step, forward and backward, without what activation checkpointing repeats."""
        return sum(self.kinds.values())

    @property
    def kind(self) -> str | None:
        """The kind of number of at least 95 % of the FLOP; None where there is no such kind."""
        kind = max(self.kinds, key=lambda kind: self.kinds[kind], default=None)
        return kind if kind is not None and self.kinds[kind] >= _MOST_OF_IT * self.flops else None


class CountedStep:
    """Counts the bodies of one step, the first that come, and no other."""

    def __init__(self, apart: Callable[[], bool] = lambda: False) -> None:
        """
        Args:
            apart: returns whether what is done now is no part of the step, such as a validation inside it.
        """
        self.result: StepCount | None = None
        """The count; None before there is one."""

        self.failure = ""
        """Why there will be none; empty where there is no such reason."""

        self._tally = _Tally(apart)
        self._inside = False
        self._bodies = 0

    @property
    def settled(self) -> bool:
        """Whether no more is counted."""
        return self.result is not None or bool(self.failure)

    @property
    def begun(self) -> bool:
        """Whether a step is being counted now."""
        return not self.settled and (self._inside or self._bodies > 0)

    @contextlib.contextmanager
    def body(self, batches: int) -> Iterator[None]:
        """
        Count what happens in a `with`; never raises anything of its own.

        Args:
            batches: how many bodies make a step.
        """
        stack = None if self._inside or self.settled else self._enter()
        if stack is None:
            yield
            return
        self._inside = True
        try:
            yield
        except BaseException:
            # Not tried again: the step may have failed for what counting it takes.
            self.failure = "the step that was to be counted raised an exception"
            raise
        finally:
            self._inside = False
            self._leave(stack)
        self._bodies += 1
        if self._bodies >= batches and not self.settled:
            tally = self._tally
            self.result = StepCount(kinds=dict(tally.kinds), blind=tuple(sorted(tally.blind)))

    def _enter(self) -> contextlib.ExitStack | None:
        stack = contextlib.ExitStack()
        try:
            import torch

            if not hasattr(torch.compiler, "set_stance"):
                raise RuntimeError("counting a step needs torch 2.6 or newer")  # noqa: TRY301 - told like any
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            _watch(stack, self._tally)
            stack.enter_context(_mode(self._tally))
        except Exception as error:  # noqa: BLE001 - the step goes on, uncounted
            self._leave(stack)
            self.failure = f"the step could not be counted: {error}"
            return None
        return stack

    def _leave(self, stack: contextlib.ExitStack) -> None:
        try:
            stack.close()
        except Exception as error:  # noqa: BLE001 - the step is over, and the training goes on
            self.failure = f"the step could not be counted: {error!r}"


class _Tally:
    """What has been seen so far."""

    def __init__(self, apart: Callable[[], bool]) -> None:
        self.apart = apart
        self.kinds: Counter[str] = Counter()
        self.blind: set[str] = set()
        self.running = 0
        """Operations of torch's that run now: what those call is known by their formula."""

    def note(self, func: Any, formula: Callable[..., int] | None, call: tuple[Any, Any, Any]) -> None:
        """
        Take in an operation that was carried out; never raises.

        Args:
            func: the operation.

            formula: its FLOP by its arguments and its result; None where torch knows none.

            call: positional arguments, keyword arguments, result.
        """
        args, kwargs, out = call
        try:
            if self.apart():
                return
            tensors = _tensors((*args, *kwargs.values()))
            if formula is None or _reads_lengths(formula, tensors):
                if _is_heavy(func) and any(tensor.is_floating_point() for tensor in tensors):
                    self.blind.add(_name(func))
                return
            flops = int(formula(*args, **kwargs, out_val=out))
            if flops and not _recomputing():
                self.kinds[_kind(func, tensors)] += flops
        except Exception:  # noqa: BLE001 - a formula may not fit the arguments
            self.blind.add(_name(func))


def _mode(tally: _Tally) -> Any:
    """Return what sees every operation of torch in a `with`, those of the backward pass as well."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves its hook untyped
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(kind not in {torch.Tensor, torch.nn.Parameter} for kind in types):
                return NotImplemented  # a tensor of another kind first says what it is made of
            kwargs = kwargs or {}
            formula = flop_registry.get(getattr(func, "_overloadpacket", func))
            if formula is None and hasattr(func, "decompose"):
                with self:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            tally.running += 1
            try:
                out = func(*args, **kwargs)
            finally:
                tally.running -= 1
            tally.note(func, formula, (args, kwargs, out))
            return out

    return Mode()  # type: ignore[no-untyped-call] # as above


def _watch(stack: contextlib.ExitStack, tally: _Tally) -> None:
    """Have told, until the stack is closed, what computes without torch's dispatcher."""
    for module, kind, method, label in _UNSEEN:
        owner = getattr(sys.modules.get(module), kind, None)
        original = getattr(owner, method, None)
        if owner is not None and original is not None:
            setattr(owner, method, _told(original, label, tally))
            stack.callback(setattr, owner, method, original)


def _told(original: Callable[..., Any], label: str, tally: _Tally) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        if not tally.running and not tally.apart():
            name = getattr(getattr(this, "fn", None), "__name__", "")
            tally.blind.add(f"{label} {name}".strip())
        return original(this, *args, **kwargs)

    return call


def _tensors(values: tuple[Any, ...]) -> list[Any]:
    import torch

    flat = [part for value in values for part in (value if isinstance(value, (list, tuple)) else (value,))]
    return [value for value in flat if isinstance(value, torch.Tensor)]


def _reads_lengths(formula: Any, tensors: list[Any]) -> bool:
    """Return whether a formula would read lengths of sequences from the device, and so wait for it."""
    raw = getattr(formula, "_get_raw", False)
    return raw and any(not one.is_floating_point() and one.device.type != "cpu" for one in tensors)


def _is_heavy(func: Any) -> bool:
    """Return whether an operation without a formula may do much: torch's by its name, any other."""
    space, _, name = _name(func).rpartition("::")
    return bool(_HEAVY.search(name)) if space == "aten" else space not in _NO_ARITHMETIC


def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return str(schema.name if schema is not None else func)


def _kind(func: Any, tensors: list[Any]) -> str:
    """Return the kind of number that was multiplied."""
    factor = next(tensor for tensor in tensors if tensor.is_floating_point())
    kind = str(factor.dtype).removeprefix("torch.")
    if kind == "float32" and factor.device.type == "cuda" and _tf32("conv" in _name(func)):
        return "tf32"
    return kind


def _tf32(convolution: bool) -> bool:
    """Return whether torch may round products of float32 to TF32."""
    import torch

    backends: Any = torch.backends
    part = getattr(backends.cudnn, "conv", None) if convolution else backends.cuda.matmul
    precision = getattr(part, "fp32_precision", None)
    if precision is not None:
        return bool(precision == "tf32")
    return bool(backends.cudnn.allow_tf32 if convolution else backends.cuda.matmul.allow_tf32)


def _recomputing() -> bool:
    """Return whether activation checkpointing repeats a forward pass: work, but none of the model's."""
    import torch

    frame = sys._getframe(1) if torch.is_grad_enabled() else None  # noqa: SLF001 - the stack of this thread
    while frame is not None:
        code = frame.f_code
        if (
            code.co_name in {"unpack_hook", "backward"}
            and code.co_filename == torch.utils.checkpoint.__file__
        ):
            return True
        frame = frame.f_back
    return False
