"""Headless Chromium for looking at pages: where it is, how it starts, and what it asked for."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ARGUMENTS", "Browser", "executable"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@dataclass
class Browser:
    """A page in headless Chromium, and every request that it made."""

    page: Any
    requests: list[str] = field(default_factory=list)

    def strangers(self) -> list[str]:
        """Return requests that went to another machine."""
        local = ("http://127.0.0.1", "data:", "blob:", "about:", "chrome:")
        return [url for url in self.requests if not url.startswith(local)]


def executable() -> str | None:
    """Return the path of a Chromium, None when there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or next((path for path in MAC if Path(path).exists()), None)
