"""The idle-time ladder: twelve levels of one question, how long does who wait, with fresh numbers.

    task = idle_level(3, seed=7)    # a JudgedTask
    task.check("21 s, 15 s, 24 s")  # stars; who is off is told where, never what is right
    task.hint()                     # three, from a nudge to nearly the way
    task.working()                  # the arithmetic, line by line

The simulator says what is right; the working is worked out without it, and a test holds that both
agree.

ladder                              the twelve levels; a seed draws the numbers of one
timetables, waiting                 levels 1 and 2: who does what, who waits for whom
layerwise, totals                   levels 3 and 4, 5 and 6: one batch, idle time in seconds
microbatches, choosing              levels 7 and 12, 8 and 9: how many micro-batches
slow_stage, gap_kinds               levels 10 and 11: what goes wrong in a pipeline
level                               IdleLevel: what a level says, its working
sheets                              what is filled in: who reads and judges it
figures, arithmetic                 drawings; sums in words
"""

from tiledask.lab.idle_ladder.ladder import idle_level
from tiledask.lab.idle_ladder.level import IdleLevel, LevelWorking

__all__ = ["IdleLevel", "LevelWorking", "idle_level"]
