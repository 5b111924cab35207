"""A pipeline schedule: in which order each device does its forwards and backwards.

1F1B, 3 stages, 4 micro-batches (row = device, F and B with the micro-batch's number):

    rank 0     F0 F1 F2 B0 F3 B1 B2 B3      warm-up: as many forwards as there are
    rank 1     F0 F1 B0 F2 B1 F3 B2 B3      stages behind; then one backward for
    rank 2     F0 B0 F1 B1 F2 B2 F3 B3      each forward; then the rest

Only the order is here. Who makes such orders is in schedules.py, what an action waits for in
needs.py, and how long it takes in simulate.py.

Where several copies of the model share the weights out (ZeRO 3, FSDP), the order also says when
those of a stage are gathered and dropped, and when its gradients are summed over the copies:

    rank 0     0UNSHARD F0 F1 F2 B0 F3 B1 B2 B3 0REDUCE_GRAD 0RESHARD
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, compress, pairwise
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan import html
from tiledask.plan.pipelines.generators.messages import with_messages

__all__ = ["KINDS", "SHARDING", "Action", "Columns", "Schedule", "WeightColumns"]


class Action(NamedTuple):
    """One thing a device does.

    >>> str(Action("F", 0, 3))
    '0F3'
    """

    kind: str
    """F forward, B full backward, I gradient of the input, W gradient of the weights; or one of
    SHARDING."""
    stage: int
    microbatch: int = -1
    """-1: of all, where weights are gathered or dropped, or gradients summed."""

    def __str__(self) -> str:
        number = "" if self.kind in SHARDING else self.microbatch
        return f"{self.stage}{self.kind}{number}"


KINDS = "FBIW"
"""The kinds of actions; a column of kinds holds positions in this word."""
SHARDING = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
"""What is done with a stage's weights where each copy of the model holds a part of them, in
PyTorch's words: they are gathered from all copies, dropped but for the part; and the gradients are
summed over the copies, each keeping its part."""


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


class WeightColumns(NamedTuple):
    """What devices do with their stages' weights, in columns: device after device, in order."""

    device: np.ndarray
    """int32."""
    turn: np.ndarray
    """int64: how many actions of its device come before."""
    kind: np.ndarray
    """int8: positions in SHARDING."""
    stage: np.ndarray
    """int32."""

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, int]]) -> "WeightColumns":
        """(device, turn, kind, stage) of each."""
        columns = list(zip(*rows, strict=True)) or [()] * 4
        types = (np.int32, np.int64, np.int8, np.int32)
        return cls(*(np.array(c, t) for c, t in zip(columns, types, strict=True)))


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
    sharding: WeightColumns = field(default_factory=lambda: WeightColumns.of(()))
    """What is done with weights between the actions; nothing where each copy of the model has all
    of them."""

    @classmethod
    def of(
        cls,
        orders: Iterable[Iterable[Action]],
        place: Iterable[int] | Iterable[Iterable[int]],
        name: str = "",
        paired: Iterable[Iterable[bool]] | None = None,
    ) -> "Schedule":
        """The schedule with these actions on each device, those of SHARDING among them. Raises
        ScheduleError for other kinds.

        ``place``: the device of each stage, or a row of them for each pipeline. ``paired``, like
        the orders: which forwards run at once with the backward after them.
        """
        rows = [list(order) for order in orders]
        pairs: list[Any] = [False] * len(rows) if paired is None else [list(r) for r in paired]
        on_weights = []
        for device, row in enumerate(rows):
            for action in row:
                if action.kind not in KINDS and action.kind not in SHARDING:
                    raise ScheduleError(
                        f"{action} on rank {device}: kinds are F, B, I, W, and of what is done "
                        f"with weights {', '.join(SHARDING)}"
                    )
            computes = [action.kind in KINDS for action in row]
            before = [0, *accumulate(computes)]
            on_weights += [
                (device, turn, SHARDING.index(action.kind), action.stage)
                for action, turn in zip(row, before, strict=False)
                if action.kind in SHARDING
            ]
            rows[device] = list(compress(row, computes))
            if paired is not None:
                pairs[device] = list(compress(pairs[device], computes))
        columns = (
            Columns.of(
                [KINDS.index(a.kind) for a in row],
                [a.stage for a in row],
                [a.microbatch for a in row],
                pair,
            )
            for row, pair in zip(rows, pairs, strict=True)
        )
        made = cls.of_columns(columns, place, name)
        return replace(made, sharding=WeightColumns.of(on_weights)) if on_weights else made

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

    @cached_property
    def lines(self) -> tuple[tuple[Action, ...], ...]:
        """The orders, with what is done with weights where its turn is."""
        found = [list[Action]() for _ in range(self.devices)]
        done = [0] * self.devices
        for device, turn, kind, stage in zip(*(c.tolist() for c in self.sharding), strict=True):
            found[device] += self.orders[device][done[device] : turn]
            found[device].append(Action(SHARDING[kind], stage))
            done[device] = turn
        rest = (order[n:] for order, n in zip(self.orders, done, strict=True))
        return tuple((*line, *last) for line, last in zip(found, rest, strict=True))

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
        both += zip(self.sharding, other.sharding, strict=True)
        return self.places == other.places and all(np.array_equal(*each) for each in both)

    def __hash__(self) -> int:
        return hash((self.places, len(self), self.kind.tobytes(), self.microbatch.tobytes()))

    def to_text(self, communication: str = "") -> str:
        """One line per device, actions in PyTorch's grammar: stage, kind, micro-batch.

        With several pipelines a line for each comes first: ``@`` and the device of each stage.
        A schedule of one pipeline that says nothing of weights is a file for PyTorch's
        ``_PipelineScheduleRuntime._load_csv``, "compute_only".

        ``communication``: with messages between devices, a file that PyTorch loads as
        "compute_comms". "waits": sends, receives, and the waits that PyTorch demands from 2.15 on;
        "sends": without waits, which older ones don't know. PyTorch then gathers weights and sums
        and scales gradients only where its file says so: ``td.shard_weights(schedule, 3)`` says it
        as PyTorch does. Raises ScheduleError where gradients would not be summed, where a stage is
        on several devices, and for other words.

        >>> print(Schedule.from_text("0F0 0F1 0B0 0B1; 1F0 1F1 1B0 1B1").to_text())
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1
        >>> print(Schedule.from_text("0F0; 1F0").to_text("waits"))
        0F0,0SEND_F0,0WAIT_SEND_F0
        1RECV_F0,1F0
        """
        if communication:
            self._check_for_messages(communication)
            words = with_messages([*self._blocks()], self.place, communication == "waits")
        else:
            words = [[word for word, _ in row] for row in self._blocks()]
        heads = ["@" + ",".join(map(str, row)) for row in self.places] if self.pipelines > 1 else []
        return "\n".join([*heads, *map(",".join, words)])

    def _blocks(self) -> Iterator[Iterator[tuple[str, tuple[Action, ...]]]]:
        """Of each device, what it does at once, an action or a pair, and how that is written."""

        def of(line: Iterable[Action], paired: list[bool]) -> Iterator[tuple[str, Any]]:
            rest, pair = iter(line), iter(paired)
            for action in rest:
                second = next(rest, None) if action.kind in KINDS and next(pair) else None
                if second is None:
                    yield str(action), (action,)
                else:
                    next(pair)
                    yield f"({action};{second})OVERLAP_F_B", (action, second)

        for line, paired in zip(self.lines, np.split(self.paired, self.turns[1:-1]), strict=True):
            yield of(line, paired.tolist())

    def _check_for_messages(self, communication: str) -> None:
        if communication not in ("sends", "waits"):
            raise ScheduleError(
                f"a schedule is written with its 'sends' (and receives), or with 'waits' for them "
                f"too, got {short(communication)}; without a word, only with its actions"
            )
        if self.pipelines > 1:
            raise ScheduleError(
                f"PyTorch's files have one pipeline, each stage on one device, and {self!r} has "
                f"{self.pipelines}; to_text() without communication is read by Schedule.from_text"
            )
        kept = self.sharding
        summed = set(kept.stage[kept.kind == SHARDING.index("REDUCE_GRAD")].tolist())
        if self.trains and (missing := set(range(self.stages)) - summed):
            raise ScheduleError(
                f"PyTorch sums and scales the gradients of a stage where its file has REDUCE_GRAD, "
                f"and stage {min(missing)} has none; write td.shard_weights(schedule, 3), which "
                f"says when, as PyTorch itself does"
            )

    @classmethod
    def from_text(cls, text: str, name: str = "") -> "Schedule":
        """The schedule written in ``text``: a line (or a part between ``;``) per device.

        Actions such as ``0F3`` are separated by commas or spaces; ``(0F1;1B0)OVERLAP_F_B`` is a
        forward and a backward at once. PyTorch's CSV files can be read, with communication or
        without: empty cells are left out, and so are sends, receives and waits for them or for a
        sum of gradients, which follow from the actions. ``0UNSHARD``, ``0RESHARD`` and
        ``0REDUCE_GRAD`` are what is done with the weights of stage 0, and are kept.
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
        rows = [[w for w in row if w and not _COMMUNICATES.fullmatch(w)] for row in words]
        orders = [[_read(part) for w in row for part in w.split("+")] for row in rows]
        paired = [
            [n == 0 < w.count("+") for w in row for n in range(1 + w.count("+"))] for row in rows
        ]
        places = [_read_devices(head) for head in heads]
        if not places:  # each stage on the first device that names it
            place: dict[int, int] = {}
            for device, order in enumerate(orders):
                for action in order:
                    if action.kind in KINDS:
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
        gathers = int((self.sharding.kind == 0).sum())
        sharded = f", {gathers} gathers of weights" if len(self.sharding.kind) else ""
        return (
            f"Schedule({name}{self.stages} stages on {self.devices} devices, "
            f"{self.microbatches} micro-batches, {len(self)} actions{sharded})"
        )

    def _repr_html_(self) -> str:
        cell = "<td style='background:{};color:#000'>{}</td>"
        cells = [[cell.format(_COLOURS.get(a.kind, "#fff"), a) for a in o] for o in self.lines]
        rows = "".join(f"<tr><th>rank {d}</th>{''.join(c)}</tr>" for d, c in enumerate(cells))
        return f"<table><caption>{html.words(repr(self))}</caption>{rows}</table>"


_COLOURS = {"F": "#a6cee3", "B": "#b2df8a", "I": "#fdbf6f", "W": "#cab2d6"}


_COMMUNICATES = re.compile(r"\d+(((WAIT_)?SEND|RECV)_[FB]\d*|WAIT_REDUCE_GRAD)")
"""PyTorch's words for what follows from the actions."""


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
    if on_weights := re.fullmatch(rf"(\d{{1,8}})({'|'.join(SHARDING)})\d*", word):
        return Action(on_weights[2], int(on_weights[1]))
    if not match:
        raise ScheduleError(
            f"cannot read {short(word)} as an action; write stage, kind and micro-batch, as in "
            f"0F3, with F forward, B backward, I input gradient, W weight gradient"
        )
    return Action(match[2], int(match[1]), int(match[3]))
