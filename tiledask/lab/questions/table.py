"""All questions by number, out of the files that answer them."""

from tiledask.errors import ConfigError
from tiledask.lab.questions.question import QUESTIONS as FOUND
from tiledask.lab.questions.question import Question
from tiledask.lab.questions.worked import (  # noqa: F401
    critique,
    diagnosis,
    failures,
    fitting,
    layers,
    layouts,
    networks,
    one_batch,
    pipelines,
    products,
    scaling,
    tiles,
)  # fmt: skip

__all__ = ["QUESTIONS", "find"]

QUESTIONS: dict[int, Question] = dict(sorted(FOUND.items()))
"""Number -> question, in order."""


def find(number: int) -> Question:
    """The question with that number; ConfigError if there is none."""
    if number not in QUESTIONS:
        raise ConfigError(
            f"there is no question {number}; there are {min(QUESTIONS)} to {max(QUESTIONS)}: "
            f"`tiledask ask` lists them"
        )
    return QUESTIONS[number]
