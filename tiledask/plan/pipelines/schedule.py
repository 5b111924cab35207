"""A pipeline schedule: in which order each device does its forwards and backwards.

1F1B, 3 stages, 4 micro-batches (row = device, F and B with the micro-batch's number):

    rank 0     F0 F1 F2 B0 F3 B1 B2 B3      warm-up: as many forwards as there are
    rank 1     F0 F1 B0 F2 B1 F3 B2 B3      stages behind; then one backward for
    rank 2     F0 B0 F1 B1 F2 B2 F3 B3      each forward; then the rest

Beside its turn, an action waits for results; where one stage does B and the next I, each needs the
one that is there:

    F(s, i)  needs  F(s-1, i)                      activations from the stage before
    B(s, i)  needs  F(s, i) and B(s+1, i)          its own activations, gradient from behind
    I(s, i)  needs  F(s, i) and I(s+1, i)          the gradient of the input alone
    W(s, i)  needs  I(s, i)                        the gradient of the weights
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short

__all__ = ["KINDS", "Action", "Schedule", "sources"]

KINDS = "FBIW"
"""The kinds of actions; a column of kinds holds positions in this word."""


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
    several (Chimera, DualPipe): then micro-batch i takes the pipeline of number i mod pipelines.

    >>> s = Schedule.from_text("0F0,0B0; 1F0,1B0")
    >>> s.devices, s.stages, s.microbatches, s.place
    (2, 2, 1, (0, 1))
    >>> s == Schedule.from_text(s.to_text())
    True
    """

    orders: tuple[tuple[Action, ...], ...]
    """One row of actions per device."""
    places: tuple[tuple[int, ...], ...]
    """Per pipeline, the device of each stage."""
    pairs: frozenset[Action] = frozenset()
    """The forwards that a device does at once with the backward after them."""
    name: str = field(default="", compare=False)
    kind: np.ndarray = field(init=False, compare=False)
    """int32 [actions], device after device: positions in KINDS."""
    stage: np.ndarray = field(init=False, compare=False)
    microbatch: np.ndarray = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kinds, *numbers = zip(*self, strict=True) if len(self) else ((), (), ())
        columns = map(KINDS.index, kinds), *numbers
        for name, column in zip(("kind", "stage", "microbatch"), columns, strict=True):
            object.__setattr__(self, name, np.fromiter(column, np.int32, len(self)))

    @classmethod
    def of(
        cls,
        orders: Iterable[Iterable[Action]],
        place: Iterable[int] | Iterable[Iterable[int]],
        name: str = "",
        pairs: Iterable[Action] = (),
    ) -> "Schedule":
        """The schedule with these actions on each device, whose stages are on the devices of
        ``place``, or of a row for each pipeline. Raises ScheduleError for other kinds."""
        rows = tuple(map(tuple, orders))
        if unknown := {action.kind for row in rows for action in row} - {*KINDS}:
            raise ScheduleError(f"the kinds are F, B, I and W, got {', '.join(sorted(unknown))}")
        places = np.atleast_2d(np.array(list(place), int)).tolist()
        return cls(rows, tuple(map(tuple, places)), frozenset(pairs), name)

    @property
    def devices(self) -> int:
        return len(self.orders)

    @property
    def stages(self) -> int:
        return len(self.places[0])

    @property
    def pipelines(self) -> int:
        """How many ways there are through the devices."""
        return len(self.places)

    @property
    def replicas(self) -> int:
        """On how many devices a stage is, at most."""
        return max(len(self.holders(stage)) for stage in range(self.stages))

    def holders(self, stage: int) -> tuple[int, ...]:
        """The devices that have ``stage``, in the order in which micro-batches come to them."""
        return tuple(dict.fromkeys(place[stage] for place in self.places))

    def holder(self, stage: int, microbatch: int) -> int:
        """The device on which ``stage`` works on ``microbatch``."""
        return self.places[microbatch % len(self.places)][stage]

    @property
    def place(self) -> tuple[int, ...]:
        """The device of each stage. Raises ScheduleError where one is on several devices."""
        if self.replicas > 1:
            raise ScheduleError(f"a stage is on {self.replicas} devices; use holder(stage, number)")
        return self.places[0]

    @cached_property
    def microbatches(self) -> int:
        """One more than the largest micro-batch number."""
        return 1 + int(self.microbatch.max(initial=-1))

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward."""
        return bool(self.kind.any())

    def actions(self, device: int) -> tuple[Action, ...]:
        """What ``device`` does, in order."""
        return self.orders[device]

    def __iter__(self) -> Iterator[Action]:
        """All actions, device by device."""
        return chain.from_iterable(self.orders)

    def __len__(self) -> int:
        return sum(map(len, self.orders))

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return (
            f"Schedule({name}{self.stages} stages on {self.devices} devices, "
            f"{self.microbatches} micro-batches, {len(self)} actions)"
        )

    @cached_property
    def turns(self) -> np.ndarray:
        """int64 [devices + 1]: where each device's actions begin, and where the last one's end."""
        return np.cumsum([0, *map(len, self.orders)], dtype=np.int64)

    @cached_property
    def device(self) -> np.ndarray:
        """int32 [actions]: the device of each."""
        return np.repeat(np.arange(self.devices, dtype=np.int32), np.diff(self.turns))

    @cached_property
    def paired(self) -> np.ndarray:
        """bool [actions]: whether the device does this and the action after it at once."""
        if not self.pairs:
            return np.zeros(len(self), np.bool_)
        return np.fromiter((action in self.pairs for action in self), np.bool_, len(self))

    @cached_property
    def is_complete(self) -> bool:
        """Whether all that there has to be is there once, in its place, and pairs are pairs."""
        kind, stage, number = self.kind, self.stage, self.microbatch
        shape = self.stages, self.microbatches
        if np.prod(shape) > len(kind) or not len(kind):  # before anything is made for each of them
            return False
        if min(stage.min(), number.min()) < 0 or stage.max() >= self.stages:
            return False
        if (np.array(self.places)[number % self.pipelines, stage] != self.device).any():
            return False
        at = np.ravel_multi_index((kind, stage, number), (4, *shape))
        F, B, I, W = np.bincount(at, minlength=4 * shape[0] * shape[1]).reshape(4, *shape)
        if (F != 1).any() or (I != W).any() or np.any(B + I - int(self.trains)):
            return False
        first = np.flatnonzero(self.paired)
        ahead = np.append(kind, 3)[first + 1], np.append(self.device, -1)[first + 1]
        both = (kind[first] == 0) & np.isin(ahead[0], (1, 2)) & (self.device[first] == ahead[1])
        return bool(both.all())

    @cached_property
    def maker(self) -> np.ndarray:
        """int64 [actions]: the position of the one action whose result each waits for, -1 for none;
        what else it uses comes before that."""
        own, behind = sources(self.kind, self.stage, self.microbatch).T
        maker: np.ndarray = np.where(behind < 0, own, behind)
        return maker

    @cached_property
    def steps(self) -> list[tuple[int, int, int]]:
        """Of each action that can run, after those that it waits for, the positions: of it, of the
        one before it on its device, and of the one whose result it waits for; -1 for none."""
        return _run_order(self.turns.tolist(), self.paired, self.maker)

    @property
    def runs(self) -> bool:
        """Whether every action is there and can run."""
        return self.is_complete and len(self.steps) == len(self)

    # -- text -----------------------------------------------------------------------------------

    def to_text(self) -> str:
        """One line per device, actions in PyTorch's grammar: stage, kind, micro-batch.

        With several pipelines a line for each comes first: ``@`` and the device of each stage. Of
        one pipeline it is a "compute_only" file for PyTorch's ``_PipelineScheduleRuntime``.

        >>> print(Schedule.from_text("0F0 0F1 0B0 0B1; 1F0 1F1 1B0 1B1").to_text())
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1
        """
        lines = ["@" + ",".join(map(str, row)) for row in self.places] if self.pipelines > 1 else []
        for order in self.orders:
            rest, words = iter(order), []
            for action in rest:
                second = next(rest, None) if action in self.pairs else None
                words.append(f"({action};{second})OVERLAP_F_B" if second else f"{action}")
            lines.append(",".join(words))
        return "\n".join(lines)

    @classmethod
    def from_text(cls, text: str, name: str = "") -> "Schedule":
        """The schedule written in ``text``: a line (or a part between ``;``) per device.

        Actions such as ``0F3`` are separated by commas or spaces; ``(0F1;1B0)OVERLAP_F_B`` is a
        forward and a backward at once. A stage is placed on the first device that names it; lines
        of ``@`` and a device for each stage place pipelines, which the micro-batches take in turn.
        Raises ScheduleError for any other word, and for a stage number left out; whether the order
        can run, :func:`tiledask.validate` says.

        >>> Schedule.from_text("@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1").replicas
        2
        """
        text = re.sub(r"\(([^();]*);([^();]*)\)OVERLAP_F_B", r"\1+\2", text)
        orders, pairs, places = list[list[Action]](), set[Action](), list[list[int]]()
        for line in re.split(r"[\n;]", text.strip().strip(";")):
            words = [word for word in re.split(r"[,\s]+", line) if word]
            if words and words[0].startswith("@"):
                words[0] = words[0][1:]
                places.append([int(_read(r"(\d{1,8})", word)[0]) for word in words])
                continue
            parts = [[_read(_ACTION, part) for part in word.split("+")] for word in words]
            blocks = [[Action(kind, int(s), int(i)) for s, kind, i in each] for each in parts]
            orders.append([action for block in blocks for action in block])
            pairs |= {action for block in blocks for action in block[:-1]}
        if not places:  # each stage on the first device that names it
            first = {a.stage: d for d, order in reversed([*enumerate(orders)]) for a in order}
            missing = next(s for s in range(len(first) + 1) if s not in first)
            if missing < max(first, default=0) or not first:
                raise ScheduleError(f"stage {missing} has no action; stages count from 0")
            places = [[first[s] for s in range(len(first))]]
        if len(counts := {len(place) for place in places}) > 1:
            raise ScheduleError(f"lines of @ have a device for every stage, got {sorted(counts)}")
        return cls.of(orders, places, name, pairs)


_ACTION = r"(\d{1,8})([FBIW])(\d{1,8})"


def _read(pattern: str, word: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, word)
    if not match:
        raise ScheduleError(
            f"cannot read {short(word)}; write stage, kind (F forward, B backward, I input and W "
            f"weight gradient) and micro-batch, as in 0F3, and places as in @0,1,2,3"
        )
    return match.groups()


# -- what waits for what, and an order in which all can run ----------------------------------------


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


def _run_order(
    turns: list[int], paired: np.ndarray, maker: np.ndarray
) -> list[tuple[int, int, int]]:
    """The steps of `Schedule.steps`: every device goes on until it lacks a result, down the devices
    and up. Of a pair the second comes first, as an action of no length, and then the first, which
    takes the time of both; what follows either follows the first."""
    many = len(maker)
    second = np.append(False, paired[:-1])
    ends = np.append(np.arange(many) - second, -1)  # whose end is that of an action
    waits, before = ends[maker].tolist(), ends[np.arange(-1, many - 1)].tolist()
    for first in turns[:-1]:
        if first < many:
            before[first] = -1
    pairs, done = paired.tolist(), [False] * many + [True]
    at, devices, steps = turns[:-1], range(len(turns) - 1), list[tuple[int, int, int]]()
    found = -1
    while len(steps) > found:
        found = len(steps)
        for d in devices:
            j, until = at[d], turns[d + 1]
            while j < until and done[waits[j]]:
                first = j
                if not pairs[j]:
                    steps.append((j, before[j], waits[j]))
                    j += 1
                elif done[waits[j + 1]]:
                    steps += (j + 1, before[j], waits[j + 1]), (j, j + 1, waits[j])
                    j += 2
                else:
                    break
                done[first] = True
            at[d] = j
        devices = devices[::-1]
    return steps
