"""A pipeline schedule: in which order each device does its forwards and backwards.

Beside its turn, an action waits for results; where one stage does B and the next I, each needs the
one that is there:

    F(s, i)  needs  F(s-1, i)                      activations from the stage before
    B(s, i)  needs  F(s, i) and B(s+1, i)          its own activations, gradient from behind
    I(s, i)  needs  F(s, i) and I(s+1, i)          the gradient of the input alone
    W(s, i)  needs  I(s, i)                        the gradient of the weights
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short

__all__ = ["KINDS", "Action", "Schedule", "sources"]

KINDS = "FBIW"  # a column of kinds holds positions in this word
_CODES = str.maketrans(KINDS, "\0\1\2\3")


class Action(NamedTuple):
    """One thing a device does.

    >>> str(Action("F", 0, 3))
    '0F3'
    """

    kind: str
    """F forward, B full backward, I gradient of the input, W gradient of the weights."""
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, repr=False)
class Schedule:
    """The order of actions on each device, and which device holds each stage. A stage may be on
    several (Chimera, DualPipe): then micro-batch i takes the row of places of number i mod rows.

    Actions are kept in columns, device after device, and made when they are looked at.

    >>> s = Schedule.from_text("0F0,0B0; 1F0,1B0")
    >>> s.devices, s.stages, s.microbatches, s.place
    (2, 2, 1, (0, 1))
    >>> s == Schedule.from_text(s.to_text())
    True
    """

    kind: np.ndarray = field(compare=False)
    """int8 [actions]: positions in KINDS."""
    stage: np.ndarray = field(compare=False)
    microbatch: np.ndarray = field(compare=False)
    """int32 [actions]."""
    paired: np.ndarray = field(compare=False)
    """bool [actions]: whether the device does this forward and the backward after it at once."""
    turns: np.ndarray = field(compare=False)
    """int64 [devices + 1]: where each device's actions begin, and where the last one's end."""
    places: tuple[tuple[int, ...], ...]
    """The device of each stage, a row for each way through the devices."""
    name: str = field(default="", compare=False)
    device: np.ndarray = field(init=False, compare=False)
    """int32 [actions]: the device of each."""
    devices: int = field(init=False, compare=False)
    stages: int = field(init=False, compare=False)
    microbatches: int = field(init=False, compare=False)
    """One more than the largest micro-batch number."""
    trains: bool = field(init=False, compare=False)
    """Whether there is any backward."""
    replicas: int = field(init=False, compare=False)
    """On how many devices a stage is, at most."""
    content: tuple[bytes, ...] = field(init=False)
    """The columns, for comparisons."""

    def __post_init__(self) -> None:
        types = {"kind": "i1", "stage": "i4", "microbatch": "i4", "paired": "?"}
        columns = {name: np.asarray(getattr(self, name), each) for name, each in types.items()}
        counts = np.diff(self.turns)
        device = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        vars(self).update(columns, device=device, devices=len(counts), stages=len(self.places[0]))
        replicas = max((len({*each}) for each in zip(*self.places, strict=True)), default=0)
        microbatches, trains = 1 + int(self.microbatch.max(initial=-1)), bool(self.kind.any())
        vars(self).update(replicas=replicas, microbatches=microbatches, trains=trains)
        content = (column.tobytes() for column in (*columns.values(), counts))
        vars(self).update(content=tuple(content))

    @classmethod
    def of(
        cls,
        orders: Iterable[Iterable[Action]],
        place: Iterable[int] | Iterable[Iterable[int]],
        name: str = "",
        pairs: Iterable[Action] = (),
    ) -> "Schedule":
        """The schedule with these actions on each device, whose stages are on the devices of
        ``place``, or of several rows of it; ``pairs``: the forwards that are done at once with the
        backward after them. Raises ScheduleError for other kinds."""
        rows, both = [*map(tuple, orders)], {*pairs}
        actions = [*chain.from_iterable(rows)]
        kinds, *numbers = zip(*actions, strict=True) if actions else ((), (), ())
        if unknown := {*kinds} - {*KINDS}:
            raise ScheduleError(f"the kinds are F, B, I and W, got {', '.join(sorted(unknown))}")
        codes = np.frombuffer("".join(kinds).translate(_CODES).encode(), np.int8)
        stage, microbatch, paired = map(np.array, (*numbers, [a in both for a in actions]))
        turns = np.cumsum([0, *map(len, rows)])
        places = tuple(map(tuple, np.atleast_2d(np.array(list(place), int)).tolist()))
        return cls(codes, stage, microbatch, paired, turns, places, name)

    @cached_property
    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """One row of actions per device."""
        kinds = np.take([*KINDS], self.kind).tolist()
        actions = [*map(Action, kinds, self.stage.tolist(), self.microbatch.tolist())]
        return tuple(tuple(actions[a:b]) for a, b in pairwise(self.turns.tolist()))

    def actions(self, device: int) -> tuple[Action, ...]:
        """What ``device`` does, in order."""
        return self.orders[device]

    @property
    def place(self) -> tuple[int, ...]:
        """The device of each stage. Raises ScheduleError where one is on several devices."""
        if self.replicas > 1:
            raise ScheduleError(f"a stage is on {self.replicas} devices; use holder(stage, number)")
        return self.places[0]

    def holders(self, stage: int) -> tuple[int, ...]:
        """The devices that have ``stage``, in the order in which micro-batches come to them."""
        return tuple(dict.fromkeys(place[stage] for place in self.places))

    def holder(self, stage: int, microbatch: int) -> int:
        """The device on which ``stage`` works on ``microbatch``."""
        return self.places[microbatch % len(self.places)][stage]

    def __iter__(self) -> Iterator[Action]:
        return chain.from_iterable(self.orders)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name}{': ' * bool(self.name)}{self.stages} stages on {self.devices} "
            f"devices, {self.microbatches} micro-batches, {len(self)} actions)"
        )

    @cached_property
    def maker(self) -> np.ndarray:
        """int64 [actions]: the position of the last action whose result each uses, -1 for none."""
        own, behind = sources(self.kind, self.stage, self.microbatch).T
        maker: np.ndarray = np.where(behind < 0, own, behind)
        return maker

    @cached_property
    def fault(self) -> str:
        """What is wrong first, but for the turns; "" if nothing is: an action of no stage or
        micro-batch, on another device, of no pair, missing, or there twice."""
        kind, stage, number = self.kind, self.stage, self.microbatch
        stages, microbatches, device = self.stages, self.microbatches, self.device
        if not len(self):
            return "the schedule has no action; a stage and micro-batch has two or more, as 0F0,0B0"
        for n in np.flatnonzero((stage < 0) | (stage >= stages) | (number < 0)):
            there = f"there are {stages} stages and {microbatches} micro-batches, counted from 0"
            return f"{list(self)[n]} on rank {device[n]} is unknown: {there}"
        placed = np.array(self.places)[number % len(self.places), stage]
        for n in np.flatnonzero(placed != device):
            of = f"stage {stage[n]} of micro-batch {number[n]} is placed on rank {placed[n]}"
            return f"{list(self)[n]} is on rank {device[n]}, but {of}: move it there"
        after = np.append(np.where(device[1:] == device[:-1], kind[1:], 0), 0)
        for n in np.flatnonzero(self.paired & ((kind > 0) | (after == 0) | (after == 3))):
            turn = n - self.turns[device[n]]
            both = " and ".join(map(str, self.orders[device[n]][turn : turn + 2]))
            what = f"at turn {turn} of rank {device[n]} it is {both}"
            return f"a device does a forward and then a backward (B or I) at once; {what}"
        key = stage.astype(np.int64) * microbatches + number
        F, B, I, W = (np.sort(key[kind == k]) for k in range(len(KINDS)))
        once = [F, np.sort(np.append(B, W))] if self.trains else [F]
        whole = all(len(x) == stages * microbatches and (np.diff(x) > 0).all() for x in once)
        kinds = defaultdict[tuple[int, int], str](str)
        for action in self if not whole or not np.array_equal(I, W) else ():
            kinds[action[1:]] += action.kind
        each = ((s, i) for s in range(stages) for i in range(microbatches))
        for s, i in each if kinds else []:
            if "".join(sorted(kinds[s, i])) not in (("BF", "FIW") if self.trains else ("F",)):
                does = ", ".join(f"{s}{kind}{i}" for kind in kinds[s, i]) or "nothing"
                of = f"stage {s} and micro-batch {i} rank {self.holder(s, i)}"
                return f"of {of} does {does}; it is F and B, or F, I and W, once each"
        return ""

    @cached_property
    def waits(self) -> tuple[list[int], list[int], list[int]]:
        """By action, the positions of what is before it on its device, of its maker, and of that of
        the second of its pair; -1 for none. The first of a pair stands for both."""
        ends = np.append(np.arange(len(self)), -1)  # whose end is that of an action
        ends[np.flatnonzero(self.paired) + 1] -= 1
        before, maker = ends[np.arange(-1, len(self) - 1)], ends[self.maker]
        before[self.turns[:-1][np.diff(self.turns) > 0]] = -1
        second = np.where(self.paired, np.append(maker, -1)[1:], -1)
        return before.tolist(), maker.tolist(), second.tolist()

    @cached_property
    def steps(self) -> list[int]:
        """The positions of the actions that can run, of a pair the first, each after all that it
        waits for: every device goes on until it lacks a result, down the devices and up."""
        turns, pairs, (_, maker, second) = self.turns.tolist(), self.paired.tolist(), self.waits
        done, at, steps = [False] * len(pairs) + [True], turns[:-1], list[int]()
        devices, found = range(self.devices), -1
        while len(steps) > found:
            found = len(steps)
            for d in devices:
                j, until = at[d], turns[d + 1]
                while j < until and done[maker[j]] and done[second[j]]:
                    steps.append(j)
                    done[j] = True
                    j += 1 + pairs[j]
                at[d] = j
            devices = devices[::-1]
        return steps

    def to_text(self) -> str:
        """One line per device, actions in PyTorch's grammar: stage, kind, micro-batch.

        With several rows of places a line for each comes first: ``@`` and the device of each stage.
        Of one it is a "compute_only" file for PyTorch's ``_PipelineScheduleRuntime``.

        >>> print(Schedule.from_text("0F0 0F1 0B0 0B1; 1F0 1F1 1B0 1B1").to_text())
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1
        """
        lines = ["@" + ",".join(map(str, row)) for row in self.places if len(self.places) > 1]
        paired = iter(self.paired.tolist())
        for order in self.orders:
            line = ",".join(f"({a};" if next(paired) else f"{a}" for a in order)
            lines.append(re.sub(r"(\(\w+;),(\w+)", r"\1\2)OVERLAP_F_B", line))
        return "\n".join(lines)

    @classmethod
    def from_text(cls, text: str, name: str = "") -> "Schedule":
        """The schedule written in ``text``: a line (or a part between ``;``) per device.

        Actions such as ``0F3`` are separated by commas or spaces; ``(0F1;1B0)OVERLAP_F_B`` is a
        forward and a backward at once. A stage is placed on the first device that names it; lines
        of ``@`` and a device for each stage place rows, which the micro-batches take in turn.
        Raises ScheduleError for any other word, and for a stage number left out.

        >>> Schedule.from_text("@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1").replicas
        2
        """
        text = re.sub(r"\(([^();]*);([^();]*)\)OVERLAP_F_B", r"\1+ \2", text)
        orders, pairs, places = list[list[Action]](), set[Action](), list[list[int]]()
        for line in re.split(r"[\n;]", text.strip().strip(";")):
            words, placing = re.findall(r"[^,\s]+", line), line.lstrip().startswith("@")
            read = re.compile(r"@?(\d{1,8})" if placing else r"(\d{1,8})([FBIW])(\d{1,8})(\+?)")
            if wrong := [word for word in words if not read.fullmatch(word)]:
                raise ScheduleError(
                    f"cannot read {short(wrong[0])}; write stage, kind (F forward, B backward, I "
                    f"input and W weight gradient) and micro-batch, as in 0F3, and places as in "
                    f"@0,1,2,3"
                )
            if placing:
                places.append([int(word.strip("@")) for word in words])
                continue
            orders.append([])
            for stage, kind, number, paired in (read.findall(word)[0] for word in words):
                orders[-1].append(Action(kind, int(stage), int(number)))
                pairs |= {orders[-1][-1]} if paired else set()
        if not places:  # each stage on the first device that names it
            first = {a.stage: d for d, order in reversed([*enumerate(orders)]) for a in order}
            missing = next(s for s in range(len(first) + 1) if s not in first)
            if missing < max(first, default=0) or not first:
                raise ScheduleError(f"stage {missing} has no action; stages count from 0")
            places = [[first[s] for s in range(len(first))]]
        if len(counts := {len(place) for place in places}) > 1:
            raise ScheduleError(f"lines of @ have a device for every stage, got {sorted(counts)}")
        return cls.of(orders, places, name, pairs)


def sources(kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """int64 [actions, 2]: the positions of the actions whose results each uses, -1 for none."""
    shape = int(stage.max(initial=0)) + 3, int(microbatch.max(initial=0)) + 1
    activations, gradient = np.full(shape, -1), np.full(shape, -1)  # stage s at row s + 1
    forward, backward = kind == 0, (kind == 1) | (kind == 2)
    activations[stage[forward] + 1, microbatch[forward]] = np.flatnonzero(forward)
    gradient[stage[backward] + 1, microbatch[backward]] = np.flatnonzero(backward)
    own = np.where(backward, activations[stage + 1, microbatch], gradient[stage + 1, microbatch])
    own = np.where(forward, activations[stage, microbatch], own)
    return np.stack([own, np.where(backward, gradient[stage + 2, microbatch], -1)], axis=1)
