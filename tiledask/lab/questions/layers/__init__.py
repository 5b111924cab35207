"""Questions about networks split within their layers: convolutions, data parallelism."""

from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = ()
