"""The idle-time ladder: twelve levels of one question, how long does who wait, with fresh numbers.

    task = idle_level(3, seed=7)    # a JudgedTask
    task.check("21 s, 15 s, 24 s")  # stars; who is off is told where, never what is right
    task.hint()                     # three, from a nudge to nearly the way
    task.working()                  # once solved: the arithmetic, and the gaps of each line

The simulator says what is right; the working is worked out without it, and a test holds that both
agree.

ladder                                       the twelve levels; a seed draws the numbers of one
timetables, waiting, layerwise               levels 1, 2, 3 to 6: one batch at a time
microbatches, choosing, uneven               levels 7 and 12, 8 and 9, 10 and 11: micro-batches
level                                        IdleLevel, its runs, its working
timetable, numbers, names                    sheets to fill in: who reads and judges them
figures, arithmetic, terminal                drawings; sums in words; the words of a terminal
"""

from tiledask.lab.idle_ladder.ladder import idle_level
from tiledask.lab.idle_ladder.level import IdleLevel, Working

__all__ = ["IdleLevel", "Working", "idle_level"]
