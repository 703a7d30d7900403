"""W&B's own package: what it is set to, whether its server answers, and how a run of ours is begun."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import logging
import netrc
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from trackperf.errors import MissingDependencyError, SinkError
from trackperf_wandb.rows import tags_of

if TYPE_CHECKING:
    from trackperf.record import RunInfo

__all__ = ["Options", "begin", "installed", "live_run", "mode_of", "require", "require_key", "start_service"]

_log = logging.getLogger("trackperf")

PROBE_S: Final = 2.0
"""How long the server may take to answer at all before a run of ours is written offline."""

INIT_S: Final = 20
FINISH_S: Final = 3.0
FLUSH_S: Final = 1

_MODES: Final = {"dryrun": "offline", "run": "online"}
_ALLOWED: Final = ("online", "offline", "shared", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where a run of our own goes; None where W&B's own settings decide."""

    mode: str
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    job_type: str | None = None


def installed(user: str) -> None:
    """
    Make sure that W&B's package is there, without importing it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    if "wandb" not in sys.modules and importlib.util.find_spec("wandb") is None:
        raise MissingDependencyError(user=user, package="wandb", extra="wandb")


def require(user: str) -> Any:
    """
    Return W&B's package.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingDependencyError(user=user, package="wandb", extra="wandb") from error
    return wandb


def live_run() -> Any | None:
    """Return the user's run, if there is one; never imports W&B for it."""
    return getattr(sys.modules.get("wandb"), "run", None)


def mode_of(wandb: Any, asked: str | None) -> str:
    """
    Return the mode: as asked, else as W&B is set.

    Raises:
        SinkError: W&B knows no such mode.
    """
    mode = asked or os.environ.get("WANDB_MODE") or str(wandb.setup().settings.mode)
    mode = _MODES.get(mode, mode)
    if mode not in _ALLOWED:
        raise SinkError(f"W&B has no mode {mode!r}; it has: {', '.join(_ALLOWED)}")
    return mode


def require_key(wandb: Any) -> None:
    """
    See to it that W&B will not stop at a prompt, on a thread where nobody answers.

    Raises:
        SinkError: W&B knows no key for its server.
    """
    settings = wandb.setup().settings
    host = urlsplit(str(settings.base_url)).hostname or ""
    given = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in given) or settings.api_key or _in_netrc(host):
        return
    raise SinkError(
        f"W&B knows no API key for {host}: run `wandb login`, or set WANDB_API_KEY; "
        "or write to local files with WANDB_MODE=offline"
    )


def start_service(wandb: Any) -> None:
    """
    Start W&B's own process, if this version lets one, and load what a run loads when it begins.

    Done early: W&B registers an exit hook with it that ends every run, and a script may come to its end while
    another thread still begins one. And half a second of imports would be taken from the training.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("wandb.sdk.launch")
    ensure = getattr(wandb.setup(), "ensure_service", None)
    if ensure is not None:
        ensure()


def begin(wandb: Any, run: RunInfo, config: dict[str, Any], options: Options) -> Any:
    """
    Begin a run of our own, or go on with it; offline where the server does not answer.

    It changes nothing of what W&B holds for the process: neither `wandb.run` nor the run that a later
    `wandb.init` of the user's returns.

    Raises:
        OSError: its folder cannot be written.
    """
    folder = str(Path(os.environ.get("WANDB_DIR") or run.dir).absolute())
    Path(folder).mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "W&B's files cannot be written", folder)
    mode, run_id, silence = options.mode, run.run_id, ""
    if mode != "offline":
        silence = _silence(str(wandb.setup().settings.base_url))
        if not silence:
            try:
                return _init(wandb, run, config, options, mode=mode, folder=folder, run_id=run_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes to a local file
                # Of the run that could not begin, W&B's own process keeps the identity.
                silence, run_id = f"{type(error).__name__}: {error}", f"{run_id}-offline"
    begun = _init(wandb, run, config, options, mode="offline", folder=folder, run_id=run_id)
    if silence:
        _log.warning(
            "trackperf: W&B does not take the run (%s); it is written to a file. Send it later with: "
            "wandb sync %s",
            silence.splitlines()[0],
            begun.settings.sync_dir,
        )
    return begun


def _init(
    wandb: Any, run: RunInfo, config: dict[str, Any], options: Options, *, mode: str, folder: str, run_id: str
) -> Any:
    begun = wandb.init(
        project=options.project,
        entity=options.entity,
        group=options.group,
        job_type=options.job_type,
        id=run_id,
        name=run.name,
        config=config,
        tags=tags_of(run.tags) or None,
        dir=folder,
        mode=mode,
        reinit="create_new",
        resume="allow" if run.resume_step is not None and mode != "offline" else None,
        settings=_settings(wandb, mode),
    )
    # A later `wandb.init` of the user's would return our run, or finish it.
    hide = getattr(wandb.setup(), "remove_active_run", None)
    if hide is not None:
        hide(begun)
    return begun


def _settings(wandb: Any, mode: str) -> Any:
    """Return settings of our own run alone: those of them that the installed version has."""
    wanted: dict[str, Any] = {
        "console": "off",
        "quiet": True,
        "init_timeout": INIT_S,
        "x_transaction_log_flush_interval": FLUSH_S,
        # Listing every installed package takes most of a second from the training.
        "x_save_requirements": False,
    }
    if mode != "offline":
        wanted["finish_timeout"] = FINISH_S
    known = getattr(wandb.Settings, "model_fields", wanted)
    return wandb.Settings(**{name: value for name, value in wanted.items() if name in known})


def _silence(base_url: str) -> str:
    """Return why the server would let a run wait; empty when it answers."""
    tries = Retrying(
        stop=stop_after_delay(PROBE_S / 2),
        wait=wait_fixed(0.5),
        retry=retry_if_exception_type(OSError),
    )
    try:
        tries(_ask, base_url)
    except RetryError as error:
        return f"{base_url} does not answer: {error.last_attempt.exception()}"
    except (ValueError, http.client.HTTPException) as error:
        return f"{base_url} is no server of W&B's: {error}"
    return ""


def _ask(base_url: str) -> None:
    """Ask the part of the server that a run begins with for nothing; any answer but a fault is one."""
    request = urllib.request.Request(  # noqa: S310 - the user's own server
        f"{base_url.rstrip('/')}/graphql",
        data=b'{"query":"query{__typename}"}',
        headers={"Content-Type": "application/json", "User-Agent": "trackperf"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PROBE_S):  # noqa: S310 - as above
            return
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise


def _in_netrc(host: str) -> bool:
    path = os.environ.get("NETRC") or next(
        (str(found) for name in (".netrc", "_netrc") if (found := Path.home() / name).is_file()), ""
    )
    try:
        return bool(path) and netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
