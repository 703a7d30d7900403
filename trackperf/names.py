"""Names of series and of runs: what is valid in every tracker and in every file system."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["bad_run_name", "safe_key"]

_LONGEST: Final = 160
_SAFE: Final = re.compile(r"[A-Za-z0-9_\-. ]+(/[A-Za-z0-9_\-. ]+)*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_\-./ ]")
_RUN_NAME: Final = re.compile(r"[^<>:\"|?*\x00-\x1f]+")


def safe_key(name: str) -> str:
    """
    Return a series key for a name that a user gave, the same in every tracker.

    A name that all trackers take stays as it is. Any other gets a digest of the whole name appended, so that
    two different names never become one key; the run's metadata keeps the name itself (`RunInfo.names`).
    """
    parts = name.split("/")
    good = _SAFE.fullmatch(name) and all(part.strip(". ") and part == part.strip() for part in parts)
    if good and len(name) <= _LONGEST:
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    cleaned = [_UNSAFE.sub("_", part).strip(" .") for part in parts]
    return "/".join(part for part in cleaned if part)[:_LONGEST].rstrip("/. ") + f"_{digest}"


def bad_run_name(name: str) -> str | None:
    """Return what is wrong with a run's name, None when it can be a folder on every system."""
    if not name or name != name.strip():
        return "it is empty, or begins or ends with a space"
    if not _RUN_NAME.fullmatch(name) or "\\" in name:
        return 'it holds one of < > : " | ? * \\ or a control character'
    if any(part in ("", ".", "..") or part.endswith(".") for part in name.split("/")):
        return "a part of it between slashes is empty, '.', '..' or ends with a dot"
    return None
