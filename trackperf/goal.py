"""The value at which a training has done its job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal, cast

from trackperf.errors import ConfigError

__all__ = ["Goal"]

_FORM: Final = re.compile(r"\s*([^<>=!]+?)\s*(>=|<=|>|<)\s*([^<>=!\s]+)\s*")
_HELP: Final = (
    "A goal is the name of an observed value, one of >=, >, <=, <, and a number, "
    "as in 'val/accuracy >= 0.97'."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A condition on one observed value, such as `val/accuracy >= 0.97`."""

    name: str
    """Name that the value is observed under."""

    op: Literal[">=", ">", "<=", "<"]
    """How it is compared."""

    value: float
    """What it is compared with."""

    @classmethod
    def parse(cls, text: str) -> Goal:
        """
        Return the goal that a text states.

        Raises:
            ConfigError: the text does not state one.
        """
        if not isinstance(text, str):
            raise ConfigError(f"goal is not a text (got {text!r}). {_HELP}")
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError(f"goal {text!r} is not understood. {_HELP}")
        name, op, limit = match.groups()
        if _number(limit) is None:
            swapped = _number(name) is not None
            what = "the name comes first" if swapped else f"{limit!r} is not a finite number"
            raise ConfigError(f"goal {text!r} is not understood: {what}. {_HELP}")
        return cls(name=name, op=cast("Literal['>=', '>', '<=', '<']", op), value=float(limit))

    def reached(self, value: float) -> bool:
        """Return whether a value fulfils the goal; not a number never does."""
        if self.op == ">=":
            return value >= self.value
        if self.op == ">":
            return value > self.value
        return value <= self.value if self.op == "<=" else value < self.value

    def __str__(self) -> str:
        return f"{self.name} {self.op} {self.value:g}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
