"""The page that shows how to write a sink of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trackperf.testing import check_sink

PAGE = Path(__file__).parents[1] / "adapters" / "README.md"


def test_its_sink_passes_the_contract() -> None:
    """The sink on the page is short, and passes the contract kit as it stands there."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert len(code.splitlines()) <= 30
    namespace: dict[str, Any] = {}
    exec(compile(code, "adapters/README.md", "exec"), namespace)
    check_sink(namespace["CsvSink"])
