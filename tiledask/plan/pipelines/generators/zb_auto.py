"""The automatic zero-bubble scheduler: an order for given times within a memory.

I, the gradient of the input, is what the stage before waits for; W, the gradient of the weights,
nobody waits for, so it can go anywhere after its I (Zero Bubble, arXiv 2401.10241).
"""

from collections.abc import Sequence
from itertools import product

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.costs import costs_of
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.validate import peaks

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
    it leaves open are tried in all combinations, and the order with the shortest span is returned:
    the longest time of a device from its first action to its last.

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
    if not weight_part <= activation <= limit:
        raise ScheduleError(
            f"one micro-batch on a stage takes {activation:g} of memory and the limit is "
            f"{limit:g}, and {weight_part:g} are kept from I to W; weight_part is at most "
            f"activation, and that at most memory_limit"
        )
    most, halves = limit * (1 + _SMALL), (backward_input, backward_weight)
    costs = costs_of(Schedule((), (tuple(range(stages)),)), forward, None, latency, *halves)
    seconds = {kind: costs.seconds["FBIW".index(kind), :, 0].tolist() for kind in "FIW"}
    drafts = [
        _Draft(microbatches, seconds, latency, (most, activation, weight_part), choice)
        for choice in product((True, False), repeat=3)
    ]
    made = [Schedule.of(draft.orders, range(stages), "zb-auto") for draft in drafts]
    fitting = [
        (*draft.merit, n)
        for n, (draft, order) in enumerate(zip(drafts, made, strict=True))
        if max(peaks(order, activation, weight_part))[0] <= most
    ]
    return made[min(fitting)[-1]]


class _Draft:
    """An order that is written action by action, with the clock of each stage.

    choice = (punctual, hold, greedy)
      punctual   the warm-up never delays the first I; otherwise it leaves no gap before it
      hold       a stage that is ahead of the next may leave out a forward
      greedy     a W goes into a gap that is shorter, even on a stage with time to spare
    """

    def __init__(
        self,
        microbatches: int,
        seconds: dict[str, list[float]],
        latency: float,
        memory: tuple[float, float, float],
        choice: tuple[bool, ...],
    ) -> None:
        self.microbatches, self.seconds, self.latency = microbatches, seconds, latency
        self.limit, self.activation, self.weight_part = memory
        self.punctual, self.hold, self.greedy = choice
        self.stages = range(len(seconds["F"]))
        self.orders: list[list[Action]] = [[] for _ in self.stages]
        # of each stage: seconds until its last end, until its first start, and of waiting since
        self.clock, self.begin, self.idle = ([0.0 for _ in self.stages] for _ in range(3))
        # when each action written so far ends: [kind][stage][micro-batch]
        self.ends = {kind: [list[float]() for _ in self.stages] for kind in "FIW"}
        self._write()
        spans = (clock - begin for clock, begin in zip(self.clock, self.begin, strict=True))
        self.merit = max(spans), max(self.clock)

    def _write(self) -> None:
        for s in self.stages:
            self.put("F", s)
        for s, more in enumerate(self.warmup()):
            self.put("F", s, more)
        for s in reversed(self.stages):
            self.put("I", s)
        for _ in range(1, self.microbatches):
            left = [s for s in self.stages if len(self.ends["F"][s]) < self.microbatches]
            # never a forward without one of the stage behind
            held = max((s for s in left if self.hold and self.is_ahead(s)), default=-1)
            for s in left:
                if s > held:
                    self.put_after_weights("F", s)
            for s in reversed(self.stages):
                self.put_after_weights("I", s)
        for s in self.stages:
            self.put("W", s, self.pending(s))

    def pending(self, s: int) -> int:
        """How many W of stage ``s`` could be done."""
        return len(self.ends["I"][s]) - len(self.ends["W"][s])

    def arrival(self, kind: str, s: int) -> float:
        """When the block for the next F or I of stage ``s`` comes from its neighbour."""
        neighbour, ends = s - 1 if kind == "F" else s + 1, self.ends[kind]
        if neighbour not in self.stages:
            return 0.0
        return ends[neighbour][len(ends[s])] + self.latency

    def put(self, kind: str, s: int, count: int = 1) -> None:
        """Writes the next actions of ``kind`` on stage ``s``."""
        ends = self.ends[kind][s]
        for _ in range(count):
            clock = self.clock[s]
            start = clock if kind == "W" else max(clock, self.arrival(kind, s))
            if self.orders[s]:
                self.idle[s] += start - clock
            else:
                self.begin[s] = start
            self.orders[s].append(Action(kind, s, len(ends)))
            self.clock[s] = start + self.seconds[kind][s]
            ends.append(self.clock[s])

    def fits(self, s: int, forwards: int = 0, inputs: int = 0, weights: int = 0) -> bool:
        """Whether memory holds what is kept after so many more actions."""
        inputs += len(self.ends["I"][s])
        before, after = len(self.ends["F"][s]) + forwards - inputs, inputs - weights
        kept = before * self.activation + (after - len(self.ends["W"][s])) * self.weight_part
        return kept <= self.limit

    def weights_before(self, kind: str, s: int) -> int:
        """How many W memory needs before the next ``kind`` on stage ``s``."""
        more, n = (1, 0) if kind == "F" else (0, 1), 0
        while not self.fits(s, *more, n) and n < self.pending(s):
            n += 1
        return n

    def warmup(self) -> list[int]:
        """Per stage, the forwards between F0 and I0: as many as fit in memory and time."""
        extra, ready = [0 for _ in self.stages], -float("inf")
        for s in reversed(self.stages):
            clock, F = self.clock[s], self.seconds["F"][s]
            while (
                1 + extra[s] < self.microbatches
                and self.fits(s, forwards=extra[s] + 1)
                and (clock + F <= ready if self.punctual else clock < ready)
            ):
                extra[s] += 1
                clock += F
            ready = max(clock, ready) + self.seconds["I"][s] + self.latency
        for s in self.stages[1:]:  # each stage fewer than the one before, or all there are
            everything = 1 + extra[s - 1] == self.microbatches
            extra[s] = min(extra[s], extra[s - 1] if everything else max(0, extra[s - 1] - 1))
        return extra

    def is_ahead(self, s: int) -> bool:
        """Whether the next stage has enough to do without another forward from ``s``."""
        after, done = s + 1, self.ends["F"]
        if after not in self.stages or len(done[s]) < len(done[after]) + 2:
            return False
        F, I, W = (self.seconds[kind] for kind in "FIW")
        deadline = self.clock[after] + F[after] + I[after] + self.latency
        busy, clock = F[s] + self.weights_before("F", s) * W[s], self.clock[s]
        late = clock + busy > deadline and deadline - clock <= self.spare(s)
        return clock >= deadline or late

    def spare(self, s: int) -> float:
        """Seconds that stage ``s`` can wait and still have waited no more than the worst."""
        return max(self.idle) - self.idle[s]

    def put_after_weights(self, kind: str, s: int) -> None:
        """Writes ``kind``, and before it the W that memory needs or that fit into the gap."""
        self.put("W", s, self.weights_before(kind, s))
        ready, W = self.arrival(kind, s), self.seconds["W"][s]
        while self.pending(s) and self.clock[s] + W <= ready:
            self.put("W", s)
        gap = ready - self.clock[s]
        if self.pending(s) and gap > 0 and (self.greedy or gap > self.spare(s)):
            self.put("W", s)
        self.put(kind, s)
