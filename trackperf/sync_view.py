"""`trackperf sync` on a terminal: a line that moves, and a table of what became of each run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from trackperf.rendering import ABSENT, console
from trackperf.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from trackperf.sync import Sent

__all__ = ["progress", "sync_table"]


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a line for the run that is being sent; give what it is to be told with."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console(stderr=True)
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def tell(run: str, done: int, total: int) -> None:
            bar.update(task, description=run, completed=done, total=max(done, total))

        yield tell


def sync_table(done: Sequence[Sent], address: str) -> RenderableType:
    """
    Return a table of what was sent and what remains.

    Args:
        done: the runs.

        address: what was looked through.
    """
    if not done:
        return Text(f"Nothing waits at {address}.")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("run", "to", "sent", "refused", "waiting", ""):
        right = title in ("sent", "refused", "waiting")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for sent in done:
        waiting = ABSENT if sent.waiting is None else count(sent.waiting)
        note = sent.note or ("" if sent.remains else "done")
        style = "yellow" if sent.remains or sent.lost else "green"
        row = (sent.run, sent.sink, count(sent.sent), count(sent.lost), waiting)
        table.add_row(*map(Text, row), Text(note, style))
    return table
