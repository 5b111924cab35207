"""Questions about one large product: blocks over workers, tiles within, layers split.

two_levels    1
too_large     2
memory_bottleneck  3
two_methods   4
  split_linear  the five ways to split a linear layer, as rank programs
"""

from tiledask.lab.questions.products import (
    memory_bottleneck,
    too_large,
    two_levels,
    two_methods,
)
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    two_levels.QUESTION,
    too_large.QUESTION,
    memory_bottleneck.QUESTION,
    two_methods.QUESTION,
)
