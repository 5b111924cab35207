"""The automatic zero-bubble scheduler: an order for given times within a memory.

I, the gradient of the input, is what the stage before waits for; W, the gradient of the weights,
nobody waits for, so it can go anywhere after its I (Zero Bubble, arXiv 2401.10241).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
    handmade = [_rounds(stages, microbatches, *depths) for depths in ((1, 0), (1, 1), (2, 2))]
    halves = {"backward_input": backward_input, "backward_weight": backward_weight}
    costs = costs_of(handmade[0], forward, latency=latency, **halves)
    F, _, I, W = (each[:, 0].tolist() for each in costs.seconds)
    seconds = {"F": F, "I": I, "W": W}

    def drafted(*choice: bool) -> Schedule:
        draft = _Draft(stages, microbatches, seconds, latency, limit, activation, weight_part)
        return Schedule.of(draft.fill(*choice).orders, range(stages))

    best: tuple[float, float] = (np.inf, np.inf)
    for order in [*(drafted(*each) for each in product((True, False), repeat=3)), *handmade]:
        kept = max(peak for peak, _ in peaks(order, activation, weight_part))
        if kept > limit * (1 + _SMALL):
            continue
        found = walk(order, costs)
        if found.stands:
            continue
        start, end = np.array(found.start), np.array(found.end)
        span = (end[order.turns[1:] - 1] - start[order.turns[:-1]]).max()
        if (merit := (float(span), float(end.max()))) < best:
            best, fastest = merit, order
    return replace(fastest, name="zb-auto")


def _rounds(stages: int, microbatches: int, ahead: int, late: int) -> Schedule:
    """ZB-H1 and ZB-H2 are 1, 1 and 2, 2."""
    return rounds(
        "", stages, microbatches, stages, lambda d: ahead * (stages - 1 - d), lambda d: late * d
    )


@dataclass
class _Draft:
    """Orders being written action by action, with the clock of each stage."""

    stages: int
    microbatches: int
    seconds: dict[str, list[float]]
    latency: float
    limit: float
    activation: float
    weight_part: float
    orders: list[list[Action]] = field(init=False)
    clock: list[float] = field(init=False)
    idle: list[float] = field(init=False)
    """Seconds of waiting since the first forward of each stage."""
    ends: dict[str, list[list[float]]] = field(init=False)
    """When each action written so far ends: [kind][stage][micro-batch]."""

    def __post_init__(self) -> None:
        self.orders = [[] for _ in range(self.stages)]
        self.clock, self.idle = ([0.0] * self.stages for _ in range(2))
        self.ends = {kind: [[] for _ in range(self.stages)] for kind in "FIW"}

    def fill(self, punctual: bool, hold: bool, greedy: bool) -> "_Draft":
        """Writes the whole order.

        punctual   the warm-up never delays the first I; otherwise it leaves no gap before it
        hold       a stage that is ahead of the next may leave out a forward
        greedy     a W goes into a gap that is shorter, even on a stage with time to spare
        """
        stages = range(self.stages)
        for s in stages:
            self.put("F", s)
        for s, more in enumerate(self.warmup(punctual)):
            for _ in range(more):
                self.put("F", s)
        for s in reversed(stages):
            self.put("I", s)
        for _ in range(1, self.microbatches):
            for s in self.forwarding(hold):
                self.put_after_weights("F", s, greedy)
            for s in reversed(stages):
                self.put_after_weights("I", s, greedy)
        for s in stages:
            self.put_weights(s, self.pending(s))
        return self

    def done(self, kind: str, s: int) -> int:
        return len(self.ends[kind][s])

    def pending(self, s: int) -> int:
        """How many W of stage ``s`` could be done."""
        return self.done("I", s) - self.done("W", s)

    def arrival(self, kind: str, s: int) -> float:
        """When the block for the next F or I of stage ``s`` comes from its neighbour."""
        neighbour = s + {"F": -1, "I": 1}[kind]
        if not 0 <= neighbour < self.stages:
            return 0.0
        return self.ends[kind][neighbour][self.done(kind, s)] + self.latency

    def put(self, kind: str, s: int) -> None:
        """Writes the next action of ``kind`` on stage ``s``."""
        start = self.clock[s] if kind == "W" else max(self.clock[s], self.arrival(kind, s))
        if self.orders[s]:
            self.idle[s] += start - self.clock[s]
        self.orders[s].append(Action(kind, s, self.done(kind, s)))
        self.clock[s] = start + self.seconds[kind][s]
        self.ends[kind][s].append(self.clock[s])

    def put_weights(self, s: int, count: int) -> None:
        for _ in range(count):
            self.put("W", s)

    def fits(self, s: int, forwards: int = 0, inputs: int = 0, weights: int = 0) -> bool:
        """Whether memory holds what is kept after so many more actions."""
        i = self.done("I", s) + inputs
        before, after = self.done("F", s) + forwards - i, i - self.done("W", s) - weights
        return before * self.activation + after * self.weight_part <= self.limit * (1 + 1e-9)

    def weights_before(self, kind: str, s: int) -> int:
        """How many W memory needs before the next ``kind`` on stage ``s``."""
        f, i = {"F": (1, 0), "I": (0, 1)}[kind]
        if self.fits(s, f, i):  # nearly always
            return 0
        pending = range(1, self.pending(s) + 1)
        needed = next((n for n in pending if self.fits(s, f, i, n)), None)
        if needed is None:
            raise ScheduleError(
                f"{kind}{self.done(kind, s)} of stage {s} does not fit in memory {self.limit:g}: "
                f"an activation takes {self.activation:g} before I and {self.weight_part:g} after; "
                f"raise memory_limit"
            )
        return needed

    def warmup(self, punctual: bool) -> list[int]:
        """Per stage, the forwards between F0 and I0: as many as fit in memory and time."""
        extra = [0] * self.stages
        ready = -float("inf")
        for s in reversed(range(self.stages)):
            clock, F = self.clock[s], self.seconds["F"][s]
            while (
                1 + extra[s] < self.microbatches
                and self.fits(s, forwards=extra[s] + 1)
                and (clock + F <= ready if punctual else clock < ready)
            ):
                extra[s] += 1
                clock += F
            ready = max(clock, ready) + self.seconds["I"][s] + self.latency
        for s in range(1, self.stages):  # each stage fewer than the one before, or all there are
            everything = 1 + extra[s - 1] == self.microbatches
            extra[s] = min(extra[s], extra[s - 1] if everything else max(0, extra[s - 1] - 1))
        return extra

    def forwarding(self, hold: bool) -> list[int]:
        """The stages that do a forward in this round: never one without the stage behind."""
        left = [s for s in range(self.stages) if self.done("F", s) < self.microbatches]
        held = [s for s in left if hold and self.holds(s)]
        return [s for s in left if s > max(held, default=-1)]

    def holds(self, s: int) -> bool:
        """Whether the next stage has enough to do without another forward from ``s``."""
        after = s + 1
        if after == self.stages or self.done("F", s) < self.done("F", after) + 2:
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
        self.put_weights(s, self.weights_before(kind, s))
        ready, W = self.arrival(kind, s), self.seconds["W"][s]
        while self.pending(s) and self.clock[s] + W <= ready:
            self.put("W", s)
        gap = ready - self.clock[s]
        if self.pending(s) and gap > 0 and (greedy or gap > self.spare(s)):
            self.put("W", s)
        self.put(kind, s)
