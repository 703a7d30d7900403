"""Peaks: worked out, stated, or not known."""

from __future__ import annotations

import pytest

from trackperf.devices import peaks
from trackperf.devices.peaks import datasheet_gb_s, peak_bandwidth, peak_flops


@pytest.mark.parametrize(
    ("name", "clock_mhz", "bits", "gb_s"),
    [
        ("NVIDIA H200", 3201, 6144, 4916.7),
        ("NVIDIA H100 80GB HBM3", 2619, 5120, 3352.3),
        ("NVIDIA A100-SXM4-40GB", 1215, 5120, 1555.2),
        ("NVIDIA A100-SXM4-80GB", 1593, 5120, 2039.0),
        ("NVIDIA GeForce RTX 4090", 10501, 384, 1008.1),
        ("Tesla T4", 5001, 256, 320.1),
        ("NVIDIA B200", 3996, 7680, 7672.3),
        ("NVIDIA RTX A6000", 8001, 384, 768.1),
    ],
)
def test_bandwidth(name: str, clock_mhz: float, bits: float, gb_s: float) -> None:
    """Clock x 2 x bus is within 5 % of what the maker states."""
    peak = peak_bandwidth(name, driver=(clock_mhz, bits))
    assert peak.gb_s == pytest.approx(gb_s, abs=0.1)
    assert peak.remark == ""
    assert peak.datasheet_gb_s == pytest.approx(gb_s, rel=0.05)
    assert "the driver" in peak.source


def test_bandwidth_by_torch() -> None:
    """Where the driver does not tell, torch may."""
    peak = peak_bandwidth("NVIDIA GB10", driver=(None, 256), torch=(4266, 256))
    assert peak.gb_s == pytest.approx(273.0, abs=0.1)
    assert "torch" in peak.source


def test_bandwidth_unknown() -> None:
    """Where nobody tells there is no peak, not the datasheet's under the same name."""
    peak = peak_bandwidth("NVIDIA H200", driver=(None, None))
    assert peak.gb_s is None
    assert peak.datasheet_gb_s == 4800
    assert "neither" in peak.source


def test_bandwidth_that_differs() -> None:
    """A peak more than 5 % off the stated one is remarked on, and stands."""
    peak = peak_bandwidth("NVIDIA H100 80GB HBM3", driver=(2619, 6144))
    assert peak.gb_s == pytest.approx(4022.8, abs=0.1)
    assert "3350 GB/s" in peak.remark


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H200", "torch.float16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "float32", 19.5),
        ("NVIDIA L4", "torch.float8_e4m3fn", 242.5),
        ("NVIDIA L40S", "fp16", 362),
        ("Tesla V100-SXM2-32GB", "half", 125),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA GeForce RTX 5090", "float16", 209.5),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA GH200 480GB", "tf32", 494.7),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_flops(name: str, dtype: str, tflops: float) -> None:
    """The dense figure of the device and the kind of number, with its source."""
    found = peak_flops(name, dtype)
    assert found is not None
    assert found[0] == tflops * 1e12
    assert "dense" in found[1]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("NVIDIA H200 MIG 1g.18gb", "bfloat16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16"),
        ("NVIDIA GeForce RTX 4090 D", "bfloat16"),
        ("NVIDIA A100-SXM4-80GB", "float8"),
        ("Tesla V100-SXM2-16GB", "bfloat16"),
        ("NVIDIA H200", "int4"),
        ("", "float32"),
        ("AMD Instinct MI300X", "tf32"),
        ("AMD Instinct MI250X", "bfloat16"),
    ],
)
def test_flops_unknown(name: str, dtype: str) -> None:
    """A device or kind of number that is not in the table has no peak: none is guessed from a near one."""
    assert peak_flops(name, dtype) is None


def test_rows_are_sound() -> None:
    """Every row has a source, fewer bits are never slower, and no name fits two rows."""
    for row in peaks._ROWS:
        assert row.source.startswith(("NVIDIA", "AMD"))
        figures = [
            row.tflops[kind] for kind in ("float32", "tf32", "bfloat16", "float8") if kind in row.tflops
        ]
        assert figures == sorted(figures)
        plain = row.name.replace("[23]", "2").replace("(16|32)", "16")
        assert datasheet_gb_s(f"NVIDIA {plain}") == (row.gb_s, row.source)
