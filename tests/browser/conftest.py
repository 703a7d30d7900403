"""A real TensorBoard server on loopback, and a real browser that looks at it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest
from chromium import ARGUMENTS, Browser, executable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a page in a browser with an empty profile."""
    path = executable()
    if path is None:
        reason = "no Chromium: `make browser` installs one where it may"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=path,
            headless=True,
            args=ARGUMENTS,
            viewport={"width": 1500, "height": 1000},
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        looking = Browser(page)
        page.on("request", lambda request: looking.requests.append(request.url))
        yield looking
        context.close()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[Path], str]]:
    """Return a function that serves a folder of runs and returns the address."""
    servers: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
        servers.append(
            subprocess.Popen(
                [*command, "--port", str(port), "--reload_interval", "1"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/data/runs", timeout=5) as answer:
                    if b"x" in answer.read():
                        return url
            except OSError:
                pass
            assert time.monotonic() < until, "TensorBoard did not show the run"
            time.sleep(0.1)

    yield start
    for server in servers:
        server.terminate()
        server.wait()
