"""Levels 3 and 4: one batch at a time; how long each worker waits for the others."""

from collections.abc import Sequence
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, plus, total
from tiledask.lab.idle_ladder.level import IdleLevel
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.lab.idle_ladder.spec import Run, Worked, gaps_of
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["idle_with_transfers", "one_batch", "uneven_stages"]


def one_batch(
    forward: Sequence[float], backward: Sequence[float], latency: Sequence[float] | float = 0.0
) -> Timeline:
    """The run of one batch, a stage on each worker."""
    return simulate(schedule("naive", len(forward), 1), forward, backward, latency=latency)


def _idle_of_each(
    run: Timeline,
    forward: Sequence[int],
    backward: Sequence[int],
    ends: Sequence[tuple[int, str]],
) -> NumberSheet:
    """The numbers asked for: every worker's idle time. ``ends``: (where the batch ends by a common
    mistake, which)."""
    works = [f + b for f, b in zip(forward, backward, strict=True)]
    asked = []
    for w, right in enumerate(run.idle_per_device):
        mistakes = [
            (works[w], f"that is how long worker {w + 1} works"),
            (run.makespan, "that is how long the whole batch takes"),
            *((end - works[w], why) for end, why in ends),
            (sum(forward) - forward[w], "that is its wait while the batch goes forward"),
            (sum(backward) - backward[w], "that is its wait while the batch goes back"),
        ]
        told = tuple(each for each in mistakes if each[0] != right)
        asked.append(Asked(f"worker {w + 1}'s idle time", right, worker=w, mistakes=told))
    return NumberSheet(tuple(asked))


def _each_worker(run: Timeline, works: Sequence[Sequence[int]], end: int) -> list[Worked]:
    """A line per worker: what it works, and what is left of the whole."""
    return [
        Worked(
            f"Worker {w + 1} works {total(mine)} s and waits {end} - {sum(mine)} = "
            f"{end - sum(mine)} s",
            tuple(gaps_of(run, w)),
        )
        for w, mine in enumerate(works)
    ]


def _stages(rng: Random) -> tuple[int, list[int]]:
    """(workers, the forward seconds of each, not all alike)."""
    p = rng.choice((3, 4))
    while True:
        forward = [rng.randint(1, 7) for _ in range(p)]
        if len(set(forward)) > 1:
            return p, forward


def uneven_stages(head: dict, rng: Random) -> IdleLevel:
    """The idle time of each worker with stages such as 3, 5 and 2."""
    p, forward = _stages(rng)
    backward = [2 * f for f in forward]
    run = one_batch(forward, backward)
    end = sum(forward) + sum(backward)
    works = list(zip(forward, backward, strict=True))
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice "
            f"that back. One batch goes forward through all, then back; transfers take nothing. "
            f"How long is each worker idle, from the start of the batch to its end?"
        ),
        form=f"the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3",
        hints=(
            "Only one works at a time: whoever works, all the others wait.",
            "So a worker waits for everything that is not its own work. How long does the whole "
            "batch take, forward and back?",
            f"The batch takes {plus(forward)} s forward and twice that back. Take away what a "
            f"worker does itself: worker 1 works {forward[0]} + {backward[0]} s.",
        ),
        sheet=_idle_of_each(run, forward, backward, ()),
        runs=(Run(f"{p} workers, one batch", run),),
        lines=(
            Worked(f"The batch takes {total(forward)} s forward and {total(backward)} s back"),
            Worked(
                f"One works at a time, so it ends after {sum(forward)} + {sum(backward)} = {end} s"
            ),
            *_each_worker(run, works, end),
            Worked("Answer: " + ", ".join(f"{end - f - b} s" for f, b in works)),
        ),
    )


def idle_with_transfers(head: dict, rng: Random) -> IdleLevel:
    """The same, with transfers that take time from one worker to the next."""
    p, forward = _stages(rng)
    backward = [2 * f for f in forward]
    sends = [rng.randint(1, 4) for _ in range(p - 1)]
    run = one_batch(forward, backward, sends)
    compute, way = sum(forward) + sum(backward), sum(sends)
    end = compute + 2 * way
    works = list(zip(forward, backward, strict=True))
    ways = listed([f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)])
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice "
            f"that back. One batch goes forward through all, then back. A transfer takes {ways}, "
            f"and as long on the way back. How long is each worker idle, from the start of the "
            f"batch to its end? Waiting for a transfer is idle time too."
        ),
        form=f"the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3",
        hints=(
            "During a transfer nobody works at all.",
            "First the end of the batch: all the work, and all the ways, there and back. Then take "
            "away what each worker does itself.",
            f"Without transfers the batch takes {plus(forward)} s forward and twice that back. The "
            f"ways add {plus(sends)} s, and once more on the way back.",
        ),
        sheet=_idle_of_each(
            run,
            forward,
            backward,
            (
                (compute, "that is without transfers"),
                (compute + way, "transfers are paid twice: on the way there, and on the way back"),
            ),
        ),
        runs=(Run(f"{p} workers, one batch, with transfers", run),),
        lines=(
            Worked(
                f"All the work: {sum(forward)} s forward + {sum(backward)} s back = {compute} s"
            ),
            Worked(f"All the ways, there and back: 2 x ({plus(sends)}) = {2 * way} s"),
            Worked(f"The batch ends after {compute} + {2 * way} = {end} s"),
            *_each_worker(run, works, end),
            Worked("Answer: " + ", ".join(f"{end - f - b} s" for f, b in works)),
        ),
    )
