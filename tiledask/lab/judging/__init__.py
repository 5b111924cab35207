"""A task and its judge: a question, what an answer to it is worth, hints, a drawing.

task      JudgedTask: what a puzzle, a level of the ladder and an exercise have in common
result    Result: targets met and missed, each beside the best there is; stars
placed    PlacedAnswer: cuts between layers, moved by mouse or keyboard (cuts.js)
"""

from tiledask.lab.judging.result import Result, Target, UnsolvedError
from tiledask.lab.judging.task import Hint, JudgedTask

__all__ = ["Hint", "JudgedTask", "Result", "Target", "UnsolvedError"]
