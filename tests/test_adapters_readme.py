"""The page that shows how to write a sink of one's own."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from trackperf.errors import ReadError
from trackperf.testing import check_sink

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "adapters" / "README.md").read_text()


def blocks(language: str = "python") -> list[str]:
    """Return the page's pieces of code, from top to bottom."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def plugin() -> str:
    """Return the module that the page builds up: the sink, then its reader."""
    return "\n".join(block for block in blocks() if re.search(r"^class ", block, re.MULTILINE))


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """Return what the module defines."""
    namespace: dict[str, Any] = {}
    exec(compile(plugin(), "adapters/README.md", "exec"), namespace)
    return namespace


def test_its_sink_is_short_and_the_examples_own() -> None:
    """The page and the example show one sink, of some thirty statements."""
    sink = blocks()[0]
    assert sink[sink.index("FILE = ") :] in (ROOT / "examples" / "custom_sink.py").read_text()
    (found,) = [node for node in ast.parse(sink).body if isinstance(node, ast.ClassDef)]
    statements = [
        node
        for node in ast.walk(found)
        if isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert len(statements) <= 30


@pytest.mark.parametrize("with_reader", [False, True], ids=["alone", "with its reader"])
def test_its_tests_pass_as_they_stand(shown: dict[str, Any], with_reader: bool) -> None:
    """Both tests on the page pass: the contract, and every point read back by its reader."""
    tests = [block for block in blocks() if "def test_contract" in block]
    namespace = {**shown, "check_sink": check_sink}
    exec(compile(tests[with_reader], "adapters/README.md", "exec"), namespace)
    namespace["test_contract"]()


def test_its_reader_says_what_is_not_there(shown: dict[str, Any], tmp_path: Path) -> None:
    """What is no such file has no runs, and a run that is not there is an error with its address."""
    reader = shown["SqliteReader"]()
    assert reader.find(str(tmp_path)) == []
    assert reader.find(__file__) == []
    with pytest.raises(ReadError, match="no run at 'nowhere#a'"):
        reader.read("nowhere#a")
