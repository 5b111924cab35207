"""The automatic zero-bubble scheduler: an order for given times within a memory.

I, the gradient of the input, is what the stage before waits for; W, the gradient of the weights,
nobody waits for, so it can go anywhere after its I (Zero Bubble, arXiv 2401.10241).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.costs import costs_of
from tiledask.plan.pipelines.generators.rounds import rounds
from tiledask.plan.pipelines.needs import peaks
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.walk import walk

__all__ = ["zb_auto"]

PerStage = float | Sequence[float]
"""One number, or one per stage."""
_SMALL = 1e-9
"""Part of a memory below which two are equal."""
HANDMADE = (1, 0), (1, 1), (2, 2)
"""1F1B with W right after I, ZB-H1 and ZB-H2, by forwards ahead and turns late."""


def zb_auto(
    stages: int,
    microbatches: int,
    forward: PerStage = 1.0,
    backward_input: PerStage = 1.0,
    backward_weight: PerStage = 1.0,
    latency: float = 0.0,
    memory_limit: float | None = None,
    activation: float = 1.0,
    weight_part: float = 0.5,
) -> Schedule:
    """The best zero-bubble order that a greedy search finds for these times within a memory.

    The heuristic of arXiv 2401.10241, section 3.1: warm up with as many forwards as memory
    allows, then F and I in turns, with W in the gaps and where memory needs it. Three choices
    it leaves open are tried in all combinations, and with them ZB-H1, ZB-H2 and 1F1B with W
    right after I, if these fit; the order with the shortest span is returned: the longest time of
    a device from its first action to its last.

    forward, backward_input, backward_weight   seconds of F, I and W
    latency        seconds from one stage to the next
    activation     memory that F takes, in any unit (the paper's M_B)
    weight_part    what of it is kept from I to W (the paper's M_W)
    memory_limit   most memory of a device, same unit. Default: stages * activation, which is
                   what 1F1B takes (ZB-1p); twice that gives ZB-2p.

    Raises ScheduleError if not even one micro-batch fits, or for a wrong number of times.

    >>> zb_auto(4, 8)
    Schedule(zb-auto: 4 stages on 4 devices, 8 micro-batches, 96 actions)
    >>> zb_auto(1, 2, memory_limit=1).to_text()
    '0F0,0I0,0W0,0F1,0I1,0W1'
    """
    limit = stages * activation if memory_limit is None else memory_limit
    if not limit >= max(activation, weight_part):
        raise ScheduleError(
            f"one micro-batch on a stage takes {max(activation, weight_part):g} of memory and the "
            f"limit is {limit:g}; allow {max(activation, weight_part):g} or more"
        )
    handmade = [rounds("", stages, microbatches, stages, *each) for each in HANDMADE]
    halves = {"backward_input": backward_input, "backward_weight": backward_weight}
    costs = costs_of(handmade[0], forward, latency=latency, **halves)
    F, _, I, W = (each[:, 0].tolist() for each in costs.seconds)
    memory = limit, activation, weight_part
    drafts = [
        _Draft(microbatches, {"F": F, "I": I, "W": W}, latency, memory).filled(*choice)
        for choice in product((True, False), repeat=3)
    ]
    best: tuple[float, float] = (np.inf, np.inf)
    for order in (*drafts, *handmade):
        kept = max(peak for peak, _ in peaks(order, activation, weight_part))
        if kept > limit * (1 + _SMALL) or (found := walk(order, costs)).stands:
            continue
        start, end = np.array(found.start), np.array(found.end)
        span = (end[order.turns[1:] - 1] - start[order.turns[:-1]]).max()
        if (merit := (float(span), float(end.max()))) < best:
            best, fastest = merit, order
    return replace(fastest, name="zb-auto")


class _Draft:
    """Orders being written action by action, with the clock of each stage."""

    def __init__(
        self,
        microbatches: int,
        seconds: dict[str, list[float]],
        latency: float,
        memory: tuple[float, float, float],
    ) -> None:
        self.microbatches, self.seconds, self.latency = microbatches, seconds, latency
        self.limit, self.activation, self.weight_part = memory
        self.stages = range(len(seconds["F"]))
        self.orders: list[list[Action]] = [[] for _ in self.stages]
        self.clock, self.idle = ([0.0 for _ in self.stages] for _ in range(2))
        """Of each stage: seconds until its last end, and of waiting since its first forward."""
        self.ends = {kind: [list[float]() for _ in self.stages] for kind in "FIW"}
        """When each action written so far ends: [kind][stage][micro-batch]."""

    def filled(self, punctual: bool, hold: bool, greedy: bool) -> Schedule:
        """The Schedule, once the whole order is written.

        punctual   the warm-up never delays the first I; otherwise it leaves no gap before it
        hold       a stage that is ahead of the next may leave out a forward
        greedy     a W goes into a gap that is shorter, even on a stage with time to spare
        """
        for s in self.stages:
            self.put("F", s)
        for s, more in enumerate(self.warmup(punctual)):
            self.put("F", s, more)
        for s in reversed(self.stages):
            self.put("I", s)
        for _ in range(1, self.microbatches):
            for s in self.forwarding(hold):
                self.put_after_weights("F", s, greedy)
            for s in reversed(self.stages):
                self.put_after_weights("I", s, greedy)
        for s in self.stages:
            self.put("W", s, self.pending(s))
        return Schedule.of(self.orders, self.stages)

    def done(self, kind: str, s: int) -> int:
        return len(self.ends[kind][s])

    def pending(self, s: int) -> int:
        """How many W of stage ``s`` could be done."""
        return self.done("I", s) - self.done("W", s)

    def arrival(self, kind: str, s: int) -> float:
        """When the block for the next F or I of stage ``s`` comes from its neighbour."""
        neighbour, ends = s - 1 if kind == "F" else s + 1, self.ends[kind]
        if not 0 <= neighbour < len(ends):
            return 0.0
        return ends[neighbour][len(ends[s])] + self.latency

    def put(self, kind: str, s: int, count: int = 1) -> None:
        """Writes the next actions of ``kind`` on stage ``s``."""
        order, ends, took = self.orders[s], self.ends[kind][s], self.seconds[kind][s]
        for _ in range(count):
            clock = self.clock[s]
            start = clock if kind == "W" else max(clock, self.arrival(kind, s))
            if order:
                self.idle[s] += start - clock
            order.append(Action(kind, s, len(ends)))
            self.clock[s] = start + took
            ends.append(start + took)

    def fits(self, s: int, forwards: int = 0, inputs: int = 0, weights: int = 0) -> bool:
        """Whether memory holds what is kept after so many more actions."""
        i = self.done("I", s) + inputs
        before, after = self.done("F", s) + forwards - i, i - self.done("W", s) - weights
        kept = before * self.activation + after * self.weight_part
        return kept <= self.limit * (1 + _SMALL)

    def weights_before(self, kind: str, s: int) -> int:
        """How many W memory needs before the next ``kind`` on stage ``s``."""
        f, i = (1, 0) if kind == "F" else (0, 1)
        if self.fits(s, f, i):  # nearly always
            return 0
        for weights in range(1, self.pending(s) + 1):
            if self.fits(s, f, i, weights):
                return weights
        raise ScheduleError(
            f"{kind}{self.done(kind, s)} of stage {s} does not fit in memory "
            f"{self.limit:g}: an activation takes {self.activation:g} before I and "
            f"{self.weight_part:g} after; raise memory_limit"
        )

    def warmup(self, punctual: bool) -> list[int]:
        """Per stage, the forwards between F0 and I0: as many as fit in memory and time."""
        extra = [0 for _ in self.stages]
        ready = -float("inf")
        for s in reversed(self.stages):
            clock, F = self.clock[s], self.seconds["F"][s]
            while (
                1 + extra[s] < self.microbatches
                and self.fits(s, forwards=extra[s] + 1)
                and (clock + F <= ready if punctual else clock < ready)
            ):
                extra[s] += 1
                clock += F
            ready = max(clock, ready) + self.seconds["I"][s] + self.latency
        for s in self.stages[1:]:  # each stage fewer than the one before, or all there are
            everything = 1 + extra[s - 1] == self.microbatches
            extra[s] = min(extra[s], extra[s - 1] if everything else max(0, extra[s - 1] - 1))
        return extra

    def forwarding(self, hold: bool) -> list[int]:
        """The stages that do a forward in this round: never one without the stage behind."""
        left = [s for s in self.stages if self.done("F", s) < self.microbatches]
        held = [s for s in left if hold and self.holds(s)]
        return [s for s in left if s > max(held, default=-1)]

    def holds(self, s: int) -> bool:
        """Whether the next stage has enough to do without another forward from ``s``."""
        after = s + 1
        if after not in self.stages or self.done("F", s) < self.done("F", after) + 2:
            return False
        deadline = (
            self.clock[after] + self.seconds["F"][after] + self.seconds["I"][after] + self.latency
        )
        if self.clock[s] >= deadline:
            return True
        busy = self.seconds["F"][s] + self.weights_before("F", s) * self.seconds["W"][s]
        return self.clock[s] + busy > deadline and deadline - self.clock[s] <= self.spare(s)

    def spare(self, s: int) -> float:
        """Seconds that stage ``s`` can wait and still have waited no more than the worst."""
        return max(self.idle) - self.idle[s]

    def put_after_weights(self, kind: str, s: int, greedy: bool) -> None:
        """Writes ``kind``, and before it the W that memory needs or that fit into the gap."""
        if weights := self.weights_before(kind, s):
            self.put("W", s, weights)
        ready, W = self.arrival(kind, s), self.seconds["W"][s]
        while self.pending(s) and self.clock[s] + W <= ready:
            self.put("W", s)
        gap = ready - self.clock[s]
        if self.pending(s) and gap > 0 and (greedy or gap > self.spare(s)):
            self.put("W", s)
        self.put(kind, s)
