# ruff: noqa: INP001 - a script
"""
Takes docs/tensorboard.png: TensorBoard's page on the two runs of the demo, in a real browser.

    python tools/screenshot.py              # runs the demo first
    python tools/screenshot.py runs/demo    # a demo that has run
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import ViewportSize

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "tensorboard.png"
SIZE: ViewportSize = {"width": 1400, "height": 930}
CARDS = 5
READY_S = 60.0


def main(folder: Path | None) -> None:
    """Take the picture."""
    with tempfile.TemporaryDirectory() as scratch:
        if folder is None:
            command = [sys.executable, "-m", "trackperf", "demo", "--dir", scratch]
            subprocess.run(command, check=True)  # noqa: S603 - our own program
            folder = Path(scratch) / "demo"
        with serving(folder) as url:
            take(url, PICTURE, profile=Path(scratch) / "profile")
    print(f"{PICTURE}: {PICTURE.stat().st_size // 1024} KiB")  # noqa: T201 - a script's result


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder of runs on loopback; give the address once all of them are there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
    server = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)  # noqa: S603 - see above
    try:
        url, wanted = f"http://127.0.0.1:{port}", {file.parent.name for file in folder.rglob("*tfevents*")}
        until = time.monotonic() + READY_S
        while not wanted <= runs_at(url):
            if time.monotonic() > until or server.poll() is not None:
                raise SystemExit(f"TensorBoard does not show the runs of {folder}")
            time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait()


def runs_at(url: str) -> set[str]:
    """Return the runs whose series a server has loaded."""
    address = f"{url}/data/plugin/scalars/tags"
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - loopback
        return {name for name, tags in json.load(answer).items() if "perf_time/wall_s" in tags}
    return set()


def take(url: str, picture: Path, *, profile: Path) -> None:
    """Write a picture of the Time Series page with the section of the five numbers."""
    sys.path.insert(0, str(ROOT / "tests"))
    from chromium import ARGUMENTS, executable  # noqa: PLC0415 - lies with the tests
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only here

    browser = executable()
    if browser is None:
        raise SystemExit("no Chromium: `make browser` installs one where it may")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path=browser, headless=True, args=ARGUMENTS, viewport=SIZE
        )
        page = context.new_page()
        page.goto(f"{url}/?smoothing=0#timeseries")
        page.locator("card-view").nth(CARDS - 1).wait_for()
        page.get_by_text("Ignore outliers in chart scaling").click()
        page.get_by_text("Enable step selection and data table").click()
        page.get_by_role("button", name="Settings").first.click()
        # The charts draw themselves anew at their new width, and nothing tells when they are done.
        page.wait_for_timeout(3000)
        picture.parent.mkdir(exist_ok=True)
        page.screenshot(path=picture)
        context.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take docs/tensorboard.png.")
    parser.add_argument("folder", nargs="?", type=Path, help="folder of a demo that has run")
    main(parser.parse_args().folder)
