"""Machines that people really train on, each doing something steady."""

from __future__ import annotations

from dataclasses import replace

from nvml_sim.scenario import Code, Fault, Gpu, Mig, Scenario
from nvml_sim.timeline import At

__all__ = [
    "A100",
    "BUSY",
    "H200",
    "MIG_UUID",
    "RTX_4090",
    "a100",
    "divided",
    "four_gpus",
    "h200",
    "integrated",
    "no_driver",
    "old_driver",
    "rtx_4090",
    "shuffled",
    "two_gpus",
    "wsl",
]

MIG_UUID = "MIG-11111111-1111-5111-9111-111111111111"
PCIE_SLEEP_US = 20_000

BUSY = At(
    s=0.0,
    util_pct=92.0,
    mem_busy_pct=40.0,
    sm_active_pct=71.0,
    sm_occupancy_pct=33.0,
    tensor_active_pct=24.0,
    dram_pct=37.0,
    power_w=310.0,
    temp_c=58.0,
    used_bytes=12e9,
    sm_clock_mhz=1755.0,
    mem_clock_mhz=3201.0,
    pcie_tx_bytes_per_s=200e6,
    pcie_rx_bytes_per_s=1.5e9,
)
"""A training that keeps its GPU fairly busy."""

H200 = Gpu(timeline=(BUSY,), reserved_bytes=600 * 2**20)
A100 = Gpu(
    name="NVIDIA A100-SXM4-80GB",
    memory_bytes=81_920 * 2**20,
    bus_width_bits=5120,
    max_sm_clock_mhz=1410,
    max_mem_clock_mhz=1593,
    architecture=7,
    capability=(8, 0),
    power_limit_w=400,
    gpm=False,
    power_mean_s=0.0,
    timeline=(replace(BUSY, sm_clock_mhz=1410.0, mem_clock_mhz=1593.0),),
)
RTX_4090 = Gpu(
    name="NVIDIA GeForce RTX 4090",
    memory_bytes=24_564 * 2**20,
    bus_width_bits=384,
    max_sm_clock_mhz=3105,
    max_mem_clock_mhz=10501,
    architecture=8,
    capability=(8, 9),
    power_limit_w=450,
    gpm=False,
    mig_max=0,
    timeline=(replace(BUSY, sm_clock_mhz=2700.0, mem_clock_mhz=10501.0),),
)


def _machine(*gpus: Gpu) -> Scenario:
    return Scenario(gpus=gpus).with_latency("nvmlDeviceGetPcieThroughput", PCIE_SLEEP_US)


def h200() -> Scenario:
    """Return a machine that has everything."""
    return _machine(H200)


def a100() -> Scenario:
    """Return a machine whose GPU is too old for GPM, and whose power is that of the instant."""
    return _machine(A100)


def rtx_4090() -> Scenario:
    """Return a consumer's machine: no GPM, no MIG."""
    return _machine(RTX_4090)


def divided() -> Scenario:
    """Return an H200 in three instances with holes between, of which the second is ours (`MIG_UUID`)."""
    others = At(s=0.0, sm_active_pct=90.0, dram_pct=80.0, used_bytes=9e9)
    ours = At(s=0.0, sm_active_pct=55.0, sm_occupancy_pct=20.0, dram_pct=12.0, used_bytes=3e9)
    migs = (
        Mig(slot=0, uuid=MIG_UUID.replace("1", "0"), instance_id=7, timeline=(others,)),
        Mig(slot=2, uuid=MIG_UUID, instance_id=9, timeline=(ours,)),
        Mig(slot=5, uuid=MIG_UUID.replace("1", "2"), instance_id=12, timeline=(others,)),
    )
    return _machine(replace(H200, mig_on=True, migs=migs, timeline=(replace(BUSY, util_pct=95.0),)))


def wsl(code: Code = Code.NOT_SUPPORTED) -> Scenario:
    """Return a machine on which memory can be read and utilisation cannot."""
    functions = (
        "UtilizationRates",
        "Samples",
        "ComputeRunningProcesses",
        "FieldValues",
        "TotalEnergyConsumption",
    )
    return rtx_4090().with_faults(*(Fault(function=f"nvmlDeviceGet{name}", code=code) for name in functions))


def integrated() -> Scenario:
    """Return a GPU that shares the machine's memory: no figures of its own, memory busy always 0."""
    gpu = replace(
        H200,
        name="NVIDIA GB10",
        architecture=10,
        capability=(12, 1),
        gpm=False,
        mig_max=0,
        timeline=(replace(BUSY, mem_busy_pct=0.0, used_bytes=0.0, power_w=60.0),),
    )
    unsupported = ("nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
    faults = [Fault(function=name, code=Code.NOT_SUPPORTED) for name in unsupported]
    clocks = [
        Fault(function=f"nvmlDeviceGet{name}", part=2, code=Code.NOT_SUPPORTED)
        for name in ("ClockInfo", "MaxClockInfo")
    ]
    return _machine(gpu).with_faults(*faults, *clocks)


def old_driver() -> Scenario:
    """Return an A100 under a driver that has not heard of what came later."""
    missing = (
        "nvmlGpm*",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
    )
    newer = (185, 186, 191, 197, 198, 269, 270)
    faults = (
        Fault(function="nvmlDeviceGetFieldValues", part=part, code=Code.NOT_SUPPORTED) for part in newer
    )
    return replace(a100(), missing=missing, driver="470.82.01", cuda=11040).with_faults(*faults)


def no_driver() -> Scenario:
    """Return a machine without the driver's library."""
    return Scenario(gpus=(), installed=False)


def _row(count: int) -> tuple[Gpu, ...]:
    """Return GPUs that are 10, 20, 30 and 40 % busy, all else alike."""
    return tuple(
        replace(
            H200,
            uuid="GPU-aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa".replace("a", "abcdefgh"[place]),
            bus=f"00000000:{0x18 + 0x10 * place:02X}:00.0",
            timeline=(replace(BUSY, util_pct=10.0 * (place + 1)),),
        )
        for place in range(count)
    )


def two_gpus() -> Scenario:
    """Return two GPUs, 10 and 20 % busy."""
    return _machine(*_row(2))


def four_gpus() -> Scenario:
    """Return four GPUs, 10 to 40 % busy."""
    return _machine(*_row(4))


def shuffled() -> Scenario:
    """Return four GPUs of which CUDA's 0, 1, 2, 3 are the driver's 2, 0, 3, 1."""
    gpus = tuple(replace(gpu, index=index) for gpu, index in zip(_row(4), (2, 0, 3, 1), strict=True))
    return _machine(*gpus)
