"""
A simulated NVIDIA driver library, on which the unmodified `pynvml` runs.

A `Scenario` says which devices there are and what each does over time; every reading derives from that one
timeline, so that readings agree with each other as exactly as they are read. `Simulation` puts it in place in
this process; `environment` for another one; `nvml_sim.fixtures` holds both as pytest fixtures.

Where the driver's ways are not documented, the simulation takes one: `GetSamples` without a buffer tells the
buffer's size; calls for whole GPUs refuse an instance as an invalid argument; a metric over two samples of
one refresh is not a number; the 32 bits of PCIe byte counters wrap; integers are rounded, and kilobytes are
1000 bytes; a forked child has to initialise the library anew. Code under test must not lean on these.
"""

from __future__ import annotations

from nvml_sim.build import cannot_build, library
from nvml_sim.scenario import Code, Fault, Garbage, Gpu, Latency, Mig, Process, Scenario
from nvml_sim.simulation import CallLog, Simulation, environment
from nvml_sim.timeline import At, duty_cycle, integral, mean, value_at

__all__ = [
    "At",
    "CallLog",
    "Code",
    "Fault",
    "Garbage",
    "Gpu",
    "Latency",
    "Mig",
    "Process",
    "Scenario",
    "Simulation",
    "cannot_build",
    "duty_cycle",
    "environment",
    "integral",
    "library",
    "mean",
    "value_at",
]
