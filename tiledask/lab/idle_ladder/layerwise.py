"""Levels 3 and 4: one batch at a time; how long each worker waits for the others."""

from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, plus, total
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate

__all__ = ["idle_with_transfers", "uneven_stages"]


def uneven_stages(head: dict, rng: Random) -> IdleLevel:
    """The idle time of each worker with stages such as 3, 5 and 2."""
    return _idle_of_each(head, rng, transfers=False)


def idle_with_transfers(head: dict, rng: Random) -> IdleLevel:
    """The same, with transfers that take time from one worker to the next."""
    return _idle_of_each(head, rng, transfers=True)


def _idle_of_each(head: dict, rng: Random, transfers: bool) -> IdleLevel:
    p = rng.choice((3, 4))
    forward = [1] * p
    while len(set(forward)) == 1:  # not all alike
        forward = [rng.randint(1, 7) for _ in range(p)]
    sends = [rng.randint(1, 4) if transfers else 0 for _ in range(p - 1)]
    backward = [2 * f for f in forward]
    works = [f + b for f, b in zip(forward, backward, strict=True)]
    run = simulate(schedule("naive", p, 1), forward, backward, latency=sends)
    compute, way = sum(works), sum(sends)
    end = compute + 2 * way
    ways = listed([f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)])
    asked = []
    for w, right in enumerate(run.idle_per_device):
        mistakes = [
            (works[w], f"that is how long worker {w + 1} works"),
            (run.makespan, "that is how long the whole batch takes"),
            (compute - works[w], "that is without transfers"),
            (compute + way - works[w], "transfers are paid twice: there, and on the way back"),
            (sum(forward) - forward[w], "that is its wait while the batch goes forward"),
            (sum(backward) - backward[w], "that is its wait while the batch goes back"),
        ]
        other = tuple(each for each in mistakes if each[0] != right)
        asked.append(Asked(f"worker {w + 1}'s idle time", right, worker=w, mistakes=other))
    moves = f"A transfer takes {ways}, and as long on the way back." if transfers else ""
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice "
            f"that back. One batch goes forward through all, then back. "
            f"{moves or 'Transfers take nothing.'} How long is each worker idle, from the start of "
            f"the batch to its end?{' Waiting for a transfer is idle time too.' * transfers}"
        ),
        form=f"the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3",
        hints=(
            "Only one works at a time: whoever works, all the others wait."
            + " During a transfer nobody works at all." * transfers,
            "So a worker waits for everything that is not its own work. How long does the whole "
            f"batch take, forward and back{', with all the ways there and back' * transfers}?",
            f"The batch takes {plus(forward)} s forward and twice that back. "
            + f"The ways add {plus(sends)} s, and once more on the way back. " * transfers
            + f"Take away what a worker does itself: worker 1 works {forward[0]} + {backward[0]} "
            "s.",
        ),
        sheet=NumberSheet(tuple(asked)),
        runs=(Run(f"{p} workers, one batch{', with transfers' * transfers}", run),),
        lines=(
            f"The batch takes {total(forward)} s forward and {total(backward)} s back",
            *([f"All the ways, there and back: 2 x ({plus(sends)}) = {2 * way} s"] * transfers),
            f"One works at a time, so it ends after {sum(forward)} + {sum(backward)}"
            + f" + {2 * way}" * transfers
            + f" = {end} s",
            *(
                f"Worker {w} works {f} + {b} = {f + b} s and waits {end} - {f + b} = "
                f"{end - f - b} s"
                for w, (f, b) in enumerate(zip(forward, backward, strict=True), 1)
            ),
            "Answer: " + ", ".join(f"{end - work} s" for work in works),
        ),
    )
