"""How a question of one voice is asked: by a command, td.ask, a walkthrough, or a call."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tiledask as td

NOTEBOOKS = Path(__file__).parents[2] / "nbs"
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "s": 1, "ms": 1e-3, "%": 0.01}


class Voice:
    """The ways to ask that need more than a call."""

    def __init__(self, answers: Callable[[str], Any]):
        self._answers = answers

    def typed(self, command: str) -> Any:
        """The JSON of a command, which was run without --json too."""
        return self._answers(command)[1]

    def shown(self, notebook: int, question: str) -> list[float]:
        """What a walkthrough shows beside a prediction: by formula, simulated, measured."""
        (line,) = [each for each in _lines(notebook) if each.startswith(f"{question} | ")]
        found = re.findall(r"(?:formula|simulated|measured) ([\d.,]+)(?: (\S+))?", line)
        return [float(n.replace(",", "")) * UNITS.get(unit, 1) for n, unit in found]


def _lines(notebook: int) -> list[str]:
    (path,) = NOTEBOOKS.glob(f"{notebook:02}_*.ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    outputs = [each for cell in cells for each in cell.get("outputs", ())]
    texts = ["".join(o.get("text", o.get("data", {}).get("text/plain", ""))) for o in outputs]
    return "\n".join(texts).splitlines()


Way = Callable[[Voice], Any]


@dataclass(frozen=True)
class Row:
    """A question, its right value, and how it can be asked.

    ``else_``: of a way that counts something else what differs, its right value, and how.
    """

    asks: str
    right: Any
    ways: Mapping[str, Way]
    else_: Mapping[str, tuple[str, Any, Way]] = field(default_factory=dict)


def ask(number: int, name: str, *more: Any, **inputs: Any) -> Way:
    """A value of a question's answer, or something in it."""

    def way(voice: Voice) -> Any:
        found = td.ask(number, run=False, **inputs).values[name]
        for each in more:
            found = found[each]
        return found

    return way


def typed(command: str, *keys: Any) -> Way:
    """Something in the JSON of a command."""

    def way(voice: Voice) -> Any:
        found = voice.typed(command)
        for key in keys:
            found = found[key]
        return found

    return way


def shown(notebook: int, question: str) -> Way:
    return lambda voice: voice.shown(notebook, question)


def said(value: Callable[[], Any]) -> Way:
    return lambda voice: value()


def held(model: str, layout: td.Layout, recipe: str, *tensors: str, **more: Any) -> Way:
    """Bytes of some tensors on the first device, by the ledger of td.estimate_memory."""

    def way(voice: Voice) -> int:
        ledger = td.estimate_memory(model, layout, recipe, **more).ledger.by_tensor(0)
        return sum(ledger[name] for name in tensors)

    return way


def same(found: Any, right: Any, off: float) -> bool:
    if isinstance(found, list | tuple) and isinstance(right, list | tuple):
        return len(found) == len(right) and all(map(same, found, right, [off] * len(right)))
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (found, right)):
        return type(found) is type(right) and found == right
    return found == pytest.approx(right, rel=off, abs=1e-12)
