"""The progress line, on real terminals."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import types
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from trackperf.progress import ProgressLine
from trackperf.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUES = {"perf/samples_per_s": 1204.4, "perf/data_pct": 12.34, "perf/step_ms": 10.0}


class Terminal:
    """A real pseudo-terminal: the program's side as a stream, and what came out at the other."""

    def __init__(self, columns: int = 120, encoding: str = "utf-8") -> None:
        self.outer, inner = pty.openpty()
        self.stream: TextIO = open(inner, "w", encoding=encoding)  # noqa: SIM115, PTH123
        self.resize(columns)

    def resize(self, columns: int) -> None:
        """Change the width."""
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self) -> str:
        """Return what was written since."""
        found = b""
        while select.select([self.outer], [], [], 0)[0]:
            found += os.read(self.outer, 65536)
        return found.decode(self.stream.encoding)

    def lines(self) -> list[str]:
        """Return the lines written since, each as it was shown, without control codes."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.read())
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]

    def close(self) -> None:
        """Close both sides."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.close()
        with contextlib.suppress(OSError):
            os.close(self.outer)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Return a terminal of 120 columns."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that is moved by hand."""
    return FakeClock()


class TestTerminal:
    """On a terminal one line is written over itself."""

    def test_everything_in_a_line(self, terminal: Terminal, clock: FakeClock) -> None:
        """Steps of the total with a bar, samples a second, data share, time gone and time left."""
        line = ProgressLine(total_steps=1000, stream=terminal.stream, clock=clock)
        clock.advance(62)
        line.update(370, {**VALUES, "perf_time/eta_s": 105.0})
        bar = "━" * 7 + "─" * 13
        assert terminal.lines() == [
            f"step 370/1,000   37% {bar}  1,204 samples/s  data 12.3%  0:01:02 elapsed  ETA 0:01:45"
        ]

    def test_without_a_total(self, terminal: Terminal, clock: FakeClock) -> None:
        """Without a total there is no bar and no time left."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        clock.advance(3 * 86400 + 3723)
        line.update(7, {"perf/tokens_per_s": 55.5})
        assert terminal.lines() == ["step 7  55.50 tokens/s  3 d 1:02:03 elapsed"]

    def test_absent_is_left_out(self, terminal: Terminal, clock: FakeClock) -> None:
        """What was not measured is not shown, neither as 0 nor as what it was before."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        line.update(1, VALUES)
        clock.advance(1)
        line.update(2, {"perf/step_ms": 400.0})
        assert terminal.lines()[-1] == "step 2  2.50 steps/s  0:00:01 elapsed"

    def test_own_time_left(self, terminal: Terminal, clock: FakeClock) -> None:
        """Until the run tells the time left, the line's own updates do; after a resume, this part's."""
        line = ProgressLine(total_steps=1000, stream=terminal.stream, clock=clock)
        clock.advance(5)
        line.update(500, {})
        clock.advance(10)
        line.update(600, {})
        first, second = terminal.lines()
        assert "ETA" not in first
        assert second.endswith("ETA 0:00:40")

    def test_four_times_a_second(self, terminal: Terminal, clock: FakeClock) -> None:
        """A second of a thousand updates writes the line four times; the last state is shown at the end."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        for step in range(1000):
            line.update(step, {})
            clock.advance(0.001)
        lines = terminal.lines()
        assert [shown.split()[1] for shown in lines] == ["0", "250", "500", "750"]
        line.close("done")
        assert [shown.split()[0:2] for shown in terminal.lines()] == [["step", "999"], ["done"]]

    def test_end(self, terminal: Terminal, clock: FakeClock) -> None:
        """The end leaves the line, writes the last word as it is, and happens once."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        line.update(1, {})
        terminal.read()
        line.close("[bold]120[/] samples/s")
        assert terminal.read().endswith("\x1b[K\r\n[bold]120[/] samples/s\r\n")
        line.close("again")
        line.update(2, {})
        assert terminal.read() == ""

    def test_end_before_the_first_step(self, terminal: Terminal, clock: FakeClock) -> None:
        """A run without steps leaves no empty line."""
        ProgressLine(total_steps=None, stream=terminal.stream, clock=clock).close(None)
        assert terminal.read() == ""

    def test_what_is_written(self, terminal: Terminal, clock: FakeClock) -> None:
        """The line begins at the left edge, clears to the right, and touches neither cursor nor modes."""
        line = ProgressLine(total_steps=10, stream=terminal.stream, clock=clock)
        line.update(1, VALUES)
        line.close(None)
        written = terminal.read()
        assert written.startswith("\r")
        assert set(re.findall(r"\x1b\[[0-9;?]*([A-Za-z])", written)) == {"m", "K"}

    @pytest.mark.parametrize("columns", range(1, 121, 7))
    def test_widths(self, terminal: Terminal, clock: FakeClock, columns: int) -> None:
        """At any width the line fits in one row, the step last to go."""
        terminal.resize(columns)
        line = ProgressLine(total_steps=1000, stream=terminal.stream, clock=clock)
        line.update(370, VALUES)
        (shown,) = terminal.lines() or [""]
        assert len(shown) <= max(1, columns - 2)
        assert shown.startswith("step 370/1,000"[: max(1, columns - 3)])

    def test_resize(self, terminal: Terminal, clock: FakeClock) -> None:
        """A terminal that changes its width is followed from the next update on, also to no width at all."""
        line = ProgressLine(total_steps=1000, stream=terminal.stream, clock=clock)
        shown = []
        for columns in (120, 30, 0, 60):
            terminal.resize(columns)
            line.update(370, VALUES)
            clock.advance(1)
            shown.append(len(terminal.lines()[0]))
        assert shown[1] <= 28 < shown[3] <= 58 < shown[2] <= 78 < shown[0]

    def test_plain_terminals(self, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
        """Without control codes a shorter line covers the one before; without UTF-8 the bar is ASCII."""
        monkeypatch.setenv("TERM", "dumb")
        terminal = Terminal(encoding="latin-1")
        line = ProgressLine(total_steps=1000, stream=terminal.stream, clock=clock)
        line.update(1000, VALUES)
        first = terminal.read()
        clock.advance(1)
        line.update(1001, {})
        second = terminal.read()
        terminal.close()
        assert "#" * 20 in first
        assert "\x1b" not in first + second
        assert len(second) >= len(first.rstrip())

    def test_no_colours(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
        """`NO_COLOR` is respected."""
        monkeypatch.setenv("NO_COLOR", "1")
        line = ProgressLine(total_steps=10, stream=terminal.stream, clock=clock)
        line.update(1, VALUES)
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.read())

    def test_output_before(self, terminal: Terminal, clock: FakeClock) -> None:
        """What the user wrote to the stream before comes before."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        terminal.stream.write("loading")
        line.update(1, {})
        assert terminal.lines()[0] == "loading"


class TestTrouble:
    """Nothing that happens to a terminal reaches the training."""

    def test_closed_stream(self, terminal: Terminal, clock: FakeClock) -> None:
        """A stream that is closed, before or while it is used, ends the line."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        line.update(1, VALUES)
        terminal.stream.close()
        clock.advance(1)
        line.update(2, VALUES)
        line.close("done")
        ProgressLine(total_steps=None, stream=terminal.stream, clock=clock).update(1, VALUES)

    def test_terminal_that_is_gone(self, terminal: Terminal, clock: FakeClock) -> None:
        """A terminal whose window was closed ends the line."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        os.close(terminal.outer)
        for step in range(3):
            clock.advance(1)
            line.update(step, VALUES)
        line.close("done")

    @pytest.mark.timeout(20)
    def test_stopped_terminal(self, terminal: Terminal, clock: FakeClock) -> None:
        """A terminal stopped with Ctrl-S keeps nobody waiting, and shows the line when it goes on."""
        line = ProgressLine(total_steps=None, stream=terminal.stream, clock=clock)
        termios.tcflow(terminal.stream.fileno(), termios.TCOOFF)
        line.update(1, VALUES)
        termios.tcflow(terminal.stream.fileno(), termios.TCOON)
        assert terminal.lines() == []
        clock.advance(1)
        line.update(2, VALUES)
        assert terminal.lines()[0].startswith("step 2 ")

    @pytest.mark.timeout(20)
    def test_terminal_that_nobody_reads(self, terminal: Terminal, clock: FakeClock) -> None:
        """A terminal whose buffer is full keeps nobody waiting, at the end neither."""
        line = ProgressLine(total_steps=1000, stream=terminal.stream, clock=clock)
        for step in range(2000):
            clock.advance(1)
            line.update(step, VALUES)
        line.close("done")

    def test_values_that_make_no_sense(self, terminal: Terminal, clock: FakeClock) -> None:
        """Values nobody should have passed end the line at worst."""
        line = ProgressLine(total_steps=-5, stream=terminal.stream, clock=clock)
        line.update(
            1, {"perf/samples_per_s": float("nan"), "perf/step_ms": 0.0, "perf_time/eta_s": float("inf")}
        )
        line.close(None)

    def test_two_threads(self, terminal: Terminal) -> None:
        """Updates from one thread and the end from another neither mix nor wait for each other."""
        line = ProgressLine(total_steps=None, stream=terminal.stream)
        stop = threading.Event()

        def update() -> None:
            step = 0
            while not stop.is_set():
                line.update(step, VALUES)
                step += 1

        thread = threading.Thread(target=update)
        thread.start()
        line.close("done")
        stop.set()
        thread.join(10)
        assert terminal.lines()[-1] == "done"


class TestSilence:
    """In a log nothing is written."""

    def test_file(self, tmp_path: Path, clock: FakeClock) -> None:
        """A file and a stream in memory stay empty."""
        with (tmp_path / "log").open("w+") as file:
            for stream in (file, io.StringIO()):
                line = ProgressLine(total_steps=10, stream=stream, clock=clock)
                line.update(1, VALUES)
                line.close("done")
                assert stream.tell() == 0

    def test_no_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process without standard error has no line."""
        monkeypatch.setattr(sys, "stderr", None)
        ProgressLine(total_steps=10).update(1, VALUES)

    def test_real_pipe(self) -> None:
        """A job whose standard error is a pipe says nothing, and does not load what draws the line."""
        code = textwrap.dedent("""
            import sys
            from trackperf.progress import ProgressLine
            line = ProgressLine(total_steps=10)
            line.update(1, {"perf/data_pct": 5.0})
            line.close("done")
            print("rich" in sys.modules, "IPython" in sys.modules)
        """)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("False False\n", "")

    def test_job_in_the_background(self) -> None:
        """A job that another has taken the terminal from writes nothing and is not stopped for trying."""
        code = textwrap.dedent("""
            import os, sys, termios
            from trackperf.progress import ProgressLine
            mode = termios.tcgetattr(2)
            mode[3] |= termios.TOSTOP
            termios.tcsetattr(2, termios.TCSANOW, mode)
            line = ProgressLine(total_steps=10)
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)
                line.update(1, {})
                os._exit(7)
            _, status = os.waitpid(child, os.WUNTRACED)
            os.write(1, b"exit %d" % (os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1))
        """)
        pid, outer = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [sys.executable, "-c", code])
        written = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(outer, 1024):
                written += chunk
        os.waitpid(pid, 0)
        os.close(outer)
        assert written == b"exit 7"


class Handle:
    """An output of a notebook."""

    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        """Put new content in its place."""
        assert raw
        self.shown[-1] = content["text/plain"]


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make this process look like a notebook's kernel; return its outputs."""
    shown: list[str] = []

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(content["text/plain"])
        return Handle(shown)

    notebook: Any = types.ModuleType("IPython")
    notebook.display = types.ModuleType("IPython.display")
    notebook.display.display = display
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display)
    return shown


class TestNotebook:
    """In a notebook one output is kept up to date."""

    def test_one_output(self, outputs: list[str], clock: FakeClock) -> None:
        """The first update makes an output, later ones and the end change it."""
        line = ProgressLine(total_steps=4, clock=clock)
        assert outputs == []
        for step in (1, 2):
            line.update(step, VALUES)
            clock.advance(1)
        (shown,) = outputs
        assert shown.startswith("step 2/4")
        line.close("done")
        assert len(outputs) == 1
        assert outputs[0].endswith("\ndone")

    def test_prompt(self, outputs: list[str], monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
        """IPython's prompt in a terminal is no notebook."""
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", types.SimpleNamespace, raising=False)
        line = ProgressLine(total_steps=4, clock=clock)
        line.update(1, VALUES)
        assert outputs == []

    def test_kernel_that_is_gone(
        self, outputs: list[str], monkeypatch: pytest.MonkeyPatch, clock: FakeClock
    ) -> None:
        """An output that cannot be made ends the line."""
        monkeypatch.delattr(sys.modules["IPython.display"], "display")
        line = ProgressLine(total_steps=4, clock=clock)
        line.update(1, VALUES)
        line.close("done")
        assert outputs == []
