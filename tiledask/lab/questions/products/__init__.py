"""Questions about one large product: blocks over workers, tiles within, layers split.

two_levels         1   both levels counted, each changed under the other
too_large          2   a layer larger than a device, under a cap
memory_bottleneck  3   26 GB on GPUs of 24 GB
two_methods        4   Y = X A, A too large; split_linear.py has the programs
ffn                5   columns, activation, rows
which_level        6   tiles changed, then blocks
decompositions     7   1-D to 3-D, one family
carried_tile       8   tuned on one GPU, run on another
goals              9   one level changed at a time
critique_product  10   any plan judged, and run as advised
"""

from tiledask.lab.questions.products import (
    carried_tile,
    critique_product,
    decompositions,
    ffn,
    goals,
    memory_bottleneck,
    too_large,
    two_levels,
    two_methods,
    which_level,
)
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

_MODULES = (
    two_levels,
    too_large,
    memory_bottleneck,
    two_methods,
    ffn,
    goals,
    which_level,
    decompositions,
    carried_tile,
    critique_product,
)
QUESTIONS: tuple[CourseQuestion, ...] = tuple(module.QUESTION for module in _MODULES)
