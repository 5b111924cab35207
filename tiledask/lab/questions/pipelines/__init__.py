"""Questions about layers in a row on devices: where to cut them, and who waits how long.

layers_on_devices  34
hybrids            11
pipelining         12
process_flow       31, 35
decoder            32
idle_time          33, 38, 39
  one_batch          the order of one batch, its run, and who waits meanwhile
round_robin        36
diagnosis          37
"""

from tiledask.lab.questions.pipelines import (
    decoder,
    diagnosis,
    hybrids,
    idle_time,
    layers_on_devices,
    pipelining,
    process_flow,
    round_robin,
)
from tiledask.lab.questions.question import CourseQuestion

__all__ = ["QUESTIONS"]

QUESTIONS: tuple[CourseQuestion, ...] = (
    layers_on_devices.QUESTION,
    hybrids.QUESTION,
    pipelining.QUESTION,
    *process_flow.QUESTIONS,
    decoder.QUESTION,
    *idle_time.QUESTIONS,
    round_robin.QUESTION,
    diagnosis.QUESTION,
)
