"""Questions about what fits, which layout to choose, and what went wrong with a training."""

from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = ()
