"""Level 10: 1F1B with one slow stage, which sets the pace."""

from collections.abc import Sequence
from random import Random

from tiledask.lab.idle_ladder.arithmetic import total
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["one_slow_stage"]


def one_slow_stage(head: dict, rng: Random) -> IdleLevel:
    """The end, the idle time of the slow worker and of another."""
    p, m, F = rng.choice((3, 4)), rng.randint(4, 8), rng.choice((1, 2))
    k, slow = rng.randrange(p), F * rng.choice((2, 3))
    forward = [slow if w == k else F for w in range(p)]
    backward = [2 * f for f in forward]
    run = simulate(schedule("1f1b", p, m), forward, backward)
    # micro-batch 0 goes down and comes back while the slow worker does its forwards in advance
    behind, ahead = (p - 1 - k) * 3 * F, (p - 1 - k) * slow
    inside = max(0, behind - ahead)
    waits = sum(forward[:k]) + inside + sum(backward[:k])
    work = m * 3 * slow
    other = rng.choice([w for w in range(p) if w != k])
    end, other_work = work + waits, m * 3 * F
    middle = ()
    if p - 1 - k:
        words = f"the first backward needs {behind} s below it, and meanwhile it does {ahead} s of "
        words += (
            f"forwards: it waits {behind} - {ahead} = {inside} s"
            if inside
            else ("forwards: no wait")
        )
        middle = (f"In between, {words}",)
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, run 1F1B with {m} micro-batches. A forward takes {F} s "
            f"on each but worker {k + 1}, which takes {slow} s; a backward takes twice as long as "
            f"the forward; transfers take nothing. Give three numbers: after how many seconds all "
            f"is done, how long worker {k + 1} is idle, and how long worker {other + 1} is."
        ),
        form=f"three numbers of seconds: the end, worker {k + 1}, worker {other + 1}; for example "
        f"'50 s, 8 s, 20 s'",
        hints=(
            "The slow worker sets the pace: once it has work it hardly ever stops. The others wait "
            "for it.",
            f"Follow worker {k + 1}: it works {m} times {slow} + {2 * slow} s. Does it wait before "
            f"its first forward, and while others are busy after its last backward?",
            f"{_ends(forward, backward, k)}{_turn(p - k)}. The others wait for all that is not "
            f"their own work.",
        ),
        sheet=NumberSheet(
            (
                Asked(
                    "the end",
                    run.makespan,
                    mistakes=(
                        (work, f"that is the work of worker {k + 1} alone"),
                        ((m + p - 1) * 3 * slow, "that would be so if all were as slow"),
                        ((m + p - 1) * 3 * F, "that would be so if all were as fast"),
                    ),
                ),
                _idle_of(run, k),
                _idle_of(run, other),
            )
        ),
        runs=(Run(f"1F1B, {p} workers, {m} micro-batches", run),),
        lines=(
            f"Worker {k + 1} works {m} x ({slow} + {2 * slow}) = {work} s",
            (
                f"It waits {total(forward[:k])} s for its first forward, and after its last "
                f"backward {total(backward[:k])} s"
            ),
            *middle,
            f"The end: {work} + {waits} = {end} s",
            (
                f"Worker {other + 1} works {m} x ({F} + {2 * F}) = {other_work} s and waits "
                f"{end} - {other_work} = {end - other_work} s"
            ),
            f"Answer: {end} s, {waits} s, {end - other_work} s",
        ),
    )


def _ends(forward: Sequence[int], backward: Sequence[int], k: int) -> str:
    """For what the slow worker waits before its first forward, and after its last backward."""
    if not k:
        return "It begins at once, and nothing is to be done after its last backward"
    return (
        f"Before its first forward the others need {total(forward[:k])} s, after its last backward "
        f"{total(backward[:k])} s"
    )


def _turn(ahead: int) -> str:
    """Where it may wait in between; the last worker does not."""
    if ahead == 1:
        return ""
    return f"; in between see whether a gradient is back when its first {ahead} forwards are done"


def _idle_of(run: Timeline, worker: int) -> Asked:
    right = run.idle_per_device[worker]
    told = [(run.busy_per_device[worker], f"that is how long worker {worker + 1} works")]
    if worker + 1 < run.devices:  # counted from 0, this number is the next one's
        words = f"worker {worker + 2} is idle so long; did you count workers from 0? Here from 1"
        told.append((run.idle_per_device[worker + 1], words))
    mistakes = tuple(each for each in told if each[0] != right)
    return Asked(f"worker {worker + 1}'s idle time", right, worker=worker, mistakes=mistakes)
