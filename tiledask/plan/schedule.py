"""A pipeline schedule: in which order each device does its forwards and backwards.

1F1B, 3 stages, 4 micro-batches (row = device, F and B with the micro-batch's number):

    device 0   F0 F1 F2 B0 F3 B1 B2 B3      warm-up: as many forwards as there are
    device 1   F0 F1 B0 F2 B1 F3 B2 B3      stages behind; then one backward for
    device 2   F0 B0 F1 B1 F2 B2 F3 B3      each forward; then the rest

Only the order is here. What an action waits for is in needs.py, how long it takes in
simulate.py.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ScheduleError

__all__ = [
    "KINDS",
    "Action",
    "Schedule",
    "eager_one_forward_one_backward",
    "gpipe",
    "interleaved",
    "looped_bfs",
    "naive",
    "one_forward_one_backward",
    "schedule",
    "schedules",
]


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


@dataclass(frozen=True, repr=False, eq=False)
class Schedule:
    """The order of actions on each device, and which device holds each stage.

    Kept as flat columns, device after device, so that millions of actions are no burden.

    >>> s = Schedule.from_text("0F0,0B0; 1F0,1B0")
    >>> s.devices, s.stages, s.microbatches, s.place
    (2, 2, 1, (0, 1))
    >>> s == schedule("gpipe", stages=2, microbatches=1)
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
            _Columns.of(
                [KINDS.index(a.kind) for a in row],
                [a.stage for a in row],
                [a.microbatch for a in row],
            )
            for row in rows
        )
        return cls.of_columns(columns, place, name)

    @classmethod
    def of_columns(
        cls, rows: Iterable["_Columns"], place: Iterable[int], name: str = ""
    ) -> "Schedule":
        """The schedule whose device d does the actions of the d-th of ``rows``."""
        rows = list(rows)
        turns = np.cumsum([0, *(len(row.kind) for row in rows)], dtype=np.int64)
        columns = (np.concatenate(c) for c in zip(*rows, strict=True)) if rows else _Columns.none()
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

        >>> print(schedule("gpipe", stages=2, microbatches=2).to_text())
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


# --- the schedules ---------------------------------------------------------------------


class _Columns(NamedTuple):
    """The actions of one device."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray

    @classmethod
    def of(cls, kind: Any, stage: Any, microbatch: Any) -> "_Columns":
        """Numbers are repeated to the length of the longest."""
        kind, stage, microbatch = np.broadcast_arrays(kind, stage, microbatch)
        return cls(kind.astype(np.int8), stage.astype(np.int32), microbatch.astype(np.int32))

    @classmethod
    def none(cls) -> "_Columns":
        return cls.of([], [], [])


def naive(stages: int, microbatches: int) -> Schedule:
    """Layer-wise execution: one micro-batch goes all the way forward and back, then the next.

    F0 .. .. B0 F1 .. .. B1      with equal stages each device
    .. F0 B0 .. .. F1 B1 ..      computes 1 / stages of the time
    """
    numbers = np.repeat(np.arange(microbatches), 2)
    kinds = np.tile([0, 1], microbatches)
    rows = (_Columns.of(kinds, s, numbers) for s in range(stages))
    return Schedule.of_columns(rows, range(stages), "naive")


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965, figure 2c).

    F0 F1 .. .. B0 B1      every device keeps the activations
    .. F0 F1 B0 B1 ..      of all micro-batches
    """
    numbers = np.tile(np.arange(microbatches), 2)
    kinds = np.repeat([0, 1], microbatches)
    rows = (_Columns.of(kinds, s, numbers) for s in range(stages))
    return Schedule.of_columns(rows, range(stages), "gpipe")


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """A backward as soon as there is one (PipeDream-flush; arXiv 2104.04473, figure 3).

    Stage s keeps the activations of at most stages - s micro-batches.
    """
    return _one_and_one(stages, microbatches, "1f1b", ahead=1)


def eager_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B with twice as many forwards ahead, so that results on their way are not waited for.

    Stage s keeps the activations of at most 2 (stages - s) - 1 micro-batches. While a result
    travels no longer than an action takes, its latency is paid only on the way in and out
    (eager-1F1B, arXiv 2211.05322).
    """
    return _one_and_one(stages, microbatches, "eager-1f1b", ahead=2)


def _one_and_one(stages: int, microbatches: int, name: str, ahead: int) -> Schedule:
    """Before its first backward a stage does ``ahead`` forwards for each stage behind it."""
    numbers = np.arange(microbatches)
    rows = (
        _alternate(_Columns.of(0, s, numbers), _Columns.of(1, s, numbers), ahead * (stages - 1 - s))
        for s in range(stages)
    )
    return Schedule.of_columns(rows, range(stages), name)


def interleaved(stages: int, microbatches: int, devices: int) -> Schedule:
    """1F1B with several chunks of layers per device (arXiv 2104.04473, section 2.2).

    Stage s is on device s mod devices; v = stages / devices. Micro-batches go in groups: a
    device takes a whole group through its first chunk, then through its next. Groups have
    ``devices`` micro-batches each; where that does not divide, there are fewer and larger
    groups, as even as possible.
    """
    chunks = _chunks(stages, devices)
    groups = _even_groups(microbatches, max(1, microbatches // devices))
    numbers = np.concatenate([np.tile(group, chunks) for group in groups])

    def walk(kind: int, device: int, order: range) -> _Columns:
        mine = device + devices * np.array(order)
        return _Columns.of(
            kind, np.concatenate([np.repeat(mine, len(group)) for group in groups]), numbers
        )

    rows = (
        _alternate(
            walk(0, d, range(chunks)),
            walk(1, d, range(chunks)[::-1]),
            warmup=2 * (devices - 1 - d) + (chunks - 1) * len(groups[0]),
        )
        for d in range(devices)
    )
    return Schedule.of_columns(rows, (s % devices for s in range(stages)), "interleaved")


def looped_bfs(stages: int, microbatches: int, devices: int) -> Schedule:
    """GPipe with several chunks per device: every micro-batch through a chunk, then the next.

    Breadth-first pipeline parallelism (arXiv 2211.05953). Stage s is on device s mod devices.
    """
    chunks = _chunks(stages, devices)
    numbers = np.tile(np.arange(microbatches), 2 * chunks)
    kinds = np.repeat([0, 1], chunks * microbatches)

    def row(device: int) -> _Columns:
        there = np.arange(device, stages, devices)
        back_and_forth = np.concatenate([there, there[::-1]])
        return _Columns.of(kinds, np.repeat(back_and_forth, microbatches), numbers)

    rows = map(row, range(devices))
    return Schedule.of_columns(rows, (s % devices for s in range(stages)), "looped-bfs")


def _alternate(forwards: _Columns, backwards: _Columns, warmup: int) -> _Columns:
    """``warmup`` forwards, then forward and backward in turns, then the backwards left over."""
    count = len(forwards.kind)
    warmup = min(warmup, count)
    turn = np.arange(count)
    of_forward = np.where(turn < warmup, turn, 2 * turn - warmup)
    of_backward = np.where(turn < count - warmup, 2 * turn + warmup + 1, turn + count)
    rows = []
    for f, b in zip(forwards, backwards, strict=True):
        row = np.empty(2 * count, f.dtype)
        row[of_forward], row[of_backward] = f, b
        rows.append(row)
    return _Columns(*rows)


def _even_groups(count: int, groups: int) -> list[range]:
    """0 .. count - 1 in ``groups`` runs, the larger ones first."""
    size, extra = divmod(count, groups)
    starts = [g * size + min(g, extra) for g in range(groups + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def _chunks(stages: int, devices: int) -> int:
    _count(devices, "devices")
    if stages % devices:
        near = {stages - stages % devices, stages + devices - stages % devices} - {0}
        raise ScheduleError(
            f"every device needs equally many stages, and {stages} stages do not divide over "
            f"{devices} devices; use {' or '.join(map(str, sorted(near)))} stages"
        )
    return stages // devices


schedules: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "eager-1f1b": eager_one_forward_one_backward,
    "interleaved": interleaved,
    "looped-bfs": looped_bfs,
}
"""The schedules by name. Each takes stages and microbatches; the looped ones also devices."""


def schedule(
    name: str, stages: int, microbatches: int, *, forward_only: bool = False, **options
) -> Schedule:
    """The schedule called ``name`` (see :data:`schedules`), for any number of each.

    ``stages`` counts all stages of the model. "interleaved" and "looped-bfs" put several on a
    device and need ``devices=``. ``forward_only`` leaves the backwards out (inference).
    Raises ScheduleError for an unknown name or option, a count below 1, stages that do not
    divide over the devices, and a forward-only "naive" with several micro-batches, which as
    an order of actions is GPipe's.

    >>> print(schedule("1f1b", stages=2, microbatches=3).to_text())
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    >>> schedule("interleaved", stages=8, microbatches=8, devices=4)
    Schedule(interleaved: 8 stages on 4 devices, 8 micro-batches, 128 actions)
    """
    if name not in schedules:
        raise ScheduleError(f"no schedule {name!r}; there are {', '.join(schedules)}")
    _count(stages, "stages"), _count(microbatches, "microbatches")
    generator = schedules[name]
    _check_options(name, set(inspect.signature(generator).parameters), set(options))
    built = generator(stages, microbatches, **options)
    return _forwards(built) if forward_only else built


def _check_options(name: str, known: set[str], given: set[str]) -> None:
    known = known - {"stages", "microbatches"}
    if given - known:
        raise ScheduleError(
            f"{name!r} has no option {min(given - known)!r}; it takes "
            f"{', '.join(sorted(known | {'forward_only'}))}"
        )
    if known - given:
        raise ScheduleError(f"{name!r} needs {min(known - given)}=, a number of at least 1")


def _forwards(full: Schedule) -> Schedule:
    if full.name == "naive" and full.microbatches > 1:
        raise ScheduleError(
            f"without backwards nothing holds the next of {full.microbatches} micro-batches back, "
            f"so they overlap: that is 'gpipe'; for layer-wise inference use microbatches=1"
        )
    kept = full.kind == 0
    turns = np.concatenate([[0], np.cumsum(kept)])[full.turns]
    columns = (column[kept] for column in (full.kind, full.stage, full.microbatch))
    return Schedule(*columns, turns, full.place, f"{full.name}, forward only")


def _count(value: int, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ScheduleError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
