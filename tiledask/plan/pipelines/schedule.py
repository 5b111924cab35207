"""A pipeline schedule: in which order each device does its forwards and backwards.

1F1B, 3 stages, 4 micro-batches (row = device, F and B with the micro-batch's number):

    rank 0     F0 F1 F2 B0 F3 B1 B2 B3      warm-up: as many forwards as there are
    rank 1     F0 F1 B0 F2 B1 F3 B2 B3      stages behind; then one backward for
    rank 2     F0 B0 F1 B1 F2 B2 F3 B3      each forward; then the rest

Only the order is here. Who makes such orders is in schedules.py, what an action waits for in
needs.py, and how long it takes in simulate.py.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan import html

__all__ = ["KINDS", "Action", "Columns", "Schedule"]


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


KINDS = "FBIW"
"""The kinds of actions; a column of kinds holds positions in this word."""
_TYPES = (np.int8, np.int32, np.int32, np.bool_)


class Columns(NamedTuple):
    """The actions of one device."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    paired: np.ndarray

    @classmethod
    def of(cls, kind: Any, stage: Any, microbatch: Any, paired: Any = False) -> "Columns":
        """Numbers are repeated to the length of the longest."""
        columns = np.broadcast_arrays(kind, stage, microbatch, paired)
        return cls(*(c.astype(t) for c, t in zip(columns, _TYPES, strict=True)))

    @classmethod
    def none(cls) -> "Columns":
        return cls.of([], [], [])


@dataclass(frozen=True, repr=False, eq=False)
class Schedule:
    """The order of actions on each device, and which device holds each stage.

    Kept as flat columns, device after device, so that millions of actions are no burden.
    A stage may be on several devices (Chimera, DualPipe, PipeDream's replicated stages): then
    there are several pipelines through the devices, and micro-batch i takes the one of number
    i mod pipelines.

    >>> s = Schedule.from_text("0F0,0B0; 1F0,1B0")
    >>> s.devices, s.stages, s.microbatches, s.place
    (2, 2, 1, (0, 1))
    >>> s == Schedule.from_text(s.to_text())
    True
    """

    kind: np.ndarray
    """int8 [actions]: positions in KINDS."""
    stage: np.ndarray
    """int32 [actions]."""
    microbatch: np.ndarray
    """int32 [actions]."""
    paired: np.ndarray
    """bool [actions]: whether the device does this forward and the backward after it at once."""
    turns: np.ndarray
    """int64 [devices + 1]: where each device's actions begin, and where the last one's end."""
    places: tuple[tuple[int, ...], ...]
    """Per pipeline, the device of each stage."""
    name: str = ""

    @classmethod
    def of(
        cls,
        orders: Iterable[Iterable[Action]],
        place: Iterable[int] | Iterable[Iterable[int]],
        name: str = "",
        paired: Iterable[Iterable[bool]] | None = None,
    ) -> "Schedule":
        """The schedule with these actions on each device. Raises ScheduleError for other kinds.

        ``place``: the device of each stage, or a row of them for each pipeline. ``paired``, like
        the orders: which forwards run at once with the backward after them.
        """
        rows = [list(order) for order in orders]
        pairs: list[Any] = [False] * len(rows) if paired is None else [list(r) for r in paired]
        for device, row in enumerate(rows):
            for action in row:
                if action.kind not in KINDS:
                    raise ScheduleError(f"{action} on rank {device}: kinds are F, B, I, W")
        columns = (
            Columns.of(
                [KINDS.index(a.kind) for a in row],
                [a.stage for a in row],
                [a.microbatch for a in row],
                pair,
            )
            for row, pair in zip(rows, pairs, strict=True)
        )
        return cls.of_columns(columns, place, name)

    @classmethod
    def of_columns(
        cls,
        rows: Iterable["Columns"],
        place: Iterable[int] | Iterable[Iterable[int]],
        name: str = "",
    ) -> "Schedule":
        """The schedule whose device d does the actions of the d-th of ``rows``; see :meth:`of`."""
        rows = list(rows)
        turns = np.cumsum([0, *(len(row.kind) for row in rows)], dtype=np.int64)
        joined = Columns(*map(np.concatenate, zip(*rows, strict=True))) if rows else Columns.none()
        each = list[int | Iterable[int]](place)
        pipelines = tuple(tuple(map(int, row)) for row in each if isinstance(row, Iterable))
        only = tuple(int(device) for device in each if not isinstance(device, Iterable))
        return cls(*joined, turns=turns, places=pipelines or (only,), name=name)

    @property
    def devices(self) -> int:
        return len(self.turns) - 1

    @property
    def stages(self) -> int:
        return len(self.places[0])

    @property
    def pipelines(self) -> int:
        """How many ways there are through the devices, which the micro-batches take in turn."""
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
        for stage, place in enumerate(zip(*self.places, strict=True)):
            if len(set(place)) > 1:
                raise ScheduleError(
                    f"stage {stage} of {self!r} is on {len(set(place))} devices; places has a row "
                    f"for each pipeline, and holder(stage, microbatch) the device of a micro-batch"
                )
        return self.places[0]

    @cached_property
    def microbatches(self) -> int:
        """One more than the largest micro-batch number."""
        return 1 + int(self.microbatch.max(initial=-1))

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward."""
        return bool(self.kind.any())

    @cached_property
    def is_complete(self) -> bool:
        """Whether every stage sees every micro-batch forward once and, in training, backward
        once, each on the device that holds it."""
        stages, microbatches, stage = self.stages, self.microbatches, self.stage
        if stages * microbatches > len(self):  # before anything is made for each of them
            return False
        if stage.min(initial=0) < 0 or stage.max(initial=-1) >= stages:
            return False
        if self.microbatch.min(initial=0) < 0:
            return False
        if self.paired.any():  # a pair is a forward and a backward of one device
            first = np.flatnonzero(self.paired)
            second = np.minimum(first + 1, len(self) - 1)
            gradient = np.isin(self.kind[second], [KINDS.index("B"), KINDS.index("I")])
            alike = self.device[first] == self.device[second]
            if not (~self.kind[first].astype(bool) & gradient & alike).all():
                return False
        size, places = stages * microbatches, np.array(self.places)
        made = {kind: np.zeros(size, np.bool_) for kind in ("F", "BI", "I", "W")}
        counts = dict.fromkeys(made, 0)
        for device, (a, b) in enumerate(pairwise(self.turns.tolist())):  # without large temporaries
            kind, stage, number = self.kind[a:b], self.stage[a:b], self.microbatch[a:b]
            pipeline = number % len(places) if len(places) > 1 else 0
            if (places[pipeline, stage] != device).any():
                return False
            where = stage.astype(np.int64) * microbatches + number
            of_kind = {k: kind == code for code, k in enumerate(KINDS)}
            for kinds in made:
                rows = where[np.logical_or.reduce([of_kind[k] for k in kinds])]
                made[kinds][rows] = True
                counts[kinds] += len(rows)

        def once(kinds: str) -> bool:  # as many as there are places, and every place is taken
            return counts[kinds] == size and bool(made[kinds].all())

        return (
            once("F")
            and (not self.trains or once("BI"))
            and counts["I"] == counts["W"]
            and np.array_equal(made["I"], made["W"])
        )

    @cached_property
    def device(self) -> np.ndarray:
        """int32 [actions]: the device of each."""
        return np.repeat(np.arange(self.devices, dtype=np.int32), np.diff(self.turns))

    @cached_property
    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """One row of actions per device."""
        columns = (
            [KINDS[k] for k in self.kind.tolist()],
            self.stage.tolist(),
            self.microbatch.tolist(),
        )
        actions = list(map(Action, *columns))
        return tuple(tuple(actions[a:b]) for a, b in pairwise(self.turns.tolist()))

    def action(self, position: int) -> Action:
        """The action at a position of the columns."""
        columns = self.kind[position], self.stage[position], self.microbatch[position]
        kind, stage, microbatch = map(int, columns)
        return Action(KINDS[kind], stage, microbatch)

    def actions(self, device: int) -> tuple[Action, ...]:
        """What ``device`` does, in order."""
        return self.orders[device]

    def __iter__(self) -> Iterator[Action]:
        """All actions, device by device."""
        return chain.from_iterable(self.orders)

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        """Whether both do the same in the same order on the same devices, whatever their names."""
        if not isinstance(other, Schedule):
            return NotImplemented
        columns = ("kind", "stage", "microbatch", "paired", "turns")
        both = [(getattr(self, name), getattr(other, name)) for name in columns]
        return self.places == other.places and all(np.array_equal(*each) for each in both)

    def __hash__(self) -> int:
        return hash((self.places, len(self), self.kind.tobytes(), self.microbatch.tobytes()))

    def to_text(self) -> str:
        """One line per device, actions in PyTorch's grammar: stage, kind, micro-batch.

        With several pipelines a line for each comes first: ``@`` and the device of each stage.
        A schedule of one pipeline is a file for PyTorch's ``_PipelineScheduleRuntime._load_csv``,
        "compute_only".

        >>> print(Schedule.from_text("0F0 0F1 0B0 0B1; 1F0 1F1 1B0 1B1").to_text())
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1
        """
        heads = ["@" + ",".join(map(str, row)) for row in self.places] if self.pipelines > 1 else []
        return "\n".join([*heads, *(",".join(self._words(d)) for d in range(self.devices))])

    def _words(self, device: int) -> Iterator[str]:
        """What ``device`` does at once, an action or a pair, as it is written."""
        actions = iter(self.orders[device])
        pairs = iter(self.paired[slice(*self.turns[device : device + 2])].tolist())
        for action in actions:
            second = next(actions, None) if next(pairs) else None
            if second is None:
                yield str(action)
            else:
                next(pairs)
                yield f"({action};{second})OVERLAP_F_B"

    @classmethod
    def from_text(cls, text: str, name: str = "") -> "Schedule":
        """The schedule written in ``text``: a line (or a part between ``;``) per device.

        Actions such as ``0F3`` are separated by commas or spaces; ``(0F1;1B0)OVERLAP_F_B`` is a
        forward and a backward at once. PyTorch's CSV files can be read, with communication or
        without: empty cells are left out, and so are sends, receives and what is done with the
        weights of a stage that several copies of the model share out.
        A stage is placed on the first device that names it; lines of ``@`` and a device for each
        stage place pipelines, which the micro-batches take in turn. Raises ScheduleError for any
        other word, and for a stage number left out.
        Whether the order can run is another question: see :func:`tiledask.validate`.

        >>> Schedule.from_text("@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1").replicas
        2
        """
        text = re.sub(r"\(([^();]*);([^();]*)\)OVERLAP_F_B", r"\1+\2", text)
        lines = [line.strip() for line in re.split(r"[\n;]", text.strip().strip(";"))]
        heads = [line[1:] for line in lines if line.startswith("@")]
        words = [re.split(r"[,\s]+", line) for line in lines if not line.startswith("@")]
        rows = [[w for w in row if w and not _BESIDE.fullmatch(w)] for row in words]
        orders = [[_read(part) for w in row for part in w.split("+")] for row in rows]
        paired = [
            [n == 0 < w.count("+") for w in row for n in range(1 + w.count("+"))] for row in rows
        ]
        places = [_read_devices(head) for head in heads]
        if not places:  # each stage on the first device that names it
            place: dict[int, int] = {}
            for device, order in enumerate(orders):
                for action in order:
                    place.setdefault(action.stage, device)
            # of n different stages, one of 0 .. n is missing, or all of 0 .. n-1 are there
            missing = next((s for s in range(len(place) + 1) if s not in place), 0)
            if missing < len(place) or not place:
                raise ScheduleError(
                    f"every stage from 0 to the last must be on some device; stage {missing} has "
                    f"no action at all{'; stages count from 0' if missing == 0 else ''}"
                )
            places = [[place[s] for s in range(len(place))]]
        if len({len(place) for place in places}) > 1:
            raise ScheduleError(
                f"the pipelines have {' and '.join(str(len(place)) for place in places)} stages; "
                f"give each line of @ a device for every stage"
            )
        return cls.of(orders, places, name, paired)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return (
            f"Schedule({name}{self.stages} stages on {self.devices} devices, "
            f"{self.microbatches} micro-batches, {len(self)} actions)"
        )

    def _repr_html_(self) -> str:
        cell = "<td style='background:{};color:#000'>{}</td>"
        cells = [[cell.format(_COLOURS[a.kind], a) for a in o] for o in self.orders]
        rows = "".join(f"<tr><th>rank {d}</th>{''.join(c)}</tr>" for d, c in enumerate(cells))
        return f"<table><caption>{html.words(repr(self))}</caption>{rows}</table>"


_COLOURS = {"F": "#a6cee3", "B": "#b2df8a", "I": "#fdbf6f", "W": "#cab2d6"}


_BESIDE = re.compile(r"\d+((WAIT_)?SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|(WAIT_)?REDUCE_GRAD)\d*")
"""PyTorch's words for what is no action."""


def _read_devices(text: str) -> list[int]:
    words = [word for word in re.split(r"[,\s]+", text) if word]
    if not words or not all(word.isdecimal() and len(word) < 9 for word in words):
        raise ScheduleError(
            f"cannot read {short('@' + text)} as the places of a pipeline; write the device of "
            f"each stage, as in @0,1,2,3"
        )
    return [int(word) for word in words]


def _read(word: str) -> Action:
    match = re.fullmatch(r"(\d{1,8})([FBIW])(\d{1,8})", word)
    if not match:
        raise ScheduleError(
            f"cannot read {short(word)} as an action; write stage, kind and micro-batch, as in "
            f"0F3, with F forward, B backward, I input gradient, W weight gradient"
        )
    return Action(match[2], int(match[1]), int(match[3]))
