"""A task and its judge: a question, what an answer to it is worth, hints, a drawing.

task      JudgedTask: a puzzle, which comes from a file, or an Exercise, written in Python
result    Result: targets met and missed, each beside the best there is; stars
"""

from tiledask.lab.judging.result import Result, Target, UnsolvedError
from tiledask.lab.judging.task import Exercise, Hint, JudgedTask

__all__ = ["Exercise", "Hint", "JudgedTask", "Result", "Target", "UnsolvedError"]
