"""Questions about one large product: blocks over workers, tiles within, layers split.

two_methods  4
"""

from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = ()
