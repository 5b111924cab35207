"""Questions about what fits, which layout to choose, and what went wrong with a training."""

from tiledask.lab.questions.planning import (
    decisions,
    eight_gpus,
    hardware,
    hybrid,
    on_call,
    one_node,
    postmortem,
    rationale,
    regression,
    scaling,
    strategy,
    two_clusters,
)
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    strategy.QUESTION,
    rationale.QUESTION,
    one_node.QUESTION,
    on_call.QUESTION,
    eight_gpus.QUESTION,
    decisions.QUESTION,
    scaling.QUESTION,
    postmortem.QUESTION,
    regression.QUESTION,
    two_clusters.QUESTION,
    hardware.QUESTION,
    hybrid.QUESTION,
)
