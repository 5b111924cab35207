"""Questions about what fits, which layout to choose, and what went wrong with a training.

fitting   14, 15, 18    copies or slices, and on how many GPUs
layouts   16, 19, 23    every layout: of a node, of other GPUs, of two clusters
on_call   17            from symptoms to causes
scaling   20, 22        more GPUs, and how much faster
repairs   21, 24, 25    runs that fail or idle
"""

from tiledask.lab.questions.planning import fitting, layouts, on_call, repairs, scaling
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    *(fitting.QUESTION_14, fitting.QUESTION_15, fitting.QUESTION_18),
    *(layouts.QUESTION_16, layouts.QUESTION_19, layouts.QUESTION_23),
    on_call.QUESTION,
    *(scaling.QUESTION_20, scaling.QUESTION_22),
    *(repairs.QUESTION_21, repairs.QUESTION_24, repairs.QUESTION_25),
)
