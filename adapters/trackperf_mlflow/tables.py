"""MLflow's tables in a database that has none yet: made whole before training begins, or not at all."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trackperf_mlflow.store import look, with_limits
from trackperf_mlflow.uris import DATABASES, is_tracking_database, scheme_of, sqlite_path, without_secrets

if TYPE_CHECKING:
    from trackperf_mlflow.api import Deadlines

__all__ = ["make_tables"]

_log: Final = logging.getLogger("trackperf")


def make_tables(uri: str, deadlines: Deadlines) -> None:
    """
    Make MLflow's tables where a database has none, which takes seconds.

    Left to the first call, that would be done on a daemon thread. A process that ends in the middle of it
    leaves a database that MLflow can neither use nor mend.

    Args:
        uri: address of a store; one that is no database, or has tables, is left as it is.

        deadlines: how long a server may take to answer. One that does not is asked again later.
    """
    path, scheme = sqlite_path(uri), scheme_of(uri)
    if scheme not in DATABASES or (is_tracking_database(path) if path else scheme == "sqlite"):
        return
    try:
        look(uri, deadlines)
        if path is None:
            _fill(with_limits(uri, deadlines))
        elif uri != f"sqlite:///{path}" or (path.exists() and path.stat().st_size):
            # With a driver or options, or among tables of something else.
            _fill(uri)
        else:
            _make_file(path.resolve())
    except Exception as error:  # noqa: BLE001 - the run's first call tries again, and says what is wrong
        _log.debug("trackperf: MLflow has no tables in %s: %s", without_secrets(uri), error)


def _make_file(path: Path) -> None:
    """Make a database beside its place, and put it there when it is whole: not even a kill halves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        _fill(f"sqlite:///{fresh}", place=str(path))
        if path.exists() and not path.stat().st_size:
            path.unlink()
        try:
            os.link(fresh, path)
        except FileExistsError:
            # Another process was faster; its database stands.
            return
        except OSError:
            _log.debug("trackperf: no file can be put in place at once in %s", path.parent)
        else:
            return
    _fill(f"sqlite:///{path}")


def _fill(uri: str, *, place: str | None = None) -> None:
    """Make the tables in a database that can be reached, unless they are there."""
    import sqlalchemy  # noqa: PLC0415 - comes with MLflow
    from mlflow.store.db import utils

    db: Any = utils
    engine = sqlalchemy.create_engine(uri)
    try:
        if not sqlalchemy.inspect(engine).has_table("experiments"):
            told = place or without_secrets(uri)
            _log.info("trackperf: MLflow's tables are made in %s, once; it takes some seconds", told)
            # What MLflow itself calls when it opens such a database.
            db._initialize_tables(engine)  # noqa: SLF001
    finally:
        engine.dispose()
