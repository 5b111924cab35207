"""Where the walkthroughs teach a question: cells tagged question-N, and the heading above them.

python -m tiledask.lab.questions.index      writes nbs/questions.md
"""

import json
import re
from functools import cache
from typing import NamedTuple

from tiledask.plan.data import shipped

__all__ = ["Taught", "taught"]

TAG = re.compile(r"question-(\d+)")


class Taught(NamedTuple):
    """A section of a walkthrough."""

    notebook: str
    """Its file, in nbs/."""
    section: str
    """Its heading."""

    def __str__(self) -> str:
        return f"nbs/{self.notebook}: {self.section}"


def taught(number: int) -> tuple[Taught, ...]:
    """The sections that teach question ``number``, in the order of the walkthroughs."""
    return tuple(where for n, where in _tagged() if n == number)


@cache
def _tagged() -> tuple[tuple[int, Taught], ...]:
    """(question, section) for every tag in the walkthroughs, in order; each pair once."""
    found: dict[tuple[int, Taught], None] = {}
    for path in sorted(shipped("nbs").glob("*.ipynb")):
        heading = ""
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown" and (title := re.match(r"#+ +(.+)", text)):
                heading = title[1]
            for tag in cell["metadata"].get("tags", ()):
                if of := TAG.fullmatch(tag):
                    found[int(of[1]), Taught(path.name, heading)] = None
    return tuple(found)
