"""The idle-time ladder: twelve levels of one question, how long does who wait, with fresh numbers.

    task = idle_level(3, seed=7)    # a JudgedTask
    task.check("21 s, 15 s, 24 s")  # stars; who is off is told where, never what is right
    task.hint()                     # three, from a nudge to nearly the way
    task.working()                  # the arithmetic, line by line

The simulator says what is right; the working is worked out without it, and a test holds that both
agree. Its texts and what is asked for are in data/ladder.json.

one_batch      levels 1 to 6: who does what, who waits, idle time in seconds
micro_batches  levels 7 to 12: how many micro-batches; a slow stage; which gap is which
fields         what is filled in, who judges it
"""

from collections.abc import Callable
from functools import partial
from random import Random

from tiledask.errors import ConfigError
from tiledask.lab.tasks.ladder import micro_batches, one_batch
from tiledask.lab.tasks.ladder.fields import Names, level_of
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["LEVELS", "idle_level"]

LEVELS: tuple[Callable[[Random, int], Names], ...] = (
    one_batch.fill_the_timetable,
    one_batch.who_waits_for_whom,
    partial(one_batch.idle_of_each, transfers=False),
    partial(one_batch.idle_of_each, transfers=True),
    one_batch.idle_in_all,
    one_batch.from_few_to_many,
    micro_batches.triangles,
    micro_batches.fewest_for_a_share,
    micro_batches.best_with_overhead,
    micro_batches.one_slow_stage,
    micro_batches.which_gap_is_which,
    micro_batches.which_microbatches,
)
"""What draws the numbers of each level, 1 first, and does its sums."""


def idle_level(level: int, seed: int = 0) -> JudgedTask:
    """A level of the idle-time ladder, 1 to 12, with the numbers of ``seed``.

    ConfigError for another level. Equal seeds give equal numbers on every machine.

    >>> idle_level(3, seed=7).check("9 s").reason[:43]
    'Not an answer: 3 are asked for: the seconds'
    """
    if not is_whole(level, 1) or level > len(LEVELS):
        raise ConfigError(f"the idle-time ladder has levels 1 to {len(LEVELS)}, got {level!r}")
    seed = whole_number("seed", seed, 0, 10**9 - 1)
    return level_of(level, seed, LEVELS[level - 1](Random(f"{level}/{seed}"), seed))
