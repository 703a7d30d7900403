"""
The format of an event file, and one such file that grows.

A record is: length (8 bytes, little endian), checksum of the length, data, checksum of the data. The
checksum is CRC-32C, rotated and offset ("masked") so that a checksum of checksums stays strong.
"""

from __future__ import annotations

import importlib.util
import os
import struct
from typing import TYPE_CHECKING, Final

from trackperf.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["EventFile", "Framer", "masked", "require", "varint"]

_LENGTH: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")
_MASK_DELTA: Final = 0xA282EAD8


def require(user: str) -> None:
    """
    Make sure that the packages of this adapter are installed, without importing them.

    Args:
        user: who needs them, for the message.

    Raises:
        MissingDependencyError: one is not installed.
    """
    for package in ("tensorboard", "google_crc32c"):
        try:
            found = importlib.util.find_spec(package) is not None
        except ValueError:
            found = False
        if not found:
            raise MissingDependencyError(user=user, package=package, extra="tensorboard")


def preload() -> None:
    """
    Import what a run needs, once and early.

    On the sink's own thread each of some hundred files would wait for the interpreter lock of a busy
    training: seconds until the run shows. And an import while an interrupt ends the process changes its
    exit status.
    """
    for module in (
        "google_crc32c",
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.compat.proto.summary_pb2",
        "tensorboard.plugins.custom_scalar.layout_pb2",
        "tensorboard.plugins.hparams.plugin_data_pb2",
        "tensorboard.plugins.text.plugin_data_pb2",
    ):
        importlib.import_module(module)


def crc32c() -> Callable[[bytes], int]:
    """Return the function that computes a CRC-32C."""
    import google_crc32c  # noqa: PLC0415 - importing the adapter must work without it

    value: Callable[[bytes], int] = google_crc32c.value
    return value


def masked(crc: int) -> int:
    """Return a checksum as it is stored."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def varint(number: int) -> bytes:
    """Return a number of at most 64 bits in the protocol buffers' variable-length form."""
    if 0 <= number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7)) if number > 0x7F else bytes((number,))
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Framer:
    """Puts length and checksums around records."""

    def __init__(self) -> None:
        self._crc = crc32c()
        self._heads: dict[int, bytes] = {}

    def frame(self, data: bytes) -> bytes:
        """Return `data` as a record."""
        size = len(data)
        head = self._heads.get(size)
        if head is None:
            length = _LENGTH.pack(size)
            head = length + _CRC.pack(masked(self._crc(length)))
            if len(self._heads) < 4096:
                self._heads[size] = head
        crc = self._crc(data)
        return head + data + _CRC.pack((((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


class EventFile:
    """
    A new file that only whole batches of records are appended to.

    What `append` took is with the operating system when it returns: it survives the death of the process.
    """

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: the file; it must not exist yet.

        Raises:
            OSError: it cannot be made, or exists.
        """
        self.path = path
        self._fd: int | None = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o666)
        self._size = 0
        self._torn = False

    def append(self, records: bytes) -> None:
        """
        Append records: all of them or none.

        Raises:
            OSError: they could not be written; the file is as before, or is made so by the next call.
        """
        try:
            self._mend()
            rest = memoryview(records)
            self._torn = True
            while rest:
                rest = rest[os.write(self._descriptor(), rest) :]
        except OSError as error:
            self._try_mend()
            raise OSError(error.errno, error.strerror or str(error), str(self.path)) from error
        self._torn = False
        self._size += len(records)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        try:
            os.fsync(self._descriptor())
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(self.path)) from error

    def close(self) -> None:
        """Close the file; it is removed when nothing was ever written to it."""
        if self._fd is None:
            return
        descriptor, self._fd = self._fd, None
        os.close(descriptor)
        if not self._size:
            self.path.unlink(missing_ok=True)

    def _descriptor(self) -> int:
        if self._fd is None:
            raise OSError(9, "the event file is closed", str(self.path))
        return self._fd

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._descriptor(), self._size)
            self._torn = False

    def _try_mend(self) -> None:
        try:
            self._mend()
        except OSError:
            self._torn = True
