"""All questions by number, out of the rooms that answer them."""

from tiledask.errors import ConfigError
from tiledask.lab.questions import layers, pipelines, planning, products
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS", "question"]

QUESTIONS: dict[int, CourseQuestion] = {
    each.number: each
    for each in sorted(
        (*products.QUESTIONS, *layers.QUESTIONS, *pipelines.QUESTIONS, *planning.QUESTIONS),
        key=lambda each: each.number,
    )
}
"""Number -> question, in order."""


def question(number: int) -> CourseQuestion:
    """The question with that number; ConfigError if there is none."""
    if number not in QUESTIONS:
        raise ConfigError(
            f"there is no question {number}; there are {min(QUESTIONS)} to {max(QUESTIONS)}: "
            f"`tiledask ask` lists them"
        )
    return QUESTIONS[number]
