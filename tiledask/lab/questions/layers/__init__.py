"""Questions about networks in parts: layers on devices in a row, layers split, copies.

in_parts      13, 29
lenet         26, 27, 28
split_layers  30
"""

from tiledask.lab.questions.layers import in_parts, lenet, split_layers
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    *in_parts.QUESTIONS,
    *(lenet.QUESTION_26, lenet.QUESTION_27, lenet.QUESTION_28),
    split_layers.QUESTION,
)
