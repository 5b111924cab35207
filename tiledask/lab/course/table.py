"""All questions by number, out of the files that answer them."""

from tiledask.lab.course import (  # noqa: F401
    fitting,
    layers,
    layouts,
    pipelines,
    products,
    tiles,
)
from tiledask.lab.course.question import QUESTIONS as FOUND
from tiledask.lab.course.question import Question

__all__ = ["QUESTIONS"]

QUESTIONS: dict[int, Question] = dict(sorted(FOUND.items()))
"""Number -> question, in order."""
