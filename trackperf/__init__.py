"""
trackperf: why is training slow?

Two lines in a PyTorch training script, and five numbers appear step by step in the experiment tracker that
the team already uses: throughput, training time, GPU utilisation, memory-bandwidth utilisation, data-loading
latency.

    perf = trackperf.init()
    for images, labels in perf.steps(loader):
        ...

Importing trackperf starts nothing and imports neither torch nor a tracker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from trackperf.collector import Collector
    from trackperf.comparison import Comparison
    from trackperf.errors import (
        ConfigError,
        MissingDependencyError,
        NotAvailableError,
        ReadError,
        SinkError,
        TrackperfError,
    )
    from trackperf.history import RunHistory
    from trackperf.listing import RunRow
    from trackperf.record import Alert, Point, RunInfo, RunSummary, Stat, Status
    from trackperf.sink import Sink

__all__ = [
    "Alert",
    "Collector",
    "Comparison",
    "ConfigError",
    "MissingDependencyError",
    "NotAvailableError",
    "Point",
    "ReadError",
    "RunHistory",
    "RunInfo",
    "RunRow",
    "RunSummary",
    "Sink",
    "SinkError",
    "Stat",
    "Status",
    "TrackperfError",
    "compare",
    "diagnose",
    "init",
    "runs",
    "tune_loader",
]

_HOME = {
    "Alert": "record",
    "Collector": "collector",
    "Comparison": "comparison",
    "ConfigError": "errors",
    "MissingDependencyError": "errors",
    "NotAvailableError": "errors",
    "Point": "record",
    "ReadError": "errors",
    "RunHistory": "history",
    "RunInfo": "record",
    "RunRow": "listing",
    "RunSummary": "record",
    "Sink": "sink",
    "SinkError": "errors",
    "Stat": "record",
    "Status": "record",
    "TrackperfError": "errors",
}


def init(
    *,
    sink: str | Sink | Sequence[str | Sink] | None = None,
    name: str | None = None,
    dir: str | PathLike[str] | None = None,  # noqa: A002 - the word that users look for
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    interval_s: float | None = None,
    warmup_steps: int | None = None,
    total_steps: int | None = None,
    prefix: str | None = None,
    goal: str | None = None,
    baseline: str | None = None,
    alerts: Mapping[str, Any] | bool | None = None,
    on_alert: Callable[[Alert], object] | None = None,
    flops_per_step: float | None = None,
    flops_per_token: float | None = None,
    flops_dtype: Any = None,
    devices: Sequence[str | int] | None = None,
    progress: bool | None = None,
    enabled: bool | None = None,
    **unknown: Any,
) -> Collector:
    """
    Begin a run and return what measures it.

    Every option is checked here; afterwards nothing of trackperf raises into the training. An option that is
    not given is read from `TRACKPERF_<OPTION>` in the environment, where a text can say it.

    Args:
        sink: where to write: a name (`tensorboard`, the default; `jsonl`, `console`, or one that an installed
            package brings), a `Sink`, or a list of them.

        name: name of the run, made unique; date and time by default.

        dir: folder of local files, `runs` by default.

        config: your settings, shown beside the run.

        tags: texts that make runs comparable, such as the model and the data.

        interval_s: seconds between points; by default 2, growing with the run to at most 5 000 points or so.

        warmup_steps: first steps that are shown but outside rates, medians and alerts; 10 by default.

        total_steps: steps of the whole run: gives the time left.

        prefix: what the keys begin with, `perf` by default.

        goal: a condition on an observed value, such as `val/accuracy >= 0.97`: gives the time to it.

        baseline: an older run to compare with; not in this version.

        alerts: False for none, or by rule False or its thresholds, such as
            `{"loader_latency": {"threshold": 20}}`, or a rule of your own, such as
            `{"hungry": "perf/data_pct > 15 for 5 windows"}`.

        on_alert: called with every `Alert`, on a thread of its own.

        flops_per_step: floating-point operations of one optimizer step, forward and backward, of the whole
            job: all ranks' batches together. Gives `perf/mfu_pct`.

        flops_per_token: the same of one token, such as `6 * parameters`: right for sequences of any length.
            It is multiplied with this process's own tokens (`steps(tokens=...)`) and set against its own
            devices: where several share a token (tensor or pipeline parallelism), give the share of one.

        flops_dtype: what the model multiplies: `bfloat16`, `float16`, `float8`, `tf32` or `float32`, or the
            dtype itself. Where it is not given, `count_flops` finds out.

        devices: GPUs of the run, as the driver's UUIDs or indices; by default those that torch uses.

        progress: show a progress line on a terminal or in a notebook.

        enabled: False for a run that measures nothing, costs nothing and changes nothing.

        unknown: refused, with the nearest name.

    Raises:
        ConfigError: an option is not one that can be used.

        NotAvailableError: an option belongs to a later version.

        SinkError: a sink is not there or cannot be built; `MissingDependencyError` with the line that
            installs its tracker.
    """
    from trackperf.run import begin  # noqa: PLC0415 - importing trackperf imports nothing heavy

    given = {
        "sink": sink,
        "name": name,
        "dir": dir,
        "config": config,
        "tags": tags,
        "interval_s": interval_s,
        "warmup_steps": warmup_steps,
        "total_steps": total_steps,
        "prefix": prefix,
        "goal": goal,
        "baseline": baseline,
        "alerts": alerts,
        "on_alert": on_alert,
        "flops_per_step": flops_per_step,
        "flops_per_token": flops_per_token,
        "flops_dtype": flops_dtype,
        "devices": devices,
        "progress": progress,
        "enabled": enabled,
        **unknown,
    }
    return begin(given)


def compare(a: str | RunHistory, b: str | RunHistory) -> Comparison:
    """
    Compare run `b` with run `a`, each an address (`runs/x`, `tensorboard:runs/x`) or a history.

    Raises:
        ReadError: a run cannot be found or read.
    """
    from trackperf.comparison import compare as compared  # noqa: PLC0415 - see above

    return compared(a, b)


def runs(address: str) -> list[RunRow]:
    """
    Return a row for every run at or below an address.

    Raises:
        ReadError: there is none.
    """
    from trackperf.listing import runs as listed  # noqa: PLC0415 - see above

    return listed(address)


def diagnose(address: str) -> None:
    """
    Walk the five numbers of a run in order; not in this version.

    Raises:
        NotAvailableError: always.
    """
    from trackperf.errors import NotAvailableError  # noqa: PLC0415 - see above

    raise NotAvailableError(f"diagnose({address!r}) is not available in this version. Use compare(a, b).")


def tune_loader(loader: Any, *, step_ms: float) -> None:
    """
    Try settings of a loader; not in this version.

    Raises:
        NotAvailableError: always.
    """
    from trackperf.errors import NotAvailableError  # noqa: PLC0415 - see above

    raise NotAvailableError(
        f"tune_loader({type(loader).__name__}, step_ms={step_ms!r}) is not available in this version. "
        "The alert `loader_latency` says which settings to change."
    )


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is asked for."""
    import importlib  # noqa: PLC0415 - see above

    if name in _HOME:
        return getattr(importlib.import_module(f"trackperf.{_HOME[name]}"), name)
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow, and rarely asked

        return version("trackperf")
    raise AttributeError(f"module 'trackperf' has no attribute {name!r}")
