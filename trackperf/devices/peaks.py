"""
What a GPU can do at most: bytes and floating-point operations a second.

Bandwidth is worked out from clock and bus; what the maker states is a check on that. Operations a second
are the maker's figures, dense: twice as many are stated for matrices of which half is zeros, which training
does not have. Of consumer cards they are those with sums in 32 bits, which is what torch asks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KINDS", "Bandwidth", "datasheet_gb_s", "kind_of_number", "peak_bandwidth", "peak_flops"]

KINDS: Final = ("float32", "tf32", "bfloat16", "float16", "float8")
"""Kinds of number, in the order of the table's columns."""

_APART: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """The theoretical memory bandwidth of a GPU."""

    gb_s: float | None
    """Billions of bytes a second; None when it is not known."""

    source: str
    """Where the number is from, or why there is none."""

    datasheet_gb_s: float | None = None
    """What the maker states for a GPU of this name; None when no such row is known."""

    remark: str = ""
    """What is odd about it; empty when nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What the maker states of a GPU."""

    name: str
    """Pattern of the whole name, without `NVIDIA`, `Tesla` and `GeForce` in front."""

    gb_s: float
    source: str
    tflops: Mapping[str, float] = field(default_factory=dict)


def _row(name: str, gb_s: float, source: str, *figures: float) -> _Row:
    """Return a row; the figures are of `KINDS`, 0 for none."""
    tflops = {kind: value for kind, value in zip(KINDS, figures, strict=False) if value}
    return _Row(name=name, gb_s=gb_s, source=source, tflops=tflops)


_H100: Final = "NVIDIA H100 Tensor Core GPU datasheet"
_H200: Final = "NVIDIA H200 Tensor Core GPU datasheet"
_GH200: Final = "NVIDIA GH200 Grace Hopper Superchip datasheet"
_A100: Final = "NVIDIA A100 Tensor Core GPU datasheet"
_V100: Final = "NVIDIA V100 Tensor Core GPU datasheet"
_ADA: Final = "NVIDIA Ada GPU architecture whitepaper, appendix A"
_RTX_6000: Final = "NVIDIA RTX 6000 Ada Generation datasheet"
_GB202: Final = "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A"
_MI300X: Final = "AMD Instinct MI300X accelerator data sheet"
_GA102: Final = "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A"

_ROWS: Final = (
    _row(r"B200", 8000, "NVIDIA HGX B200 specifications", 75, 1125, 2250, 2250, 4500),
    _row(r"GB200", 8000, "NVIDIA GB200 NVL72 specifications", 80, 1250, 2500, 2500, 5000),
    _row(r"H200", 4800, _H200, 67, 494.7, 989.4, 989.4, 1978.9),
    _row(r"H200 NVL", 4800, _H200, 60, 417.5, 835.5, 835.5, 1670.5),
    _row(r"GH200 480GB", 4000, _GH200, 67, 494.7, 989.4, 989.4, 1978.9),
    _row(r"GH200 144G HBM3e", 4900, _GH200, 67, 494.7, 989.4, 989.4, 1978.9),
    _row(r"H100 80GB HBM3", 3350, _H100, 66.9, 494.7, 989.4, 989.4, 1978.9),
    _row(r"H100 NVL", 3900, _H100, 60, 417.5, 835.5, 835.5, 1670.5),
    _row(r"H100 PCIe", 2000, _H100, 51.2, 378, 756, 756, 1513),
    _row(r"A100-SXM4-40GB", 1555, _A100, 19.5, 156, 312, 312),
    _row(r"A100-SXM4-80GB", 2039, _A100, 19.5, 156, 312, 312),
    _row(r"A100-PCIE-40GB", 1555, _A100, 19.5, 156, 312, 312),
    _row(r"A100 80GB PCIe", 1935, _A100, 19.5, 156, 312, 312),
    _row(r"A40", 696, "NVIDIA A40 datasheet", 37.4, 74.8, 149.7, 149.7),
    _row(r"A30", 933, "NVIDIA A30 Tensor Core GPU datasheet", 10.3, 82, 165, 165),
    _row(r"A10", 600, "NVIDIA A10 Tensor Core GPU datasheet", 31.2, 62.5, 125, 125),
    _row(r"L40S", 864, "NVIDIA L40S datasheet", 91.6, 183, 362, 362, 733),
    _row(r"L40", 864, "NVIDIA L40 datasheet", 90.5, 90.5, 181, 181, 362),
    _row(r"L4", 300, "NVIDIA L4 Tensor Core GPU datasheet", 30.3, 60, 121, 121, 242.5),
    _row(r"V100-SXM[23]-(16|32)GB", 900, _V100, 15.7, 0, 0, 125),
    _row(r"V100-PCIE-(16|32)GB", 900, _V100, 14, 0, 0, 112),
    _row(r"V100S-PCIE-32GB", 1134, _V100, 16.4, 0, 0, 130),
    _row(r"T4", 320, "NVIDIA T4 Tensor Core GPU datasheet", 8.1, 0, 0, 65),
    _row(r"RTX 6000 Ada Generation", 960, _RTX_6000, 91.1, 182.1, 364.2, 364.2, 728.5),
    _row(r"RTX A6000", 768, "NVIDIA RTX A6000 datasheet", 38.7, 77.4, 154.8, 154.8),
    _row(r"RTX 5090", 1792, _GB202, 104.8, 104.8, 209.5, 209.5, 419),
    _row(r"RTX 4090", 1008, _ADA, 82.6, 82.6, 165.2, 165.2, 330.3),
    _row(r"RTX 3090", 936, _GA102, 35.6, 35.6, 71, 71),
    # Its figure for TF32 is left out: torch rounds to that on AMD's devices only where a library allows it.
    _row(r"AMD Instinct MI300X", 5300, _MI300X, 163.4, 0, 1307.4, 1307.4, 2614.9),
)

_SHORT: Final = {
    "fp32": "float32",
    "tfloat32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}


def peak_flops(name: str, dtype: str) -> tuple[float, str] | None:
    """
    Return floating-point operations a second and where that is stated, or None for what is not known.

    Args:
        name: the device's name, as the driver or torch tells it.

        dtype: of the multiplications: `float32`, `tf32`, `bfloat16`, `float16`, `float8`; torch's own names
            and the usual short ones do as well.
    """
    row = _row_of(name)
    tflops = row.tflops.get(kind_of_number(dtype) or "") if row else None
    return (tflops * 1e12, f"{row.source}, dense") if row and tflops else None


def kind_of_number(dtype: str) -> str | None:
    """Return which of `KINDS` is meant by torch's name or a usual short one; None where none is."""
    word = dtype.strip().lower().removeprefix("torch.")
    kind = _SHORT.get(word, word)
    return kind if kind in KINDS else None


def datasheet_gb_s(name: str) -> tuple[float, str] | None:
    """Return the memory bandwidth that the maker states, and where; None for what is not known."""
    row = _row_of(name)
    return (row.gb_s, row.source) if row else None


def peak_bandwidth(
    name: str,
    *,
    driver: tuple[float | None, float | None],
    torch: tuple[float | None, float | None] = (None, None),
) -> Bandwidth:
    """
    Return a GPU's theoretical memory bandwidth: highest clock x 2 x width of the bus.

    Args:
        name: the device's name.

        driver: highest memory clock in MHz and bus width in bits, as the driver tells them.

        torch: the same as torch tells them.
    """
    stated = datasheet_gb_s(name)
    sheet = stated[0] if stated else None
    for (clock_mhz, bits), teller in ((driver, "the driver"), (torch, "torch")):
        if not clock_mhz or not bits:
            continue
        gb_s = clock_mhz * 2 * bits / 8 / 1000
        source = f"{clock_mhz:g} MHz x 2 x {bits:g} bit, told by {teller}"
        remark = ""
        if stated and abs(gb_s / stated[0] - 1) > _APART:
            remark = f"{gb_s:.0f} GB/s, but {stated[0]:.0f} GB/s by the {stated[1]}"
        return Bandwidth(gb_s=gb_s, source=source, datasheet_gb_s=sheet, remark=remark)
    reason = "neither the driver nor torch tells memory clock and bus width"
    return Bandwidth(gb_s=None, source=reason, datasheet_gb_s=sheet)


def _row_of(name: str) -> _Row | None:
    short = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", name.strip())
    return next((row for row in _ROWS if re.fullmatch(row.name, short)), None)
