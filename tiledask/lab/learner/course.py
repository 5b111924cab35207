"""What a walkthrough says of itself: how long it takes, what it asks."""

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEEPER", "Walkthrough", "course"]

_WORDS = 60
"""Words that a student reads in a minute where each number is worked out along."""
_EXERCISE, _PREDICTION = 5, 1
"""Minutes that one takes."""
DEEPER = "## Deeper: "
"""How a section begins that nothing later needs: it is read by those who want to, and not timed."""


@dataclass(frozen=True)
class Walkthrough:
    """One notebook of the course, read from its file."""

    name: str
    """Of the file, without its ending: 03_split_one_product."""
    minutes: int
    """To read, predict and do the exercises, without the sections that go deeper."""
    asked: int
    """Predictions."""

    @classmethod
    def read(cls, path: Path) -> "Walkthrough":
        cells = json.loads(path.read_text("utf-8"))["cells"]
        text = [
            ("".join(c["source"]), c["cell_type"], c["metadata"].get("tags", ())) for c in cells
        ]
        asked, minutes, deeper = 0, 0.0, False
        for source, kind, tags in text:
            if kind == "markdown" and source.startswith("## "):
                deeper = source.startswith(DEEPER)
            predicts = kind == "code" and "td.predict(" in source
            asked += predicts
            if not deeper:
                minutes += _PREDICTION * predicts + _EXERCISE * ("task" in tags)
                minutes += len(source.split()) / _WORDS if kind == "markdown" else 0.0
        return cls(path.stem, max(1, round(minutes)), asked)


def course(folder: Path) -> list[Walkthrough]:
    """The walkthroughs in ``folder``, in their order."""
    return [Walkthrough.read(path) for path in sorted(folder.glob("[0-9]*.ipynb"))]
