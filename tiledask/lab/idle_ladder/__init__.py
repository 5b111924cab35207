"""The idle-time ladder: twelve levels of one question, how long does who wait, with fresh numbers.

    task = idle_level(3, seed=7)    # a JudgedTask
    task.check("21 s, 15 s, 24 s")  # stars; who is off is told where, never what is right
    task.hint()                     # three, from a nudge to nearly the way
    task.working()                  # the arithmetic, line by line

The simulator says what is right; the working is worked out without it, and a test holds that both
agree.

one_batch     levels 1 to 6: who does what, who waits, idle time in seconds
pipelines     levels 7 to 12: how many micro-batches; a slow stage; which gap is which
level         IdleLevel: the fields to fill in, who judges them, the working
figures       the fields drawn, and the runs
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.idle_ladder import one_batch, pipelines
from tiledask.lab.idle_ladder.level import IdleLevel
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["LEVELS", "IdleLevel", "idle_level"]

LEVELS: dict[int, tuple[str, Callable[[dict[str, Any], Random], IdleLevel]]] = {
    1: ("Fill the timetable", one_batch.fill_the_timetable),
    2: ("Who waits for whom", one_batch.who_waits_for_whom),
    3: ("The idle time of uneven stages", one_batch.idle_of_each),
    4: ("Idle time with transfers", one_batch.idle_of_each),
    5: ("All idle time together", one_batch.idle_in_all),
    6: ("More workers, nothing faster", one_batch.from_few_to_many),
    7: ("Two triangles", pipelines.triangles),
    8: ("Micro-batches for a target", pipelines.fewest_for_a_share),
    9: ("The best number of micro-batches", pipelines.best_with_overhead),
    10: ("One slow stage", pipelines.one_slow_stage),
    11: ("Which gap is which", pipelines.which_gap_is_which),
    12: ("Backwards from utilisation", pipelines.which_microbatches),
}
"""Level -> its title, and what draws its numbers."""


def idle_level(level: int, seed: int = 0) -> IdleLevel:
    """A level of the idle-time ladder, 1 to 12, with the numbers of ``seed``.

    ConfigError for another level. Equal seeds give equal numbers on every machine.

    >>> idle_level(3, seed=7).check("9 s").reason[:43]
    'Not an answer: 3 are asked for: the seconds'
    """
    if not is_whole(level) or level not in LEVELS:
        raise ConfigError(f"the idle-time ladder has levels 1 to {len(LEVELS)}, got {level!r}")
    seed = whole_number("seed", seed, 0, 10**9 - 1)
    title, draw = LEVELS[level]
    head = {"name": f"idle-{level}", "level": level, "seed": seed, "title": title}
    return draw(head, Random(f"{level}/{seed}"))
