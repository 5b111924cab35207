"""Questions about layers in a row on devices: where to cut them, and who waits how long.

placement     34, 36
pipelining    11, 12
process_flow  31, 32, 35
idle_time     33, 38, 39
  one_batch     the order of one batch, its run, and who waits meanwhile
diagnosis     37
"""

from tiledask.lab.questions.pipelines import (
    diagnosis,
    idle_time,
    pipelining,
    placement,
    process_flow,
)
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    *(placement.QUESTION_34, placement.QUESTION_36),
    *(pipelining.QUESTION_12, pipelining.QUESTION_11),
    *(*process_flow.QUESTIONS, process_flow.QUESTION),
    *idle_time.QUESTIONS,
    diagnosis.QUESTION,
)
