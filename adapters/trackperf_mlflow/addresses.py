"""
What an address means to the reader.

    RUN_ID                            a run of the store that MLflow is set to
    EXPERIMENT                        all runs of an experiment, by name or id
    mlflow.db, sqlite:///mlflow.db    all runs of a database
    http://host:5000                  all runs of a server
    STORE#RUN_ID, STORE#EXPERIMENT    of a store that is named; also a page's address, as a browser shows it

Behind each but a run may stand `?` and a filter of MLflow's: `EXPERIMENT?tags.model = 'resnet50'`.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from trackperf_mlflow.uris import DATABASES, absolute, is_tracking_database, scheme_of, sqlite_path

__all__ = ["Address", "parse", "run_address"]

_RUN: Final = re.compile(r"[0-9a-f]{32}")
_PAGE: Final = re.compile(r"/?experiments/(?P<experiment>\d+)(?:/runs/(?P<run>[0-9a-f]{32}))?")
_REMOTE: Final = ("http", "https", "databricks", *sorted(DATABASES - {"sqlite"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address in its parts."""

    tracking_uri: str
    store: str
    """The store as it was named; empty for the one that MLflow is set to."""

    run_id: str | None = None
    experiment: str | None = None
    """Name or id; None for all."""

    condition: str = ""
    """A filter of MLflow's."""


def parse(address: str) -> Address | None:
    """Return what an address means; None when it is no run's or store's that is there."""
    text, question, condition = address.removeprefix("mlflow:").partition("?")
    store, _, what = _split(text)
    if store:
        uri = _named(store)
    elif not what or Path(what).expanduser().exists():
        # What lies on the disk is another reader's.
        return None
    else:
        uri = _usual()
    if uri is None or not _is_there(uri):
        return None
    page = _PAGE.match(what) if store else None
    run_id = (page and page["run"]) or (what if _RUN.fullmatch(what) else None)
    experiment = page["experiment"] if page else unquote(what) if store else what
    return Address(
        tracking_uri=uri,
        store=store,
        run_id=run_id,
        experiment=None if run_id or not experiment else experiment,
        condition=condition if question else "",
    )


def run_address(store: str, run_id: str) -> str:
    """Return the address of a run."""
    return f"{store}#{run_id}" if store else run_id


def _split(text: str) -> tuple[str, str, str]:
    store, sign, what = text.partition("#")
    if sign or scheme_of(store) in (*_REMOTE, "sqlite") or is_tracking_database(Path(store).expanduser()):
        return store.rstrip("/") if scheme_of(store) in ("http", "https") else store, sign, what
    return "", "", text


def _named(store: str) -> str | None:
    scheme = scheme_of(store)
    if scheme in _REMOTE:
        return store
    if scheme == "sqlite":
        return absolute(store)
    path = Path(store).expanduser().absolute()
    return f"sqlite:///{path}" if is_tracking_database(path) else None


def _usual() -> str | None:
    """Return the store that MLflow is set to; None where it would have to make one first."""
    told = any(os.environ.get(name) for name in ("MLFLOW_TRACKING_URI", "DATABRICKS_RUNTIME_VERSION"))
    unset = "mlflow" not in sys.modules and not told
    if unset and not any(Path(name).exists() for name in ("mlflow.db", "mlruns")):
        return None  # without MLflow's import, which takes seconds
    import mlflow

    return absolute(str(mlflow.get_tracking_uri()))


def _is_there(uri: str) -> bool:
    """Return whether a store can be asked: where no database is, MLflow would make one."""
    scheme = scheme_of(uri)
    if scheme == "sqlite":
        path = sqlite_path(uri)
        return path is not None and is_tracking_database(path)
    return scheme in _REMOTE or (scheme == "file" and Path(uri.removeprefix("file://")).is_dir())
