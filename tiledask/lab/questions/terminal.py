"""What `tiledask ask` reads and prints: inputs as typed, an answer, or all questions by number."""

import re
import textwrap
from typing import Any

from rich.console import Console

from tiledask.errors import ConfigError, short
from tiledask.lab.files import save_figure
from tiledask.lab.questions.answer import Answer
from tiledask.lab.questions.ask import answered, look_up
from tiledask.lab.questions.table import QUESTIONS
from tiledask.lab.table import say

__all__ = ["asked", "list_all", "read_inputs"]


def read_inputs(words: list[str]) -> dict[str, str]:
    """Inputs behind --set, each a word or several between commas; those of a list keep theirs.

    >>> read_inputs(["stages=8,microbatches=63", "forward=1,2,3"])
    {'stages': '8', 'microbatches': '63', 'forward': '1,2,3'}
    """
    found = {}
    for word in (part for each in words for part in re.split(r",\s*(?=[a-z_]+\s*=)", each)):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"--set takes inputs and values, as in --set layers=12 devices=3; got {short(word)}"
            )
        found[name] = value
    return found


def asked(words: str, inputs: dict[str, str], figure: str | None, run: bool) -> Answer:
    """The answer; its figure is written before the run, for not every one has it."""
    taken = look_up(words, inputs)
    if figure:
        save_figure(answered(*taken, run=False).figure(), figure)
    return answered(*taken, run=run)


def list_all(console: Console) -> tuple[int, dict[str, Any]]:
    """A line for each question; (0, the same for JSON)."""
    say(console, "tiledask ask 34, or in words: tiledask ask 24 layers on 4 devices")
    for number, each in QUESTIONS.items():
        title = each.words(each.title)
        for line in textwrap.wrap(f"{number:4}  {title}", console.width, subsequent_indent=" " * 6):
            say(console, line)
    return 0, {"questions": {str(number): _facts(number) for number in QUESTIONS}}


def _facts(number: int) -> dict[str, Any]:
    each = QUESTIONS[number]
    inputs = {name: {"default": i.default, "meaning": i.meaning} for name, i in each.inputs.items()}
    return {"title": each.words(each.title), "asked": each.words(each.asked), "inputs": inputs}
