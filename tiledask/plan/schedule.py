"""A pipeline schedule: in which order each device does its forwards and backwards.

1F1B, 3 stages, 4 micro-batches (row = device, F and B with the micro-batch's number):

    device 0   F0 F1 F2 B0 F3 B1 B2 B3      warm-up: as many forwards as there are
    device 1   F0 F1 B0 F2 B1 F3 B2 B3      stages behind; then one backward for
    device 2   F0 B0 F1 B1 F2 B2 F3 B3      each forward; then the rest

Only the order is here. Who makes such orders is in schedules.py, what an action waits for in
needs.py, and how long it takes in simulate.py.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError

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


class Columns(NamedTuple):
    """The actions of one device."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray

    @classmethod
    def of(cls, kind: Any, stage: Any, microbatch: Any) -> "Columns":
        """Numbers are repeated to the length of the longest."""
        kind, stage, microbatch = np.broadcast_arrays(kind, stage, microbatch)
        return cls(kind.astype(np.int8), stage.astype(np.int32), microbatch.astype(np.int32))

    @classmethod
    def none(cls) -> "Columns":
        return cls.of([], [], [])


@dataclass(frozen=True, repr=False, eq=False)
class Schedule:
    """The order of actions on each device, and which device holds each stage.

    Kept as flat columns, device after device, so that millions of actions are no burden.

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
    turns: np.ndarray
    """int64 [devices + 1]: where each device's actions begin, and where the last one's end."""
    place: tuple[int, ...]
    """The device of each stage."""
    name: str = ""

    @classmethod
    def of(
        cls, orders: Iterable[Iterable[Action]], place: Iterable[int], name: str = ""
    ) -> "Schedule":
        """The schedule with these actions on each device. Raises ScheduleError for other kinds."""
        rows = [list(order) for order in orders]
        for device, row in enumerate(rows):
            for action in row:
                if action.kind not in KINDS:
                    raise ScheduleError(f"{action} on device {device}: kinds are F, B, I, W")
        columns = (
            Columns.of(
                [KINDS.index(a.kind) for a in row],
                [a.stage for a in row],
                [a.microbatch for a in row],
            )
            for row in rows
        )
        return cls.of_columns(columns, place, name)

    @classmethod
    def of_columns(
        cls, rows: Iterable["Columns"], place: Iterable[int], name: str = ""
    ) -> "Schedule":
        """The schedule whose device d does the actions of the d-th of ``rows``."""
        rows = list(rows)
        turns = np.cumsum([0, *(len(row.kind) for row in rows)], dtype=np.int64)
        columns = (np.concatenate(c) for c in zip(*rows, strict=True)) if rows else Columns.none()
        return cls(*columns, turns, tuple(place), name)

    @property
    def devices(self) -> int:
        return len(self.turns) - 1

    @property
    def stages(self) -> int:
        return len(self.place)

    @cached_property
    def microbatches(self) -> int:
        """One more than the largest micro-batch number."""
        return 1 + int(self.microbatch.max(initial=-1))

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward."""
        return bool(self.kind.any())

    @cached_property
    def device(self) -> np.ndarray:
        """int32 [actions]: the device of each."""
        return np.repeat(np.arange(self.devices, dtype=np.int32), np.diff(self.turns))

    @cached_property
    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """One row of actions per device."""
        columns = ([KINDS[k] for k in self.kind.tolist()], self.stage.tolist(),
                   self.microbatch.tolist())  # fmt: skip
        actions = list(map(Action, *columns))
        return tuple(tuple(actions[a:b]) for a, b in pairwise(self.turns.tolist()))

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
        columns = ("kind", "stage", "microbatch", "turns")
        return self.place == other.place and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in columns
        )

    def __hash__(self) -> int:
        return hash((self.place, len(self), self.kind.tobytes(), self.microbatch.tobytes()))

    def to_text(self) -> str:
        """One line per device, actions in PyTorch's grammar: stage, kind, micro-batch.

        >>> print(Schedule.from_text("0F0 0F1 0B0 0B1; 1F0 1F1 1B0 1B1").to_text())
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1
        """
        return "\n".join(",".join(map(str, order)) for order in self.orders)

    @classmethod
    def from_text(cls, text: str, name: str = "") -> "Schedule":
        """The schedule written in ``text``: a line (or a part between ``;``) per device.

        Actions such as ``0F3`` are separated by commas or spaces. PyTorch's CSV files can be
        read: empty cells are skipped, and so are sends, receives and sharding, which follow from
        the actions; of an overlapped pair, ``(0F0;1B0)OVERLAP_F_B``, the first comes first.
        A stage is placed on the first device that names it. Raises ScheduleError for any other
        word, and for a stage number left out.
        Whether the order can run is another question: see :func:`tiledask.plan.needs.validate`.
        """
        text = re.sub(r"\(([^();]*);([^();]*)\)OVERLAP_F_B", r"\1,\2", text)
        lines = re.split(r"[\n;]", text.strip().strip(";"))
        words = (re.split(r"[,\s]+", line) for line in lines)
        orders = [[_read(w) for w in row if w and not _COMMUNICATES.fullmatch(w)] for row in words]
        place: dict[int, int] = {}
        for device, order in enumerate(orders):
            for action in order:
                place.setdefault(action.stage, device)
        missing = set(range(1 + max(place, default=-1))) - set(place)
        if missing or not place:
            raise ScheduleError(
                f"every stage from 0 to the last must be on some device; stage "
                f"{min(missing, default=0)} has no action at all"
            )
        return cls.of(orders, (place[s] for s in range(len(place))), name)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return (
            f"Schedule({name}{self.stages} stages on {self.devices} devices, "
            f"{self.microbatches} micro-batches, {len(self)} actions)"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>device {d}</th>{''.join(map(_cell, order))}</tr>"
            for d, order in enumerate(self.orders)
        )
        return f"<table><caption>{escape(repr(self))}</caption>{rows}</table>"


_COLOURS = {"F": "#a6cee3", "B": "#b2df8a", "I": "#fdbf6f", "W": "#cab2d6"}


def _cell(action: Action) -> str:
    return f"<td style='background:{_COLOURS.get(action.kind, '#fff')};color:#000'>{action}</td>"


_COMMUNICATES = re.compile(r"\d+((SEND|RECV)_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
"""PyTorch's words for what is no compute."""


def _read(word: str) -> Action:
    match = re.fullmatch(r"(\d+)([FBIW])(\d+)", word)
    if not match:
        raise ScheduleError(
            f"cannot read {word!r} as an action; write stage, kind and micro-batch, as in 0F3, "
            f"with F forward, B backward, I input gradient, W weight gradient"
        )
    return Action(match[2], int(match[1]), int(match[3]))
