"""The automatic zero-bubble scheduler: an order for given times within a memory."""

from collections.abc import Sequence
from itertools import product
from math import ceil
from operator import sub

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.costs import costs_of
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule

__all__ = ["zb_auto"]

PerStage = float | Sequence[float]
_SMALL = 1e-9  # part of a memory below which two are equal


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
    allows, then F and I in turns, with W in the gaps and where memory needs it. Of three choices it
    leaves open all combinations are tried, for the shortest span.

    forward, backward_input, backward_weight   seconds of F, I and W
    latency        seconds from one stage to the next
    activation     memory that F takes, in any unit (the paper's M_B)
    weight_part    what of it is kept from I to W (the paper's M_W)
    memory_limit   most memory of a device, same unit. Default: stages * activation, which is
                   what 1F1B takes (ZB-1p); twice that gives ZB-2p.

    Raises ScheduleError if not even one micro-batch fits, or for a wrong number of times.

    >>> zb_auto(4, 8)
    Schedule(zb-auto: 4 stages on 4 devices, 8 micro-batches, 96 actions)
    """
    limit = stages * activation if memory_limit is None else memory_limit
    if not weight_part <= activation <= limit:
        raise ScheduleError(
            f"one micro-batch takes {activation:g} of memory and the limit is {limit:g}; "
            f"weight_part is at most activation, and that at most memory_limit"
        )
    first = Schedule.of([[Action("F", 0, 0)]], range(stages))
    costs = costs_of(first, forward, None, latency, backward_input, backward_weight)
    seconds = dict(zip(KINDS, costs.seconds[:, :, 0].tolist(), strict=True))
    memory, found = (limit * (1 + _SMALL), activation, weight_part), list[_Draft]()
    for choice in product((True, False), repeat=3):
        draft = _Draft(seconds, latency, *memory)
        draft.write(microbatches, *choice)
        found += [draft] if draft.most <= draft.limit else []
    # the longest time from a device's first action to its last, then the last of all
    best = min(found, key=lambda each: (max(map(sub, each.clock, each.begin)), max(each.clock)))
    return Schedule.of(best.orders, range(stages), "zb-auto")


class _Draft:
    """An order that is written action by action, with the clock of each stage."""

    def __init__(self, seconds: dict[str, list[float]], latency: float, *memory: float) -> None:
        self.seconds, self.latency = seconds, latency
        self.limit, self.activation, self.weight_part = memory
        self.stages = range(len(seconds["F"]))
        self.orders: list[list[Action]] = [[] for _ in self.stages]
        # of each stage: seconds until its last end, until its first start, and of waiting since
        self.clock, self.begin, self.idle = ([0.0 for _ in self.stages] for _ in range(3))
        self.most = 0.0
        # how many W of each stage could be done
        self.pending = [0 for _ in self.stages]
        # when each action written so far ends: [kind][stage][micro-batch]
        self.ends = {kind: [list[float]() for _ in self.stages] for kind in "FIW"}

    def write(self, microbatches: int, punctual: bool, hold: bool, greedy: bool) -> None:
        """The whole order. ``punctual``: the warm-up never delays the first I; otherwise it leaves
        no gap before it. ``hold``: a stage that is ahead of the next may leave out a forward.
        ``greedy``: a W goes into a gap that is shorter, even on a stage with time to spare."""
        done, (F, I, W) = self.ends["F"], (self.seconds[kind] for kind in "FIW")
        for s in self.stages:
            self.put("F", s)
        # between F0 and I0 as many forwards as fit in memory and time
        extra, ready = [0 for _ in self.stages], -float("inf")
        for s in reversed(self.stages):
            clock = self.clock[s]
            while (
                1 + extra[s] < microbatches
                and self.kept(s, forwards=extra[s] + 1) <= self.limit
                and (clock + F[s] <= ready if punctual else clock < ready)
            ):
                extra[s] += 1
                clock += F[s]
            ready = max(clock, ready) + I[s] + self.latency
        for s in self.stages[1:]:  # each stage fewer than the one before, or all there are
            everything = 1 + extra[s - 1] == microbatches
            extra[s] = min(extra[s], extra[s - 1] if everything else max(0, extra[s - 1] - 1))
        for s in self.stages:
            self.put("F", s, extra[s])
        for s in reversed(self.stages):
            self.put("I", s)
        for _ in range(1, microbatches):
            left = [s for s in self.stages if len(self.ends["F"][s]) < microbatches]
            held = -1  # never a forward without one of the stage behind
            for s in left if hold else []:
                # the next stage has enough to do without another forward from this
                if s + 1 not in self.stages or len(done[s]) < len(done[s + 1]) + 2:
                    continue
                deadline = self.clock[s + 1] + F[s + 1] + I[s + 1] + self.latency
                over, spare = self.kept(s, forwards=1) - self.limit, max(self.idle) - self.idle[s]
                first = ceil(over / max(self.weight_part, _SMALL)) if over > 0 else 0
                late = self.clock[s] + F[s] + min(self.pending[s], first) * W[s] > deadline
                if self.clock[s] >= deadline or (late and deadline - self.clock[s] <= spare):
                    held = s
            for s in left:
                if s > held:
                    self.put_after_weights("F", s, greedy)
            for s in reversed(self.stages):
                self.put_after_weights("I", s, greedy)
        for s in self.stages:
            self.put("W", s, self.pending[s])

    def put(self, kind: str, s: int, count: int = 1) -> None:
        """Writes the next actions of ``kind`` on stage ``s``."""
        ends = self.ends[kind][s]
        for _ in range(count):
            start = max(self.clock[s], self.arrival(kind, s))
            if self.orders[s]:
                self.idle[s] += start - self.clock[s]
            else:
                self.begin[s] = start
            self.orders[s].append(Action(kind, s, len(ends)))
            self.clock[s] = start + self.seconds[kind][s]
            ends.append(self.clock[s])
            self.pending[s] += (kind == "I") - (kind == "W")
            self.most = max(self.most, self.kept(s))

    def put_after_weights(self, kind: str, s: int, greedy: bool) -> None:
        """Writes ``kind``, and before it the W that memory needs or that fit into the gap."""
        more, W = (1, 0) if kind == "F" else (0, 1), self.seconds["W"][s]
        ready = self.arrival(kind, s)
        while self.pending[s] and (self.kept(s, *more) > self.limit or self.clock[s] + W <= ready):
            self.put("W", s)
        gap, spare = ready - self.clock[s], max(self.idle) - self.idle[s]
        if self.pending[s] and gap > 0 and (greedy or gap > spare):
            self.put("W", s)
        self.put(kind, s)

    def arrival(self, kind: str, s: int) -> float:
        """When the block for the next F or I of stage ``s`` comes from its neighbour."""
        neighbour, ends = s - 1 if kind == "F" else s + 1, self.ends[kind]
        if kind == "W" or neighbour not in self.stages:
            return 0.0
        return ends[neighbour][len(ends[s])] + self.latency

    def kept(self, s: int, forwards: int = 0, inputs: int = 0) -> float:
        """The memory of what is kept after so many more actions."""
        after = self.pending[s] + inputs
        before = len(self.ends["F"][s]) + forwards - len(self.ends["I"][s]) - inputs
        return before * self.activation + after * self.weight_part
