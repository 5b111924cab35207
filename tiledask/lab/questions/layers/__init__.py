"""Questions about networks in parts: layers on devices in a row, layers split, copies.

in_parts      13, 29
network       26
layerwise     27
replicas      28
split_layers  30
"""

from tiledask.lab.questions.layers import (
    in_parts,
    layerwise,
    network,
    replicas,
    split_layers,
)
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    *in_parts.QUESTIONS,
    network.QUESTION,
    layerwise.QUESTION,
    replicas.QUESTION,
    split_layers.QUESTION,
)
