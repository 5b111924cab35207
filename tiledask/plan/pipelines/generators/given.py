"""Orders for given times and memory: what is known of them, which of several is best, and a search.

squeezed   a device that would wait does the next thing that it can without more memory
best       of several orders the fastest that keeps within the memory
searched   single actions on the longest path are moved, as long as nothing is slower
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.longest_path import Path, longest_path
from tiledask.plan.pipelines.needs import needs, peaks
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.transfers.links import RESULT, Links
from tiledask.plan.whole import whole_number

__all__ = ["GOALS", "Given", "PerStage"]

PerStage = float | Sequence[float]
"""One number, or one per stage."""
GOALS = ("span", "makespan")
"""What is short: a device's time from its first action to its last, where its next step begins at
once; or the time until all devices are done, where each waits for all."""
_SMALL = 1e-9
"""Part of a time or of a memory below which two are equal."""


@dataclass(frozen=True)
class Given:
    """The times and the memory that an order is made for."""

    seconds: dict[str, list[float]]
    """Of F, B, I and W, by stage."""
    latency: float
    """Seconds from one device to another."""
    limit: float
    """The most that a device may keep."""
    change: dict[str, float]
    """By how much F, B, I and W change what is kept."""

    @classmethod
    def of(
        cls,
        stages: int,
        forward: PerStage,
        backward_input: PerStage,
        backward_weight: PerStage,
        latency: float = 0.0,
        limit: float = np.inf,
        activation: float = 1.0,
        weight_part: float = 1.0,
    ) -> "Given":
        """Raises ScheduleError for a wrong number of times, and for times that cannot be."""
        F = _per_stage(forward, "forward", stages)
        I = _per_stage(backward_input, "backward_input", stages)
        W = _per_stage(backward_weight, "backward_weight", stages)
        wrong = [t for t in (*F, *I, *W, latency) if not 0 <= t < np.inf]
        if wrong:
            raise ScheduleError(f"times are finite and 0 or more seconds, got {wrong[0]:g}")
        B = [i + w for i, w in zip(I, W, strict=True)]
        seconds = dict(zip(KINDS, (F, B, I, W), strict=True))
        changes = activation, -activation, weight_part - activation, -weight_part
        return cls(seconds, latency, limit, dict(zip(KINDS, changes, strict=True)))

    def check_room(self, stages: int = 1) -> None:
        """None; ScheduleError if a device with so many stages has no room for a micro-batch."""
        least = stages * max(self.change["F"], -self.change["W"])
        if not self.limit >= least:
            where = "a stage" if stages == 1 else "both stages of a device"
            raise ScheduleError(
                f"one micro-batch on {where} takes {least:g} of memory and the limit is "
                f"{self.limit:g}; allow {least:g} or more"
            )

    def fits(self, schedule: Schedule) -> bool:
        """Whether every device keeps within the limit."""
        kept = peaks(schedule, self.change["F"], -self.change["W"])
        return max(peak for peak, _ in kept) <= self.limit * (1 + _SMALL)

    # -- which is best ------------------------------------------------------------------------

    def path(self, schedule: Schedule) -> Path | None:
        """When everything happens; None where some action can never start."""
        seconds = np.array([self.seconds[kind] for kind in KINDS])[:, :, None]
        no_pairs = np.full((schedule.stages, 1), -1.0)
        return longest_path(schedule, seconds, no_pairs, Links.of(schedule, self.latency))

    def slowness(self, schedule: Schedule, path: Path, goal: str) -> tuple[float, float]:
        """The longest span of a device and the makespan, the ``goal`` first."""
        if goal not in GOALS:
            raise ScheduleError(f"the goal is a short {' or '.join(GOALS)}, got {short(goal)}")
        spans = path.end[schedule.turns[1:] - 1] - path.start[schedule.turns[:-1]]
        span, makespan = float(spans.max()), float(path.end.max())
        return (span, makespan) if goal == GOALS[0] else (makespan, span)

    def best(self, candidates: Iterable[Schedule], goal: str) -> Schedule:
        """The fastest of those that fit."""
        found = []
        for schedule in candidates:
            path = self.path(schedule) if self.fits(schedule) else None
            if path is not None:
                found.append((self.slowness(schedule, path, goal), schedule))
        return min(found, key=lambda each: each[0])[1]

    def searched(self, schedule: Schedule, tries: int, goal: str) -> Schedule:
        """``schedule``, or what ``tries`` random moves make of it, each kept unless it is slower.

        A move takes an action of the longest path up to 12 turns ahead or back on its device. The
        same arguments always give the same order.
        """
        whole_number("tries", tries, 0, error=ScheduleError)
        columns = schedule.kind.copy(), schedule.stage.copy(), schedule.microbatch.copy()
        names = schedule.places, schedule.name
        draft = Schedule(*columns, schedule.paired, schedule.turns, *names)
        path = self.path(draft)
        if path is None or not tries:
            return schedule
        best, longest = self.slowness(draft, path, goal), _longest(draft, path)
        change, random = np.array([self.change[kind] for kind in KINDS]), Random(0)
        turns, device = draft.turns.tolist(), draft.device
        for _ in range(tries):
            at = random.choice(longest)
            to = at + random.choice((1, 1, 2, 3, 6, 12)) * random.choice((-1, 1))
            first, end = turns[device[at] : device[at] + 2]
            if not first <= to < end:
                continue
            moved = slice(min(at, to), max(at, to) + 1)
            before = [column[moved].copy() for column in columns]
            for column in columns:
                column[moved] = np.roll(column[moved], 1 if to < at else -1)
            kept = np.cumsum(change[draft.kind[first:end]]).max()
            after = self.path(draft) if kept <= self.limit * (1 + _SMALL) else None
            if after is not None and (value := self.slowness(draft, after, goal)) <= best:
                best, longest = value, _longest(draft, after)
                continue
            for column, old in zip(columns, before, strict=True):
                column[moved] = old
        return draft

    # -- from a feasible order to a better one --------------------------------------------------

    def squeezed(
        self, schedule: Schedule, weights: str = "in turn", gradients_first: bool = False
    ) -> Schedule:
        """``schedule`` where a device that would wait does the next thing that it can.

        What is pulled ahead never passes the memory limit. The given order can run, and what is
        left of it always can, so there is no deadlock.

        weights           when W is done: "in turn", but once the forwards of its first chunk are
                          through a device does it only when it can do nothing else; "last", always
                          so; "between": and only if it ends before the next result comes in
        gradients_first   whether a device prefers any backward to a forward
        """
        waits = needs(schedule)
        left = [list(order) for order in schedule.orders]
        orders: list[list[Action]] = [[] for _ in left]
        free, kept = [0.0] * len(left), [0.0] * len(left)
        look = [0.0] * len(left)  # before then a device finds nothing new
        forwards = [schedule.microbatches] * len(left)
        queues = [len({(a.kind, a.stage) for a in order}) for order in left]
        comes: dict[Action, list[tuple[Action, float]]] = {}
        elsewhere: dict[Action, set[int]] = {a: set() for a in waits}
        for d, order in enumerate(left):
            for a in order:
                away = [(b, schedule.holder(b.stage, b.microbatch) != d) for b in waits[a]]
                comes[a] = [(b, far * self.latency) for b, far in away]
                for b, far in away:
                    elsewhere[b] |= {d} if far else set()
        end: dict[Action, float] = {}
        small = _SMALL * (self.latency + max(max(times) for times in self.seconds.values()))
        room = self.limit * (1 + _SMALL)

        def arrival(a: Action) -> float:
            """When what it needs is there; never, as far as is known, if nobody has begun it."""
            return max((end.get(b, np.inf) + way for b, way in comes[a]), default=0.0)

        def turn_of(device: int, now: float) -> int | None:
            """Which of what is left is done now. Of each kind and stage only the first can be."""
            height = peak = kept[device]
            seen, weight, forward, soon = set(), None, None, np.inf
            lazy = weights != "in turn" or not forwards[device]
            for turn, a in enumerate(left[device]):
                queue = a.kind, a.stage
                if queue not in seen:
                    seen.add(queue)
                    if turn == 0 or a.kind != "F" or peak + self.change["F"] <= room:
                        there = arrival(a)
                        if there > now + small:
                            soon = soon if a.kind == "W" else min(soon, there)
                        elif a.kind == "W" and lazy:
                            weight = turn if weight is None else weight
                        elif a.kind == "F" and gradients_first:
                            forward = turn if forward is None else forward
                        else:
                            return turn
                    if len(seen) == queues[device]:
                        break
                height += self.change[a.kind]
                peak = max(peak, height)
            look[device] = soon
            if forward is not None or weight is None or weights != "between":
                return weight if forward is None else forward
            took = self.seconds["W"][left[device][weight].stage]
            return weight if soon >= now + took - small else None

        moments = [0.0]
        while any(left):
            now = heappop(moments)
            while moments and moments[0] == now:
                heappop(moments)
            due = now + small
            for d, rest in enumerate(left):
                while rest and look[d] <= due:
                    if (turn := turn_of(d, now)) is None:
                        break
                    a = rest.pop(turn)
                    orders[d].append(a)
                    kept[d] += self.change[a.kind]
                    forwards[d] -= a.kind == "F" and a.stage == d
                    end[a] = free[d] = look[d] = now + self.seconds[a.kind][a.stage]
                    for other in elsewhere[a]:
                        look[other] = max(free[other], min(look[other], end[a] + self.latency))
                    heappush(moments, free[d])
                    heappush(moments, free[d] + self.latency)
        return Schedule.of(orders, schedule.places, schedule.name)


def _per_stage(times: PerStage, name: str, stages: int) -> list[float]:
    values = list(times) if isinstance(times, Iterable) else [times] * stages
    if len(values) != stages:
        raise ScheduleError(
            f"{name} must be one number or one per stage: {stages} stages, got {len(values)}"
        )
    return values


def _longest(schedule: Schedule, path: Path) -> list[int]:
    """Positions of the actions that decide the makespan, from the last to the first."""
    kind, stage, number = schedule.kind, schedule.stage, schedule.microbatch
    made = np.zeros(path.ready.shape, np.int64)
    made[RESULT[kind], stage, number] = np.arange(len(schedule))
    firsts = set(schedule.turns[:-1].tolist())
    small = _SMALL * float(path.end.max())
    at = int(path.end.argmax())
    found = [at]
    while True:
        k, s, i = int(kind[at]), int(stage[at]), int(number[at])
        used = (0, s - 1, i) if k == 0 and s else (1, s + 1, i)
        needed = used[0] == 0 or (k in (1, 2) and s + 1 < schedule.stages)
        if needed and path.ready[used] >= path.start[at] - small:
            at = int(made[used])
        elif at not in firsts and path.end[at - 1] >= path.start[at] - small:
            at -= 1
        else:
            return found
        found.append(at)
