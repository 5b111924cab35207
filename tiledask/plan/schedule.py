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
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import chain, pairwise
from typing import NamedTuple

from tiledask.errors import ScheduleError

__all__ = [
    "Action",
    "Schedule",
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


@dataclass(frozen=True, repr=False)
class Schedule:
    """The order of actions on each device, and which device holds each stage.

    >>> s = Schedule.from_text("0F0,0B0; 1F0,1B0")
    >>> s.devices, s.stages, s.microbatches, s.place
    (2, 2, 1, (0, 1))
    >>> s == schedule("gpipe", stages=2, microbatches=1)
    True
    """

    orders: tuple[tuple[Action, ...], ...]
    """One row of actions per device."""
    place: tuple[int, ...]
    """The device of each stage."""
    name: str = field(default="", compare=False)

    @classmethod
    def of(
        cls, orders: Iterable[Iterable[Action]], place: Iterable[int], name: str = ""
    ) -> "Schedule":
        return cls(tuple(map(tuple, orders)), tuple(place), name)

    @property
    def devices(self) -> int:
        return len(self.orders)

    @property
    def stages(self) -> int:
        return len(self.place)

    @cached_property
    def microbatches(self) -> int:
        """One more than the largest micro-batch number."""
        return 1 + max((a.microbatch for a in self), default=-1)

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward."""
        return any(a.kind != "F" for a in self)

    def actions(self, device: int) -> tuple[Action, ...]:
        """What ``device`` does, in order."""
        return self.orders[device]

    def __iter__(self) -> Iterator[Action]:
        """All actions, device by device."""
        return chain.from_iterable(self.orders)

    def __len__(self) -> int:
        return sum(map(len, self.orders))

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

        Actions such as ``0F3`` are separated by commas or spaces; empty cells, as in PyTorch's
        CSV files, are skipped. A stage is placed on the first device that names it. Raises
        ScheduleError for a word that is no such action, and for a stage number left out.
        Whether the order can run is another question: see :func:`tiledask.plan.needs.validate`.
        """
        lines = re.split(r"[\n;]", text.strip().strip(";"))
        orders = [[_read(word) for word in re.split(r"[,\s]+", line) if word] for line in lines]
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


def _read(word: str) -> Action:
    match = re.fullmatch(r"(\d+)([FBIW])(\d+)", word)
    if not match:
        raise ScheduleError(
            f"cannot read {word!r} as an action; write stage, kind and micro-batch, as in 0F3, "
            f"with F forward, B backward, I input gradient, W weight gradient"
        )
    return Action(match[2], int(match[1]), int(match[3]))


# --- the schedules ---------------------------------------------------------------------


def naive(stages: int, microbatches: int) -> Schedule:
    """Layer-wise execution: one micro-batch goes all the way forward and back, then the next.

    F0 .. .. B0 F1 .. .. B1      with equal stages each device
    .. F0 B0 .. .. F1 B1 ..      computes 1 / stages of the time
    """
    orders = (
        [Action(kind, s, i) for i in range(microbatches) for kind in "FB"] for s in range(stages)
    )
    return Schedule.of(orders, range(stages), "naive")


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965, figure 2c).

    F0 F1 .. .. B0 B1      every device keeps the activations
    .. F0 F1 B0 B1 ..      of all micro-batches
    """
    orders = (
        [Action(kind, s, i) for kind in "FB" for i in range(microbatches)] for s in range(stages)
    )
    return Schedule.of(orders, range(stages), "gpipe")


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """A backward as soon as there is one (PipeDream-flush; arXiv 2104.04473, figure 3).

    Stage s keeps the activations of at most stages - s micro-batches.
    """
    orders = (
        _alternate(
            [Action("F", s, i) for i in range(microbatches)],
            [Action("B", s, i) for i in range(microbatches)],
            warmup=stages - 1 - s,
        )
        for s in range(stages)
    )
    return Schedule.of(orders, range(stages), "1f1b")


def interleaved(stages: int, microbatches: int, devices: int) -> Schedule:
    """1F1B with several chunks of layers per device (arXiv 2104.04473, section 2.2).

    Stage s is on device s mod devices; v = stages / devices. Micro-batches go in groups: a
    device takes a whole group through its first chunk, then through its next. Groups have
    ``devices`` micro-batches each; where that does not divide, there are fewer and larger
    groups, as even as possible.
    """
    chunks = _chunks(stages, devices)
    groups = _even_groups(microbatches, max(1, microbatches // devices))

    def walk(kind: str, device: int, order: range) -> list[Action]:
        return [
            Action(kind, c * devices + device, i) for group in groups for c in order for i in group
        ]

    orders = (
        _alternate(
            walk("F", d, range(chunks)),
            walk("B", d, range(chunks)[::-1]),
            warmup=2 * (devices - 1 - d) + (chunks - 1) * len(groups[0]),
        )
        for d in range(devices)
    )
    return Schedule.of(orders, (s % devices for s in range(stages)), "interleaved")


def looped_bfs(stages: int, microbatches: int, devices: int) -> Schedule:
    """GPipe with several chunks per device: every micro-batch through a chunk, then the next.

    Breadth-first pipeline parallelism (arXiv 2211.05953). Stage s is on device s mod devices.
    """
    _chunks(stages, devices)
    orders = (
        [
            Action(kind, s, i)
            for kind, mine in (
                ("F", range(d, stages, devices)),
                ("B", range(d, stages, devices)[::-1]),
            )
            for s in mine
            for i in range(microbatches)
        ]
        for d in range(devices)
    )
    return Schedule.of(orders, (s % devices for s in range(stages)), "looped-bfs")


def _alternate(forwards: list, backwards: list, warmup: int) -> list:
    """``warmup`` forwards, then forward and backward in turns, then the backwards left over."""
    warmup = min(warmup, len(forwards))
    turns = zip(forwards[warmup:], backwards, strict=False)
    rest = backwards[len(forwards) - warmup :]
    return [*forwards[:warmup], *chain.from_iterable(turns), *rest]


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
    orders = ((a for a in order if a.kind == "F") for order in full.orders)
    return Schedule.of(orders, full.place, f"{full.name}, forward only")


def _count(value: int, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ScheduleError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
