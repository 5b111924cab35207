"""The idle-time ladder: twelve levels of one question, how long does who wait, with fresh numbers.

    task = idle_level(3, seed=7)    # a JudgedTask
    task.check("21 s, 15 s, 24 s")  # stars; who is off is told where, never what is right
    task.hint()                     # three, from a nudge to nearly the way
    task.working()                  # the arithmetic, line by line

The simulator says what is right; the working is worked out without it, and a test holds that both
agree.

ladder                 the twelve levels; a seed draws the numbers of one
one_batch              levels 1 to 6: who does what, who waits, idle time in seconds
pipelines              levels 7 to 10 and 12: how many micro-batches; a slow stage
gap_kinds              level 11: which gap is which
level                  IdleLevel: what a level says, its working
sheets                 what is filled in: who reads and judges it
figures, arithmetic    drawings; sums in words
"""

from tiledask.lab.idle_ladder.ladder import idle_level
from tiledask.lab.idle_ladder.level import IdleLevel, LevelWorking

__all__ = ["IdleLevel", "LevelWorking", "idle_level"]
