"""The twelve levels by number; a seed draws the numbers of one."""

from collections.abc import Callable
from random import Random

from tiledask.errors import ConfigError
from tiledask.lab.idle_ladder.gap_kinds import which_gap_is_which
from tiledask.lab.idle_ladder.level import IdleLevel
from tiledask.lab.idle_ladder.one_batch import (
    fill_the_timetable,
    from_few_to_many,
    idle_in_all,
    idle_with_transfers,
    uneven_stages,
    who_waits_for_whom,
)
from tiledask.lab.idle_ladder.pipelines import (
    best_with_overhead,
    fewest_for_a_share,
    one_slow_stage,
    triangles,
    which_microbatches,
)
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["LEVELS", "idle_level"]

LEVELS: dict[int, tuple[str, Callable[[dict, Random], IdleLevel]]] = {
    1: ("Fill the timetable", fill_the_timetable),
    2: ("Who waits for whom", who_waits_for_whom),
    3: ("The idle time of uneven stages", uneven_stages),
    4: ("Idle time with transfers", idle_with_transfers),
    5: ("All idle time together", idle_in_all),
    6: ("More workers, nothing faster", from_few_to_many),
    7: ("Two triangles", triangles),
    8: ("Micro-batches for a target", fewest_for_a_share),
    9: ("The best number of micro-batches", best_with_overhead),
    10: ("One slow stage", one_slow_stage),
    11: ("Which gap is which", which_gap_is_which),
    12: ("Backwards from utilisation", which_microbatches),
}
"""Level -> its title, and what draws its numbers."""


def idle_level(level: int, seed: int = 0) -> IdleLevel:
    """A level of the idle-time ladder, 1 to 12, with the numbers of ``seed``.

    ConfigError for another level. Equal seeds give equal numbers on every machine.

    >>> task = idle_level(3, seed=7)
    >>> task.check("9 s").reason[:43]
    'Not an answer: 3 numbers are asked for, bet'
    """
    if not is_whole(level) or level not in LEVELS:
        raise ConfigError(f"the idle-time ladder has levels 1 to {len(LEVELS)}, got {level!r}")
    seed = whole_number("seed", seed, 0, 10**9 - 1)
    title, draw = LEVELS[level]
    head = {"name": f"idle-{level}", "level": level, "seed": seed, "title": title}
    return draw(head, Random(f"{level}/{seed}"))
