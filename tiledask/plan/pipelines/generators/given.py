"""Orders for given times and memory: what is known of them, and which of several is best.

squeezed   a device that would wait does the next thing that it can without more memory
best       of several orders the fastest that keeps within the memory
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.longest_path import Path, longest_path
from tiledask.plan.pipelines.needs import needs, peaks
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.transfers.links import Links

__all__ = ["Given", "PerStage"]

PerStage = float | Sequence[float]
"""One number, or one per stage."""
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

    def check_room(self) -> None:
        """None; ScheduleError if a device has no room for a micro-batch."""
        least = max(self.change["F"], -self.change["W"])
        if not self.limit >= least:
            raise ScheduleError(
                f"one micro-batch on a stage takes {least:g} of memory and the limit is "
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

    def best(self, candidates: Iterable[Schedule]) -> Schedule:
        """Of those that fit the one with the shortest span of a device, then makespan."""
        found = []
        for schedule in candidates:
            path = self.path(schedule) if self.fits(schedule) else None
            if path is not None:
                spans = path.end[schedule.turns[1:] - 1] - path.start[schedule.turns[:-1]]
                found.append((float(spans.max()), float(path.end.max()), schedule))
        return min(found, key=lambda each: each[:2])[2]

    # -- from a feasible order to a better one --------------------------------------------------

    def squeezed(self, schedule: Schedule) -> Schedule:
        """``schedule`` where a device that would wait does the next thing that it can.

        What is pulled ahead never passes the memory limit. The given order can run, and what is
        left of it always can, so there is no deadlock. W is done in turn, but once the forwards of
        its first chunk are through a device does it only when it can do nothing else.
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
            seen, weight, soon = set(), None, np.inf
            for turn, a in enumerate(left[device]):
                queue = a.kind, a.stage
                if queue not in seen:
                    seen.add(queue)
                    if turn == 0 or a.kind != "F" or peak + self.change["F"] <= room:
                        there = arrival(a)
                        if there > now + small:
                            soon = soon if a.kind == "W" else min(soon, there)
                        elif a.kind == "W" and not forwards[device]:
                            weight = turn if weight is None else weight
                        else:
                            return turn
                    if len(seen) == queues[device]:
                        break
                height += self.change[a.kind]
                peak = max(peak, height)
            look[device] = soon
            return weight

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
