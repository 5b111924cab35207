"""When every action runs if a transfer needs both of its ends, as MPI's synchronous send and NCCL.

rendezvous   rank 0  [F0]s[F1]s          between two actions a rank sends what the first has made,
             rank 1      r[F0]...        then receives what the second uses: one after the other

paired       rank 0  [F1]s[B0]           all of these are posted at once, and the rank goes on when
             rank 1  [B0]r[F1]           all are done: the two directions do not wait in a circle

A transfer begins when both ends have come to it, and takes each of them its latency and carrying.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tiledask.errors import DeadlockError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.transfers.links import RESULT, Links

__all__ = ["meet", "work_of"]

Met = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""start, end, ready and after of a Path (longest_path.py)."""


class _Transfer(NamedTuple):
    """A result on its way from one rank to another."""

    result: int
    stage: int
    microbatch: int
    source: int
    target: int
    seconds: float

    def words(self, rank: int) -> str:
        """What ``rank`` is at, as PyTorch writes it: 0SEND_F3, and at the other end 1RECV_F3."""
        name = f"{'FB'[self.result]}{self.microbatch}"
        if rank == self.source:
            return f"rank {rank} is at {self.stage}SEND_{name} to rank {self.target}"
        user = self.stage + (-1 if self.result else 1)
        return f"rank {rank} is at {user}RECV_{name} from rank {self.source}"

    def other(self, rank: int) -> int:
        return self.target if rank == self.source else self.source


class _Step(NamedTuple):
    """What a rank does next: actions (a pair has two), or transfers that are posted at once."""

    actions: tuple[int, ...] = ()
    transfers: tuple[_Transfer, ...] = ()


def meet(schedule: Schedule, seconds: np.ndarray, together: np.ndarray, links: Links) -> Met | None:
    """When all runs, as `longest_path` with ``links`` of "rendezvous" or "paired".

    None where an action comes before what it uses on its own rank. Raises DeadlockError, which
    names the circle.
    """
    took, many = work_of(schedule, seconds, together), len(schedule)
    start, end, after = np.zeros(many), np.zeros(many), np.full(many, -1)
    ready = np.full((3, schedule.stages, schedule.microbatches), -1.0)
    lines = [[*_steps(schedule, links, rank)] for rank in range(schedule.devices)]
    at, free = [0] * len(lines), [0.0] * len(lines)
    last = [-1] * len(lines)  # the action that decided when each rank goes on
    posted: dict[tuple[_Transfer, int], tuple[float, int]] = {}
    waiting = list(range(len(lines)))[::-1]
    while waiting:
        rank = waiting.pop()
        while at[rank] < len(lines[rank]):
            step = lines[rank][at[rank]]
            if step.actions:
                for a in step.actions:
                    k, s, i = schedule.kind[a], schedule.stage[a], schedule.microbatch[a]
                    if (
                        min((ready[r, x, i] for r, x in _uses(k, s, schedule.stages)), default=0)
                        < 0
                    ):
                        return None
                    start[a], after[a] = free[rank], last[rank]
                free[rank] += float(took[list(step.actions)].sum())
                for a in step.actions:
                    end[a] = free[rank]
                    ready[RESULT[schedule.kind[a]], schedule.stage[a], schedule.microbatch[a]] = (
                        end[a]
                    )
                last[rank] = step.actions[-1]
            else:
                new = [each for each in step.transfers if (each, rank) not in posted]
                posted |= {(each, rank): (free[rank], last[rank]) for each in new}
                waiting += (each.other(rank) for each in new)
                if not all((each, each.other(rank)) in posted for each in step.transfers):
                    break
                for each in step.transfers:
                    begun, by = max(posted[each, each.source], posted[each, each.target])
                    there = begun + each.seconds
                    ready[each[:3]] = there
                    if there >= free[rank]:
                        free[rank], last[rank] = there, by
            at[rank] += 1
    stands = {rank: lines[rank][n] for rank, n in enumerate(at) if n < len(lines[rank])}
    if stands:
        raise DeadlockError(_circle(stands, posted, links.transfers) + _way_out(schedule, links))
    return start, end, ready, after


def _uses(kind: int, stage: int, stages: int) -> Iterator[tuple[int, int]]:
    """(result, stage) of all that an action uses."""
    if kind == 3:
        yield 1, stage
    elif kind:
        yield 0, stage
        if stage < stages - 1:
            yield 1, stage + 1
    elif stage:
        yield 0, stage - 1


def _steps(schedule: Schedule, links: Links, rank: int) -> Iterator[_Step]:
    """All that a rank does, in order."""
    gap: list[_Transfer] = []
    a, until = schedule.turns[rank : rank + 2].tolist()
    while a < until:
        block = (a, a + 1) if schedule.paired[a] else (a,)
        arrive, leave = [], []
        for k, s, i in (
            (schedule.kind[j], schedule.stage[j], schedule.microbatch[j]) for j in block
        ):
            used = ((r, x) for r, x in _uses(k, s, schedule.stages) if x != s)
            arrive += [_transfer(schedule, links, r, x, i) for r, x in used]
            leave += [_transfer(schedule, links, int(RESULT[k]), s, i)] if k < 3 else []
        gap += (each for each in arrive if each)
        yield from _posted(gap, links)
        yield _Step(actions=block)
        gap = [each for each in leave if each]
        a += len(block)
    yield from _posted(gap, links)


def _transfer(
    schedule: Schedule, links: Links, result: int, stage: int, microbatch: int
) -> _Transfer | None:
    """How a result gets to who uses it; None if that is on the same rank, or nobody."""
    pipeline = microbatch % schedule.pipelines
    if links.link[result, pipeline, stage] < 0:
        return None
    source, target = divmod(int(links.link[result, pipeline, stage]), schedule.devices)
    hop = float(links.hop[result, pipeline, stage])
    return _Transfer(result, int(stage), int(microbatch), source, target, hop)


def _posted(gap: list[_Transfer], links: Links) -> Iterator[_Step]:
    if links.transfers == "rendezvous":
        yield from (_Step(transfers=(each,)) for each in gap)
    elif gap:
        yield _Step(transfers=tuple(gap))


def _circle(
    stands: dict[int, _Step], posted: dict[tuple[_Transfer, int], tuple[float, int]], how: str
) -> str:
    """Who waits in which transfer for whom, around."""
    rank, seen = next(iter(stands)), dict[int, str]()
    while rank not in seen:
        lacks = (t for t in stands[rank].transfers if (t, t.other(rank)) not in posted)
        first = next(lacks)
        seen[rank] = first.words(rank)
        rank = first.other(rank)
    circle = "; ".join([*seen.values()][[*seen].index(rank) :])
    return f"deadlock of {how} transfers, each waits for its other end: {circle}; "


def _way_out(schedule: Schedule, links: Links) -> str:
    """Which transfers this order can have."""
    if links.transfers == "rendezvous":
        no_time = np.zeros((4, schedule.stages, 1))
        with suppress(DeadlockError):
            meet(schedule, no_time, no_time[0], replace(links, transfers="paired"))
            return "paired ones post a send and the receive after it at once"
    return "blocking ones go into a buffer, overlapped ones have a stream of their own"


def work_of(schedule: Schedule, seconds: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Seconds by which each action adds to its device's work; a pair's are its forward's."""
    number = schedule.microbatch if seconds.shape[2] > 1 else 0
    work: np.ndarray = seconds[schedule.kind, schedule.stage, number]
    if (together >= 0).any():
        first = np.flatnonzero(schedule.paired)
        number = schedule.microbatch[first] if together.shape[1] > 1 else 0
        work[first], work[first + 1] = together[schedule.stage[first], number], 0.0
    return work
