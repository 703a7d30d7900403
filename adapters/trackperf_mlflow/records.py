"""
What MLflow has no place for, kept whole in tags of the run: descriptions, summary, alerts.

Tags are with the run itself, wherever its files are, and are stored in the same call as values. Their names
begin with `mlflow.`, since MLflow's pages show all others. A text that is too long for a tag is packed and
goes over several: the first says how many.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ALERTS", "END", "INFO", "KEYS", "SESSIONS", "pack", "unpack"]

INFO: Final = "info"
"""The latest `RunInfo`."""

END: Final = "end"
"""Status and `RunSummary`; empty while the run goes on."""

ALERTS: Final = "alerts"
"""A list of `Alert`."""

KEYS: Final = "keys"
"""A list of the series that do not begin with the run's prefix."""

SESSIONS: Final = "sessions"
"""Of every process that took the run over: from which step, and when."""

_PREFIX: Final = "mlflow.trackperf."
_PART: Final = 4500
_PLAIN: Final = "="
_PACKED: Final = "z"
_MOST_PARTS: Final = 90


def pack(name: str, text: str) -> dict[str, str]:
    """
    Return the tags that hold a text.

    Raises:
        ValueError: it is too long, by far.
    """
    # MLflow counts characters, some of its databases bytes.
    if text.isascii() and len(text) < _PART:
        return {f"{_PREFIX}{name}": _PLAIN + text}
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    parts = [packed[at : at + _PART] for at in range(0, len(packed), _PART)]
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"{name} is too long to be kept: {len(text)} characters, {len(packed)} packed")
    tags = {f"{_PREFIX}{name}.{at}": part for at, part in enumerate(parts)}
    return {f"{_PREFIX}{name}": f"{_PACKED}{len(parts)}", **tags}


def unpack(name: str, tags: Mapping[str, str]) -> str | None:
    """
    Return the text that `pack` put into tags; None when there is none.

    Raises:
        ValueError: a part is missing or damaged.
    """
    head = tags.get(f"{_PREFIX}{name}", "")
    if head.startswith(_PLAIN):
        return head[1:] or None
    if not head:
        return None
    try:
        parts = [tags[f"{_PREFIX}{name}.{at}"] for at in range(int(head[1:]))]
        return zlib.decompress(base64.b64decode("".join(parts), validate=True)).decode()
    except (KeyError, ValueError, zlib.error, binascii.Error) as error:
        raise ValueError(f"the run's tag {_PREFIX}{name} is not whole: {error!r}") from error
