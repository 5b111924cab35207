"""Which section of which walkthrough teaches a question: by its heading.

## The best one, by looking at all (question 34)
"""

import json
import re
from functools import cache
from typing import NamedTuple

from tiledask.plan.data import shipped

__all__ = ["Taught", "taught"]

_MARKED = re.compile(r"^#+ +(.+) \(questions? (\d+(?:, \d+)*)\)$", re.MULTILINE)


class Taught(NamedTuple):
    """A section of a walkthrough."""

    notebook: str
    """Its file, in nbs/."""
    section: str
    """Its heading, without the numbers of questions."""

    def __str__(self) -> str:
        return f"nbs/{self.notebook}: {self.section}"


def taught(number: int) -> tuple[Taught, ...]:
    """The sections that teach question ``number``, in the order of the walkthroughs.

    >>> [str(each) for each in taught(34)]
    ['nbs/14_cut_24_layers.ipynb: The best one, by looking at all']
    """
    return tuple(where for numbers, where in _sections() if str(number) in numbers)


@cache
def _sections() -> list[tuple[list[str], Taught]]:
    """All that teach any, with the numbers of the questions."""
    return [
        (numbers.split(", "), Taught(path.name, heading))
        for path in sorted(shipped("nbs").glob("[0-9]*.ipynb"))
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
        for heading, numbers in _MARKED.findall("".join(cell["source"]))
    ]
