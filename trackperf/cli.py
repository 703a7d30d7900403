"""The command `trackperf`: demo, doctor, sinks, runs, compare, sync."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trackperf.errors import ReadError, TrackperfError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackperf import RunHistory

__all__ = ["main"]

_MISTAKE: Final = 2
_INTERRUPTED: Final = 130

app = typer.Typer(
    name="trackperf",
    help="Five numbers that say why a training is slow, read from the runs that trackperf wrote.",
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def main(args: Sequence[str] | None = None) -> int:
    """
    Run a command and return its exit status: 2 for a mistake of the user's, 130 for an interrupt.

    Args:
        args: the words after `trackperf`; those of this process when None.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without UTF-8 shows a question mark for a dash; it ends nothing.
            stream.reconfigure(errors="replace")
    try:
        status = app(args=args, prog_name="trackperf", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return 1
    except (TrackperfError, OSError) as error:
        return _complain(str(error))
    except Exception as error:
        # Typer brings its own copy of click in some versions and takes the installed one in others.
        told = getattr(error, "format_message", None)
        if told is None:
            raise
        return _usage_error(error, told())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return status if isinstance(status, int) else 0


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        _print(f"trackperf {installed('trackperf')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        _print(context.get_help())


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder of runs; the demo makes one of its own in it.")
    ] = Path("runs"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each run; measured for this machine by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Half the time: just enough for the alert.")] = False,
) -> None:
    """Train twice, with a starving and a better loader, and compare."""
    from trackperf.demo import run_demo

    run_demo(folder, steps=steps, quick=quick)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can measure, what it cannot, and why."""
    from trackperf.doctor import examine

    found = examine()
    if as_json:
        _print_json(found)
    else:
        from trackperf.rendering import doctor_view

        _show(doctor_view(found))


@app.command()
def sinks(as_json: AsJson = False) -> None:
    """List the sinks that are installed."""
    from dataclasses import asdict

    from trackperf.registry import sink_names

    entries = sink_names()
    if as_json:
        _print_json([asdict(entry) for entry in entries])
    else:
        from trackperf.rendering import sinks_table

        _show(sinks_table(entries))


@app.command()
def runs(
    address: Annotated[str, typer.Argument(metavar="DIR", help="Folder, or <reader>:<address>.")] = "runs",
    as_json: AsJson = False,
) -> None:
    """List the runs at or below a folder."""
    from dataclasses import asdict

    import trackperf

    rows = trackperf.runs(address)
    if not rows:
        raise ReadError(f"no run found at {address!r}.")
    if as_json:
        _print_json([asdict(row) for row in rows])
    else:
        from trackperf.rendering import runs_table

        _show(runs_table(rows, address))


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="RUN", help="The run to compare with.")],
    b: Annotated[str, typer.Argument(metavar="RUN", help="The run to judge.")],
    as_json: AsJson = False,
) -> None:
    """Judge the second run by the first. RUN: a folder, or a name below runs."""
    import trackperf

    one, other = _read(a), _read(b)
    comparison = trackperf.compare(one, other)
    if as_json:
        _print_json(comparison.to_dict())
    else:
        from trackperf.rendering import absent_of, comparison_view

        _show(comparison_view(comparison, absent_of(one) | absent_of(other)))


@app.command()
def sync(
    address: Annotated[str, typer.Argument(metavar="DIR", help="Folder of runs, or of one run.")] = "runs",
    to: Annotated[
        str | None,
        typer.Option(metavar="SINK", help="Send to this sink; also runs in local files. Nothing is removed."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Send what waits on disk for a tracker that was away."""
    from dataclasses import asdict

    from trackperf.sync import sync as send
    from trackperf.sync_view import progress, sync_table

    with progress() as tell:
        done = send(address, to=to, tell=tell)
    if as_json:
        _print_json([asdict(sent) for sent in done])
    else:
        _show(sync_table(done, address))
    return int(any(sent.remains for sent in done))


def _read(address: str) -> RunHistory:
    """Read the run at an address, or else the one of that name below `runs`."""
    from trackperf.registry import read_run

    below = Path("runs") / address
    named = ":" not in address and not Path(address).exists() and below.exists()
    return read_run(str(below) if named else address)


def _show(what: Any) -> None:
    from trackperf.rendering import console

    console().print(what)


def _print_json(value: Any) -> None:
    from trackperf.codec import plain

    _print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _usage_error(error: Exception, message: str) -> int:
    """Tell a mistake in the words of the command line, with the nearest name where click gives none."""
    _, quoted, rest = message.partition("No such command '")
    if quoted and "Did you mean" not in message:
        message += did_you_mean(rest.partition("'")[0], _commands())
    context = getattr(error, "ctx", None)
    place = getattr(context, "command_path", "trackperf")
    return _complain(f"{message}\nTry: {place} --help")


def _commands() -> list[str]:
    return [str(one.name or getattr(one.callback, "__name__", "")) for one in app.registered_commands]


def _complain(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return _MISTAKE


def _forget_output() -> None:
    """Send what is still in the buffer nowhere: the interpreter would fail over it when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
