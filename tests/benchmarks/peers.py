"""
Loops of other packages that are measured beside trackperf's.

Each is set up as its documentation says, with the cheapest output that it offers. One that is not installed
is left out.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from benchmarks.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.loops import Loader
    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["LIGHTNING", "ONE_LOGGER", "SERIES", "SUMMARY_WRITER", "TRACEML", "peer_rows"]

LIGHTNING: Final = "Lightning Throughput.update + compute"
SUMMARY_WRITER: Final = "SummaryWriter.add_scalar x 8"
TRACEML: Final = "TraceML trace_step"
ONE_LOGGER: Final = "nv-one-logger iteration start + end"

SERIES: Final = tuple(f"train/series_{number}" for number in range(8))
"""Names of eight series."""


def peer_rows(loader: Loader, folder: Path, sizes: Sizes, report: Report) -> list[Row]:
    """Return a row for each package that is installed, and tell the report of those that are not."""
    makers = {
        "pytorch-lightning": _lightning,
        "tensorboard": _summary_writer,
        "traceml-ai": _traceml,
        "nv-one-logger-training-telemetry": _one_logger,
    }
    rows = (_made(package, partial(make, loader, folder, sizes), report) for package, make in makers.items())
    return [row for row in rows if row is not None]


def _made(package: str, make: Callable[[], Row], report: Report) -> Row | None:
    try:
        return make()
    except ImportError as error:
        report.skipped.append(f"{package} is not installed ({error})")
        return None


def _lightning(loader: Loader, folder: Path, sizes: Sizes) -> Row:
    """A user's loop times and counts; `update` and `compute` are all that is called in it."""
    try:
        module = import_module("lightning_fabric.utilities.throughput")
    except ImportError:
        module = import_module("lightning.fabric.utilities.throughput")
    throughput: Any = module.Throughput()
    batches, begin = itertools.count(1), perf_counter()

    def run(n: int) -> None:
        update, compute = throughput.update, throughput.compute
        for _ in loader.of(n):
            done = next(batches)
            update(time=perf_counter() - begin, batches=done, samples=32 * done)
            compute()

    return Row(name=LIGHTNING, run=run, steps=sizes.of(5_000))


def _summary_writer(loader: Loader, folder: Path, sizes: Sizes) -> Row:
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "summary-writer"))
    steps = itertools.count()

    def run(n: int) -> None:
        add_scalar = writer.add_scalar
        for _ in loader.of(n):
            step = next(steps)
            for name in SERIES:
                add_scalar(name, 0.5, step)

    return Row(name=SUMMARY_WRITER, run=run, steps=sizes.of(150), settle=writer.flush)


def _traceml(loader: Loader, folder: Path, sizes: Sizes) -> Row:
    """Without its process that gathers: what the training thread leaves for it is thrown away instead."""
    trace_step: Any = import_module("traceml_ai").trace_step
    events = import_module("traceml_ai.instrumentation.step_events")
    model: Any = import_module("torch").nn.Linear(2, 2)
    drains: list[Callable[[], object]] = [events.drain_step_time_batches, events.drain_step_memory_events]

    def run(n: int) -> None:
        for _ in loader.of(n):
            with trace_step(model):
                pass

    def settle() -> None:
        for drain in drains:
            drain()

    return Row(name=TRACEML, run=run, steps=sizes.of(500), settle=settle)


def _one_logger(loader: Loader, folder: Path, sizes: Sizes) -> Row:
    config = import_module("nv_one_logger.api.config")
    training = import_module("nv_one_logger.training_telemetry.api.config")
    callbacks: Any = import_module("nv_one_logger.training_telemetry.api.callbacks")
    provider = import_module("nv_one_logger.training_telemetry.api.training_telemetry_provider")
    exporter: Any = import_module("nv_one_logger.exporter.exporter").BaseExporter()
    settings: Any = config.OneLoggerConfig(
        application_name="benchmark",
        world_size_or_fn=1,
        session_tag_or_fn="benchmark",
        telemetry_config=training.TrainingTelemetryConfig(
            perf_tag_or_fn="benchmark", global_batch_size_or_fn=32
        ),
        logger_config=config.LoggerConfig(
            log_level="CRITICAL", log_file_path_for_info=os.devnull, log_file_path_for_err=os.devnull
        ),
    )
    instance: Any = provider.TrainingTelemetryProvider.instance()
    instance.with_base_config(settings).with_exporter(exporter).configure_provider()
    callbacks.on_app_start()
    callbacks.on_train_start(train_iterations_start=0)

    def run(n: int) -> None:
        start, end = callbacks.on_training_single_iteration_start, callbacks.on_training_single_iteration_end
        for _ in loader.of(n):
            start()
            end()

    return Row(name=ONE_LOGGER, run=run, steps=sizes.of(100))
