"""The README's table of series, made from the catalogue: `python tests/readme_table.py` prints it."""

from __future__ import annotations

from trackperf.metrics import CATALOGUE


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| series | unit | what it says |", "|---|---|---|"]
    lines += [
        f"| `{metric.key}` | {metric.unit if metric.unit != '1' else ''} | {metric.meaning} |"
        for metric in CATALOGUE.values()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
