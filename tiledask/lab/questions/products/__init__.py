"""Questions about one large product: blocks over workers, tiles within, layers split.

two_levels    1
two_methods   4
  split_linear  the five ways to split a linear layer, as rank programs
"""

from tiledask.lab.questions.products import two_levels, two_methods
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (two_levels.QUESTION, two_methods.QUESTION)
