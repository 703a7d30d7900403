"""Values read back from event files, each second, and what they take in memory."""

from __future__ import annotations

import gc
import statistics
import subprocess
import tempfile
import time
import tracemalloc
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers import SERIES
from benchmarks.writing import points, write_ours, write_theirs

from trackperf.errors import TrackperfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Report
    from benchmarks.rows import Sizes

__all__ = ["read_values"]

_ACCUMULATOR: Final = "EventAccumulator"
_OURS: Final = "TensorBoardReader"
_DEADLINE_S: Final = 60.0


def read_values(report: Report, folder: Path, sizes: Sizes) -> None:
    """Measure our reader beside others, on a file of `SummaryWriter` and one of ours with the same values."""
    steps = sizes.of(4_000)
    write_theirs(folder / "one", steps)
    write_ours(folder / "eight", points(steps), 50)
    ways = _ways(report)
    for path, values in ((folder / "one", "one value"), (folder / "eight", "eight values")):
        section = f"Read back, events of {values}"
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(sizes.repeats):
            for name, way in ways.items():
                begin = perf_counter()
                found = way(path)
                rates[name].append(found / (perf_counter() - begin))
                if found != len(SERIES) * steps:
                    raise TrackperfError(f"{name} found {found} of {len(SERIES) * steps} values")
        for name in ways:
            report.figure(section, name, statistics.median(rates[name]), "values/s")
        pairs = zip(rates[_OURS], rates[_ACCUMULATOR], strict=True)
        times = statistics.median(ours / theirs for ours, theirs in pairs)
        report.at_least(f"reading: {values} an event, times EventAccumulator", times, 5.0, "x")
        held = _held(path) / (len(SERIES) * steps)
        report.figure(section, "held by RunHistory", held, "bytes a point")
        if sizes.scale >= 1.0:
            report.at_most(f"reading: {values} an event, held", held, 48.0, "bytes a point")


def _ways(report: Report) -> dict[str, Callable[[Path], int]]:
    ways: dict[str, Callable[[Path], int]] = {_OURS: _ours, _ACCUMULATOR: _accumulator}
    try:
        import_module("tbparse")
        ways["tbparse"] = _tbparse
    except ImportError as error:
        report.skipped.append(f"tbparse is not installed ({error})")
    try:
        binary = import_module("tensorboard.data.server_ingester").get_server_binary()
        ways["TensorBoard's Rust data server, --checksum"] = lambda path: _data_server(binary.path, path)
    except Exception as error:  # the package has no binary for every machine
        report.skipped.append(f"TensorBoard's data server is not available ({error})")
    return ways


def _ours(path: Path) -> int:
    from trackperf_tensorboard import TensorBoardReader

    history = TensorBoardReader().read(str(path))
    return sum(len(history.series[name]) for name in SERIES)


def _accumulator(path: Path) -> int:
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    read: Any = accumulator(str(path), size_guidance={"scalars": 0})
    read.Reload()
    return sum(len(read.Scalars(name)) for name in SERIES)


def _tbparse(path: Path) -> int:
    reader: Any = import_module("tbparse").SummaryReader(str(path), extra_columns={"wall_time"})
    return len(reader.scalars)


def _data_server(binary: str, path: Path) -> int:
    """
    Start the data server on the file and take every point from it.

    Straight from it: TensorBoard itself comes on top, with seconds of start-up and JSON, and without
    `--checksum`.
    """
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [binary, "--logdir", str(path), "--reload=once", "--samples-per-plugin=scalars=all"]
        command += ["--checksum", "--port=0", f"--port-file={port_file}", "--die-after-stdin"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            try:
                return _ask(_port(port_file))
            finally:
                server.kill()


def _port(file: Path) -> str:
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        if file.exists() and (told := file.read_text()).endswith("\n"):
            return told.strip()
        time.sleep(0.001)
    raise TimeoutError("the data server did not start")


def _ask(port: str) -> int:
    ingester = import_module("tensorboard.data.server_ingester").ExistingServerDataIngester
    credentials = import_module("tensorboard.util.grpc_util").ChannelCredsType.LOCAL
    context = import_module("tensorboard.context").RequestContext()
    server: Any = ingester(f"localhost:{port}", channel_creds_type=credentials)
    server.start()
    asked: dict[str, Any] = {"experiment_id": "", "plugin_name": "scalars"}
    deadline = time.monotonic() + _DEADLINE_S
    found = before = 0
    while time.monotonic() < deadline and not (found and found == before):
        # A file counts as loaded when two looks at the last steps agree, which takes next to no time.
        before = found
        listed = server.data_provider.list_scalars(context, **asked)
        found = sum(tag.max_step for tags in listed.values() for tag in tags.values())
        time.sleep(0.002)
    read = server.data_provider.read_scalars(context, downsample=1 << 40, **asked)
    return sum(len(found) for tags in read.values() for name, found in tags.items() if name in SERIES)


def _held(path: Path) -> int:
    from trackperf_tensorboard import TensorBoardReader

    reader = TensorBoardReader()
    reader.read(str(path))
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        history = reader.read(str(path))
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        del history
    finally:
        tracemalloc.stop()
    return held
