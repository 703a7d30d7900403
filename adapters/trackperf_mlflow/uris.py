"""Addresses of tracking stores: their scheme, their secrets, and whether a local one is there."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

__all__ = ["DATABASES", "absolute", "is_tracking_database", "scheme_of", "sqlite_path", "without_secrets"]

DATABASES: Final = frozenset({"sqlite", "postgresql", "mysql", "mssql"})
"""Schemes that MLflow speaks to through SQLAlchemy."""

_MAGIC: Final = b"SQLite format 3\0"
_SQLITE: Final = "sqlite:///"


def scheme_of(uri: str) -> str:
    """Return the scheme of a store's address, a driver's name after `+` left out; `file` for a path."""
    if uri == "databricks":
        return uri
    scheme, colon, _ = uri.partition(":")
    return scheme.partition("+")[0] if colon and len(scheme) > 1 else "file"


def absolute(uri: str) -> str:
    """Return a local database's address with the whole path: the process may change its folder later."""
    path = sqlite_path(uri)
    if path is None or not uri.startswith(_SQLITE):
        return uri
    _, question, options = uri.partition("?")
    return f"{_SQLITE}{path.absolute()}{question}{options}"


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite address; None for another store, or one in memory."""
    if scheme_of(uri) != "sqlite":
        return None
    path = unquote(uri.partition(":///")[2].partition("?")[0])
    return Path(path) if path and path != ":memory:" else None


def without_secrets(uri: str) -> str:
    """Return the address without a password, user or query."""
    if sqlite_path(uri) is not None:
        return uri
    with contextlib.suppress(ValueError):
        parts = urlsplit(uri)
        if parts.hostname is not None:
            place = parts.netloc.rpartition("@")[2]
            return urlunsplit((parts.scheme, place, parts.path, "", ""))
    return uri


def is_tracking_database(path: Path) -> bool:
    """Return whether a file is a database of MLflow's; it is not changed."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(
                "SELECT count(*) FROM sqlite_master WHERE name IN ('experiments', 'runs', 'metrics')"
            ).fetchone()
    except (OSError, sqlite3.Error):
        return False
    return bool(found[0] == 3)
