"""Which section of which walkthrough teaches a question: by its heading.

## The best one, by looking at all (question 34)

python -m tiledask.lab.course.index                  writes nbs/questions.md
"""

import json
import re
from functools import cache
from typing import NamedTuple

from tiledask.files import atomic_write
from tiledask.lab.course.table import QUESTIONS
from tiledask.plan.data import shipped

__all__ = ["PAGE", "Taught", "page", "taught"]

PAGE = "questions.md"
HEAD = """# The questions, by number

Made from the walkthroughs' headings by `python -m tiledask.lab.course.index`. Each \
question is also worked out and run by `tiledask ask NUMBER`.

| | question | taught in |
|---|---|---|
"""
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


def page() -> str:
    """The index as Markdown: a line for each question, with links to the walkthroughs."""
    lines = []
    for number, each in QUESTIONS.items():
        title = each.words(each.title).replace("|", "\\|")
        links = "; ".join(f"[{w.notebook[:-6]}]({w.notebook}), {w.section}" for w in taught(number))
        lines.append(f"| {number} | {title} | {links} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    atomic_write(shipped("nbs") / PAGE, page().encode())
