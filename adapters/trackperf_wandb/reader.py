"""The reader: runs in W&B's local files, and runs on its server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trackperf.errors import ReadError
from trackperf_wandb.client import installed, require
from trackperf_wandb.files import file_of, read_file, run_folders, sessions_of
from trackperf_wandb.parts import Part, history_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackperf.history import RunHistory

__all__ = ["WandbReader"]

_ONLINE: Final = re.compile(r"[\w.-]+/[\w. -]+/(\*|[\w.-]+)")
_PAGE: Final = 10_000
_EXITS: Final = {"finished": 0, "failed": 1, "killed": 130}


class WandbReader:
    """
    Reads every row of a W&B run, never a sample.

    A run is a folder `wandb/offline-run-...` or `wandb/run-...` with all sessions of the same run beside it,
    one `.wandb` file of it, or `entity/project/run` on the server.
    """

    name = "wandb"

    def __init__(self, *, api: Callable[[], Any] | None = None) -> None:
        """
        Args:
            api: makes the client of W&B's server; `wandb.Api` when not given.

        Raises:
            MissingDependencyError: `wandb` is not installed.
        """
        installed("the W&B reader")
        self._api = api or _api

    def find(self, address: str) -> Sequence[str]:
        """
        Return the runs at an address.

        Args:
            address: a folder: of each run below it the newest session's folder; a `.wandb` file; or, where no
                such path is, `entity/project/run`, or `entity/project/*` for all runs of a project.
        """
        address = address.removeprefix("wandb:")
        path = Path(address).expanduser()
        if path.is_file():
            return [address] if path.suffix == ".wandb" else []
        if path.is_dir():
            newest = {sessions_of(folder)[-1].parent for folder in run_folders(path)}
            return sorted(map(str, newest))
        # A path that is not there is no run on a server either: its first part tells them apart.
        if not _ONLINE.fullmatch(address) or Path(address.partition("/")[0]).exists():
            return []
        if not address.endswith("/*"):
            return [address]
        return sorted("/".join(run.path) for run in self._api().runs(address.removesuffix("/*")))

    def read(self, address: str) -> RunHistory:
        """
        Read a run.

        Args:
            address: as `find` returns it.

        Raises:
            ReadError: there is no run, or no record in it that can be read.
        """
        address = address.removeprefix("wandb:")
        path = Path(address).expanduser()
        if path.is_file():
            return self._read_files([path], address)
        if file_of(path) is not None:
            return self._read_files(sessions_of(path), address)
        if not path.exists() and _ONLINE.fullmatch(address):
            return self._read_online(address)
        raise ReadError(
            f"there is no W&B run at {address!r}. Give a folder such as runs/wandb/offline-run-..., a .wandb "
            "file, or entity/project/run"
        )

    def _read_files(self, files: Sequence[Path], address: str) -> RunHistory:
        read = [read_file(path) for path in files]
        return history_of(
            [part for part, _ in read], address, [problem for _, problems in read for problem in problems]
        )

    def _read_online(self, address: str) -> RunHistory:
        part = Part()
        try:
            run = self._api().run(address)
            part.name = str(run.name)
            part.configure(dict(run.config))
            for row in run.scan_history(page_size=_PAGE):
                part.row(row)
            part.summarise(dict(run.summary))
            part.exit_code = _EXITS.get(run.state)
        except Exception as error:
            raise ReadError(f"W&B's server does not give the run {address!r}: {error}") from error
        problems = [] if part.exit_code is not None else [f"the run has not ended well: it is {run.state}"]
        return history_of([part], address, problems)


def _api() -> Any:
    return require("the W&B reader").Api()
