"""
Model FLOPs utilisation: the FLOP of the steps over what the run's devices could do at most in their time.

FLOP and peak are of the same part of a job: of one rank, its tokens or what was counted of it, over its own
devices; of a step as a whole, over those of all ranks, which are taken to be alike.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trackperf.devices.mapping import why_none
from trackperf.devices.peaks import peak_flops
from trackperf.flop_counter import CountedStep, StepCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackperf.config import Settings
    from trackperf.devices.facts import DeviceFacts
    from trackperf.timing.windows import Window

__all__ = ["MFU", "Flops"]

MFU: Final = "perf/mfu_pct"
"""Key of the series."""

_log: Final = logging.getLogger("trackperf")
_IMPOSSIBLE: Final = 1.1
_NO_FLOPS: Final = (
    "needs init(flops_per_step=...) or init(flops_per_token=...), or a step counted in count_flops()"
)
_NO_KIND: Final = (
    "the kind of number that the model multiplies is not known: give "
    'init(flops_dtype="bfloat16") or the like, or count a step in count_flops()'
)
_NO_TOKENS: Final = "flops_per_token needs tokens: give steps(tokens=...), or step(tokens=...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """What the devices of this process can do at most."""

    flops_per_s: float
    kind: str
    source: str


class Flops:
    """What is known of the FLOP of a run. Counts on the training's thread; the rest is of the reporter's."""

    def __init__(
        self,
        settings: Settings,
        *,
        devices: Callable[[], Sequence[DeviceFacts]],
        world_size: int,
        names: Callable[[], Sequence[str]] | None = None,
        apart: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            settings: what the user said of FLOP and devices.

            devices: returns what the driver says of this process's GPUs; none where it says nothing.

            world_size: number of ranks.

            names: returns the names of this process's GPUs where the driver says nothing: torch's.

            apart: returns whether what is done now is no part of a step.
        """
        self.counted = CountedStep(apart)
        self._settings = settings
        self._ask = devices
        self._names = names or _torch_names
        self._world_size = world_size
        self._devices: Sequence[DeviceFacts] = ()
        self._told: set[str] = set()

    @property
    def wants_count(self) -> bool:
        """Whether a counted step would tell anything new."""
        said = self._given and self._settings.flops_dtype is not None
        return not said and not self.counted.settled

    @contextlib.contextmanager
    def count(self, batches: int) -> Iterator[None]:
        """
        Count what happens in a `with`; see `Collector.count_flops`.

        Args:
            batches: how many bodies make a step.
        """
        with self.counted.body(batches):
            yield
        result = self.counted.result
        if result is not None and result.blind and not self._given:
            self._tell(_blind(result.blind))

    def weigh(self, window: Window) -> None:
        """Give a window the time that its steps would have taken at the devices' peak, if that is known."""
        if not (self._given or self.counted.result is not None or self.counted.failure):
            return
        flops, missing = self._flops_of(window)
        peak = self._peak() if flops is not None else missing
        if flops is None or isinstance(peak, str):
            self._tell(str(peak))
            return
        ideal_ns = flops / peak.flops_per_s * 1e9
        if ideal_ns > _IMPOSSIBLE * window.busy_ns:
            self._tell(
                f"{flops / window.steps:.4g} FLOP a step are more than the devices of this process can do "
                f"({peak.flops_per_s:.4g} FLOP/s of {peak.kind}): check the FLOP and the kind of number"
            )
        elif window.busy_ns > 0:
            window.ideal_ns, window.ideal_of_ns = ideal_ns, window.busy_ns

    def absent(self, *, tokens_known: bool) -> dict[str, str]:
        """
        Return why there is no utilisation, by key; empty where there is one.

        Args:
            tokens_known: whether the run counts tokens, as far as it is known now.
        """
        reason = self._no_flops(tokens_known=tokens_known)
        if not reason:
            peak = self._peak()
            reason = peak if isinstance(peak, str) else ""
        return {MFU: reason} if reason else {}

    def facts(self) -> dict[str, str | float]:
        """Return what the utilisation is made from, by name; empty where there is none."""
        result, settings = self.counted.result, self._settings
        if settings.flops_per_step is not None:
            said = f"{settings.flops_per_step:.6g} a step, given"
        elif settings.flops_per_token is not None:
            said = f"{settings.flops_per_token:.6g} a token, given"
        elif result is not None and not result.blind:
            said = f"{result.flops:.6g} a step of each rank, counted"
        else:
            return {}
        peak = self._peak()
        if isinstance(peak, str):
            return {"mfu_flop": said}
        tflops = peak.flops_per_s * self._world_size / 1e12
        return {
            "mfu_flop": said,
            "mfu_dtype": peak.kind,
            "mfu_peak_tflops": round(tflops, 3),
            "mfu_peak_source": peak.source,
        }

    @property
    def _given(self) -> bool:
        return self._settings.flops_per_step is not None or self._settings.flops_per_token is not None

    def _no_flops(self, *, tokens_known: bool) -> str:
        if self._settings.flops_per_step is not None:
            return ""
        if self._settings.flops_per_token is not None:
            return "" if tokens_known else _NO_TOKENS
        if self.counted.result is not None:
            blind = self.counted.result.blind
            return (
                _blind(blind)
                if blind
                else ""
                if self.counted.result.flops
                else "no FLOP were seen to be done"
            )
        return self.counted.failure or _NO_FLOPS

    def _flops_of(self, window: Window) -> tuple[float | None, str]:
        """Return FLOP that this process did in a window, or why that is not known."""
        settings = self._settings
        reason = self._no_flops(tokens_known=window.tokens is not None)
        if reason:
            return None, reason
        if settings.flops_per_step is not None:
            return settings.flops_per_step * window.steps / self._world_size, ""
        if settings.flops_per_token is not None:
            return settings.flops_per_token * (window.tokens or 0), ""
        return (
            self.counted.result.flops * window.steps if self.counted.result is not None else None
        ), _NO_FLOPS

    def _kind(self) -> tuple[str | None, str]:
        """Return the kind of number that the model multiplies, or why it is not known."""
        counted = self.counted.result
        kind = self._settings.flops_dtype or (counted.kind if counted is not None else None)
        if kind is None and counted is not None and len(counted.kinds) > 1:
            return None, f"the model multiplies several kinds of number: {_shares(counted)}"
        return kind, self.counted.failure or _NO_KIND

    def _peak(self) -> _Peak | str:
        """Return the peak of this process's devices together, or why it is not known."""
        kind, missing = self._kind()
        if kind is None:
            return missing
        self._devices = self._ask() or self._devices
        names = [device.name for device in self._devices] or list(self._names())
        reason = ""
        if any(device.mig for device in self._devices):
            reason = "MIG: the share of a slice in the peak of its GPU is not told"
        elif not names:
            reason = f"there is no device whose peak is known: {why_none()}"
        elif self._world_size > 1 and self._settings.devices is not None and len(names) > 1:
            reason = "init(devices=...) names several GPUs, and which of them are this rank's is not known"
        return reason or _together(names, kind)

    def _tell(self, reason: str) -> None:
        """Say once why a utilisation that was asked for is not written."""
        if reason not in self._told and len(self._told) < 100:
            self._told.add(reason)
            _log.warning("trackperf: %s is not written: %s", MFU, reason)


def _together(names: Sequence[str], kind: str) -> _Peak | str:
    """Return the peak of several devices, or which of them has none."""
    total, sources, kinds = 0.0, dict[str, None](), set[str]()
    for name in names:
        found, used = peak_flops(name, kind), kind
        if found is None and kind == "tf32":
            found, used = peak_flops(name, "float32"), "float32"  # it has none, and torch does without
        if found is None:
            return f"the peak of {name!r} for {kind} is not in the table"
        total += found[0]
        sources[f"{name}, {used}: {found[1]}"] = None
        kinds.add(used)
    return _Peak(flops_per_s=total, kind="+".join(sorted(kinds)), source="; ".join(sources))


def _blind(operations: Sequence[str]) -> str:
    return (
        f"the FLOP of {', '.join(operations)} are not known, so that a count would be too low: give "
        "init(flops_per_step=...), or a formula to torch.utils.flop_counter.register_flop_formula"
    )


def _shares(counted: StepCount) -> str:
    shares = sorted(counted.kinds.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {100 * flops / counted.flops:.0f} %" for kind, flops in shares)


def _torch_names() -> list[str]:
    """Return the GPUs on which this process has memory, as torch calls them: those of AMD among them."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return []
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index) > 0]
        return [str(torch.cuda.get_device_name(index)) for index in used]
    except Exception:  # noqa: BLE001 - a half-imported or foreign torch has no device of ours
        return []
