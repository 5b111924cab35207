"""A training as its ranks report it, and what is drawn of it: layers, ranks and the loss.

    layer 0  |####====|   barriers of a step        |########====|   bytes of a step
    layer 1  |####====|   (predicted: a black line) |########====|
    rank 0   |##==|           share of the time in collectives, and the loss step by step

Ranks report the sums of all their steps so far: a report that is lost leaves no gap.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tiledask.distributed.training.by_layer import CallSite, Sums, ordered, together
from tiledask.distributed.training.reports import Assembly, Progress
from tiledask.lab.dashboard.activity import HEIGHT, RowBox
from tiledask.lab.plots.style import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, ink_on
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["EMPTY", "Overview", "Training", "of_training"]

PARTS = {
    "tensor, forward": (BLUE, "tensor parallel, forward"),
    "tensor, backward": (ORANGE, "tensor parallel, backward"),
    "data, gradients": (GREEN, "data parallel, gradients"),
    "data, weights": (PINK, "data parallel, weights"),
    "pipeline": (GREY, "between stages"),
    "all ranks": (YELLOW, "all ranks, norm of the gradients"),
}
"""Part of a step -> (colour, what it is)."""

KEPT_STEPS = 4_000
_RECENT = 10
"""Steps over which seconds and tokens are taken."""
_SILENT = 30.0
"""Seconds without a word, beyond those of three steps, after which a training may have ended."""


def part_of(parallel: str, when: str) -> str:
    """The name in `PARTS`."""
    found = f"{parallel}, {when}"
    return found if found in PARTS else parallel if parallel in PARTS else "all ranks"


@dataclass
class Training:
    """A training as it told of itself."""

    topic: str
    announced: float
    """Seconds since the epoch, by the scheduler's clock."""
    about: Mapping[str, Any]
    """Its announcement: shape, first, steps, tokens, floor, units, schedule, predicted, ..."""
    assembly: Assembly
    last: float
    """When it was last heard of."""
    steps: deque[Progress] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    """The last ones that all ranks have finished."""
    count: int = 0
    """Steps ever finished."""
    failed: str = ""
    """What it was ended by, if it was."""

    @classmethod
    def announced_by(cls, about: Mapping[str, Any], now: float) -> "Training":
        """The training that ``about`` announces; KeyError, TypeError or ValueError if none."""
        dp, tp, pp = (int(n) for n in about["shape"])
        floor = about["floor"]
        assembly = Assembly(
            dp * tp * pp,
            int(about["steps"]),
            int(about["tokens"]),
            None if floor is None else float(floor),
        )
        made = cls(str(about["run"]), now, about, assembly, now)
        of_training(made, now)  # what cannot be drawn is no announcement
        return made

    def heard(self, report: Any, now: float) -> bool:
        """Whether ``report`` is one; if so it is taken in."""
        try:
            if "failed" in report:
                self.failed = str(report["failed"])
            else:
                for step in self.assembly.heard(report):
                    self.steps.append(step)
                    self.count += 1
        except (KeyError, TypeError, ValueError, IndexError):
            return False
        self.last = now
        return True

    def copy(self) -> "Training":
        """A copy of the training as it is now: later reports do not change it."""
        return replace(self, assembly=self.assembly.copy(), steps=self.steps.copy())

    @property
    def is_done(self) -> bool:
        """Whether all ranks have finished all steps."""
        return self.count >= self.assembly.steps - int(self.about["first"])

    @property
    def is_over(self) -> bool:
        """Whether no more steps will come."""
        return self.is_done or bool(self.failed)


@dataclass(frozen=True)
class Overview:
    """What is drawn of a training."""

    title: str
    facts: tuple[tuple[str, str], ...]
    layers: tuple[str, ...]
    barriers: tuple[RowBox, ...]
    """Of a step, by layer: a RowBox from 0 on per part."""
    bytes: tuple[RowBox, ...]
    predicted: dict[str, tuple[float, ...]]
    """"barriers" and "bytes" of each layer."""
    ranks: tuple[str, ...]
    collectives: tuple[RowBox, ...]
    """Shares of each rank's time, in percent."""
    losses: tuple[tuple[int, ...], tuple[float, ...]]
    """(numbers of the steps, losses)."""
    floor: float | None
    legend: tuple[tuple[str, str], ...]
    note: str = ""


EMPTY = Overview("", (), (), (), (), {"barriers": (), "bytes": ()}, (), (), ((), ()), None, ())


def of_training(training: Training, now: float) -> Overview:
    """The Overview of what has been reported so far."""
    about, seen = training.about, training.assembly
    so_far = {r: dict(sums) for r, sums in seen.sums.items() if seen.done[r]}
    # what every unit of one step counted
    each = {
        r: {place: Sums(*(n / seen.done[r] for n in total)) for place, total in sums.items()}
        for r, sums in so_far.items()
    }
    counted, totals = together(each.values()), together(so_far.values())
    by_rank: list[dict[CallSite, Sums]] = [{} for _ in range(seen.ranks)]
    for rank, layer, when, parallel, *sums in about["predicted"]:
        by_rank[rank][CallSite(layer, when, parallel)] = Sums(*map(float, sums))
    expected = together(by_rank)
    places = ordered({**expected, **counted}, about["units"])
    layers = tuple(dict.fromkeys(place.unit for place in places))
    boxes = {
        what: tuple(_boxes(layers, places, counted, totals, what)) for what in ("barriers", "sent")
    }
    said = {
        name: tuple(
            sum(getattr(s, what) for place, s in expected.items() if place.unit == unit)
            for unit in layers
        )
        for name, what in (("barriers", "barriers"), ("bytes", "sent"))
    }
    used = {part_of(place.parallel, place.when) for place in places}
    steps = list(training.steps)
    return Overview(
        _title(training, now),
        _facts(training, counted, totals),
        layers,
        boxes["barriers"],
        boxes["sent"],
        said,
        tuple(f"rank {r}" for r in range(seen.ranks)),
        tuple(_shares(training, so_far)),
        (tuple(s.step for s in steps), tuple(s.loss for s in steps)),
        seen.floor,
        tuple(look for part, look in PARTS.items() if part in used),
        _note(training),
    )


# -- numbers -----------------------------------------------------------------------------------


def _boxes(
    layers: Sequence[str],
    places: Sequence[CallSite],
    counted: Mapping[CallSite, Sums],
    totals: Mapping[CallSite, Sums],
    what: str,
) -> list[RowBox]:
    """Beside each other in their layer's row, in the order of the legend."""
    order, made = list(PARTS), []
    ends = dict.fromkeys(layers, 0.0)
    for place in sorted(places, key=lambda p: order.index(part_of(p.parallel, p.when))):
        length = getattr(counted.get(place, Sums()), what)
        if not length:
            continue
        colour, start = PARTS[part_of(place.parallel, place.when)][0], ends[place.unit]
        ends[place.unit] += length
        step, total = counted[place], totals[place]
        words = (
            f"{place.layer}, {place.when}: {step.barriers:.4g} barriers and "
            f"{format_bytes(step.sent)} a step ({format_seconds(step.seconds)}); "
            f"{total.barriers:,.0f} barriers and {format_bytes(total.sent)} so far"
        )
        made.append(
            RowBox(
                layers.index(place.unit),
                HEIGHT,
                start,
                start + length,
                "",
                colour,
                ink_on(colour),
                words,
            )
        )
    return made


def _shares(training: Training, so_far: Mapping[int, Mapping[CallSite, Sums]]) -> list[RowBox]:
    """A RowBox per rank and kind of parallelism, in percent of the rank's time so far."""
    seen, made = training.assembly, []
    for rank, sums in sorted(so_far.items()):
        length, at = seen.end[rank] - seen.begin[rank], 0.0
        for part, (colour, name) in PARTS.items():
            mine = [s.seconds for p, s in sums.items() if part_of(p.parallel, p.when) == part]
            if not mine or length <= 0:
                continue
            share = 100 * sum(mine) / length
            words = f"rank {rank}, {name}: {share:.1f} % of {format_seconds(length)}"
            made.append(RowBox(rank, HEIGHT, at, at + share, "", colour, ink_on(colour), words))
            at += share
    return made


# -- words -------------------------------------------------------------------------------------


def _title(training: Training, now: float) -> str:
    begun = time.strftime("%H:%M:%S", time.localtime(training.announced))
    step = training.steps[-1].seconds if training.steps else 0.0
    if training.failed:
        state = "failed"
    elif training.is_done:
        state = "done"
    elif now - training.last > _SILENT + 3 * step:
        state = f"nothing heard for {format_seconds(now - training.last)}"
    else:
        state = "running"
    return f"Training of {begun}, {state}"


def _facts(
    training: Training, counted: Mapping[CallSite, Sums], totals: Mapping[CallSite, Sums]
) -> tuple[tuple[str, str], ...]:
    about, seen, steps = training.about, training.assembly, list(training.steps)
    dp, tp, pp = about["shape"]
    facts = [
        ("layout", f"dp {dp}, tp {tp}, pp {pp}"),
        ("ZeRO", str(about.get("zero", 0))),
        ("schedule", f"{about.get('schedule')}, {about.get('microbatches')} micro-batches"),
        ("parameters", f"{about.get('parameters', 0):,}, {about.get('dtype')}"),
        ("steps done", f"{training.count + int(about['first'])} of {seen.steps}"),
    ]
    if not steps:
        return tuple(facts)
    last, recent = steps[-1], steps[-_RECENT:]
    seconds = sum(s.seconds for s in recent) or 1.0
    sent, messages = (sum(getattr(s, n) for s in totals.values()) for n in ("sent", "messages"))
    return (
        *facts,
        ("loss", f"{last.loss:.4f}"),
        ("time per step", format_seconds(seconds / len(recent))),
        ("tokens/s", f"{len(recent) * seen.tokens / seconds:,.0f}"),
        ("barriers", f"{last.barriers} a step"),
        ("bytes", f"{format_bytes(last.sent)} a step, {format_bytes(sent)} so far"),
        ("messages", f"{last.messages:,} a step, {messages:,} so far"),
    )


def _note(training: Training) -> str:
    """What ended it, and what is left out."""
    said = [training.failed] if training.failed else []
    if (shown := len(training.steps)) < training.count:
        said.append(f"The losses of the last {shown:,} of {training.count:,} steps are shown.")
    return " ".join(said)
