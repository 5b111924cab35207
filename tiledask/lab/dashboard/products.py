"""A product as it tells of itself, and what is drawn of it: panels, bytes and memory by worker.

    rank 0            |[0][1]wait[2]  |  idle ##|   bytes received |####|   memory |###| |
    rank 1            |[0]wait[1][2]  |  idle #||   (predicted: a black line)

While it runs the numbers are those of its ranks' last reports; at the end they are those that
``C.traffic``, ``C.memory`` and ``C.seconds`` have.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tiledask.lab.dashboard.activity import HEIGHT, Activity, RowBox, interval, transfer_box
from tiledask.lab.plots.style import colour_named, ink_on
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["ProductActivity", "ReportedProduct", "of_product"]

KEPT_SPANS = 4_000
_SILENT = 30.0
"""Seconds without a word after which a product may have ended."""
_WORDS = {
    "multiply": "multiplying a panel",
    "wait": "waiting for a panel",
    "sum": "adding partial sums",
    "read": "below: reading from another worker",
}
"""Kind of span -> what it is; the colours are those of `tiledask.lab.plots.slots`."""


_BUSY = ("multiply", "sum")


@dataclass(frozen=True)
class ProductActivity(Activity):
    """What is drawn of a product: an Activity, and by worker the bytes and the memory."""

    received: tuple[RowBox, ...] = ()
    """By worker: a RowBox from 0 to the bytes that it has received from the others."""
    memory: tuple[RowBox, ...] = ()
    """By worker: a RowBox from 0 to the most bytes that it has held, its operands included."""
    limits: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The predicted "received" and "memory" of each worker."""


@dataclass
class _Rank:
    """What a rank has reported."""

    done: int = 0
    received: int = 0
    peak: int = 0
    busy: float = 0.0
    """Seconds of multiplying and summing."""
    multiplied: int = 0
    """Its spans of multiplying."""
    until: float = 0.0
    """When the last of its spans ended."""


@dataclass
class ReportedProduct:
    """A product as it told of itself."""

    topic: str
    announced: float
    """Seconds since the epoch, by the scheduler's clock."""
    about: Mapping[str, Any]
    """Its announcement: see `tiledask.distributed.products.announced`."""
    last: float
    """When it was last heard of."""
    ranks: list[_Rank]
    spans: deque[tuple[int, str, float, float, int]] = field(
        default_factory=lambda: deque(maxlen=KEPT_SPANS)
    )
    """The last (rank, kind, start, stop, number of the panel)."""
    count: int = 0
    """Spans ever reported."""
    counted: Mapping[str, Any] | None = None
    """What the client says at the end: received, memory, seconds."""
    failed: str = ""
    """What it was ended by, if it was."""

    @classmethod
    def announced_by(cls, about: Mapping[str, Any], now: float) -> "ReportedProduct":
        """The product that ``about`` announces; KeyError, TypeError or ValueError if none."""
        made = cls(str(about["run"]), now, about, now, [_Rank() for _ in about["panels"]])
        for name in ("received", "memory", "held", "resident"):
            if len(about[name]) < len(made.ranks):
                raise ValueError(f"{name} is of {len(about[name])} of {len(made.ranks)} ranks")
        of_product(made, now)  # what cannot be drawn is no announcement
        return made

    def heard(self, report: Any, now: float) -> bool:
        """Whether ``report`` is one; if so it is taken in."""
        try:
            if "failed" in report:
                self.failed = str(report["failed"])
            elif "ended" in report:
                ended = replace(self, counted=dict(report["ended"]))
                of_product(ended, now)
                self.counted = ended.counted
            else:
                self._hear(self.ranks[report["rank"]], report)
        except (KeyError, TypeError, ValueError, IndexError):
            return False
        self.last = now
        return True

    def _hear(self, rank: _Rank, report: Mapping[str, Any]) -> None:
        spans = [(str(kind), float(start), float(stop)) for kind, start, stop in report["spans"]]
        numbers = (int(report[name]) for name in ("done", "received", "peak"))
        done, rank.received, rank.peak = numbers
        rank.done = max(rank.done, done)  # what is multiplied for the sum is counted anew
        self.count += len(spans)
        for kind, start, stop in spans:
            self.spans.append((report["rank"], kind, start, stop, rank.multiplied))
            rank.multiplied += kind == "multiply"
            rank.busy += (stop - start) * (kind in _BUSY)
            rank.until = max(rank.until, stop)

    def copy(self) -> "ReportedProduct":
        """A copy of the product as it is now: later reports do not change it."""
        return replace(self, ranks=[replace(r) for r in self.ranks], spans=self.spans.copy())

    @property
    def begin(self) -> float:
        """When it was announced; no later than the first of its spans, whatever its clock."""
        return min([self.announced, *(start for _, _, start, _, _ in self.spans)])

    @property
    def is_over(self) -> bool:
        """Whether no more reports will come."""
        return self.counted is not None or bool(self.failed)


def of_product(product: ReportedProduct, now: float) -> ProductActivity:
    """The ProductActivity of what has been reported so far."""
    about, ranks, zero = product.about, range(len(product.ranks)), product.begin
    names = tuple(f"rank {rank}" for rank in ranks)
    spans = [s for s in product.spans if s[1] in _WORDS]
    ends = [stop - zero for *_, stop, _ in spans]
    makespan = max([*ends, float((product.counted or {}).get("seconds", 0.0))], default=0.0)
    # up to here all ranks have told what they did
    until = makespan if product.is_over else min(r.until for r in product.ranks) - zero
    until = max(0.0, until)
    busy_now = _busy(product, zero + until)
    idle = tuple(max(0.0, 1 - b / until) if until else math.nan for b in busy_now)
    seconds, busy = about["seconds"], about["busy"]
    predicted = None
    if seconds and busy and len(busy) == len(ranks):
        predicted = tuple(max(0.0, 1 - float(b) / float(seconds)) for b in busy)
    received, memory = _counted(product, "received"), _counted(product, "memory")
    kinds = [kind for kind in _WORDS if any(s[1] == kind for s in spans)]
    return ProductActivity(
        _title(product, now),
        _facts(product, received, memory, makespan, idle, predicted),
        names,
        tuple(_box(about["panels"][s[0]], zero, *s) for s in spans if s[1] != "read"),
        tuple(_read(s[0], s[2] - zero, s[3] - zero) for s in spans if s[1] == "read"),
        makespan,
        idle,
        predicted,
        tuple((colour_named(kind), _WORDS[kind]) for kind in kinds),
        _note(product, received),
        numbers="the panel",
        received=_bars(names, received, "received from the others", "read"),
        memory=_bars(names, memory, "held at most, its operands included", "multiply"),
        limits={
            name: tuple(float(n) for n in about[name][: len(ranks)])
            for name in ("received", "memory")
        },
    )


# -- numbers -----------------------------------------------------------------------------------


def _counted(product: ReportedProduct, what: str) -> list[int] | None:
    """Bytes by rank, as counted at the end or as reported so far; None if a worker was silent."""
    about, count = product.about, len(product.ranks)
    if product.counted is not None:
        found = product.counted[what]
        return None if found is None else [int(n) for n in found[:count]]
    if what == "received":
        return [rank.received for rank in product.ranks]
    grown = [max(0, r.peak - held) for r, held in zip(product.ranks, about["held"], strict=False)]
    return [int(n) + more for n, more in zip(about["resident"], grown, strict=False)]


def _busy(product: ReportedProduct, until: float) -> list[float]:
    """By rank, the seconds up to ``until`` in which it multiplies or sums.

    Those of all its spans less those after ``until``: the last are kept, the first may not be.
    """
    busy = [rank.busy for rank in product.ranks]
    for rank, kind, start, stop, _ in product.spans:
        if kind in _BUSY:
            busy[rank] -= max(0.0, stop - max(start, until))
    return busy


# -- boxes -------------------------------------------------------------------------------------


def _box(
    panels: int, zero: float, rank: int, kind: str, start: float, stop: float, number: int
) -> RowBox:
    text = str(number % max(1, panels)) if kind == "multiply" else ""
    words = f"rank {rank}, {_WORDS[kind]}{f' ({text})' if text else ''}: "
    words += interval(start - zero, stop - zero)
    colour = colour_named(kind)
    return RowBox(rank, HEIGHT, start - zero, stop - zero, text, colour, ink_on(colour), words)


def _read(rank: int, start: float, stop: float) -> RowBox:
    colour = colour_named("read")
    words = f"rank {rank}, reading from another worker: {interval(start, stop)}"
    return transfer_box(rank, start, stop)._replace(colour=colour, words=words)


def _bars(
    names: tuple[str, ...], sizes: list[int] | None, what: str, kind: str
) -> tuple[RowBox, ...]:
    colour = colour_named(kind)
    return tuple(
        RowBox(row, HEIGHT, 0.0, n, "", colour, ink_on(colour), f"{name}: {format_bytes(n)} {what}")
        for row, (name, n) in enumerate(zip(names, sizes or (), strict=False))
    )


# -- words -------------------------------------------------------------------------------------


def _title(product: ReportedProduct, now: float) -> str:
    begun = time.strftime("%H:%M:%S", time.localtime(product.announced))
    if product.failed:
        state = "failed"
    elif product.counted is not None:
        state = "done"
    elif now - product.last > _SILENT:
        state = f"nothing heard for {format_seconds(now - product.last)}"
    else:
        state = "running"
    return f"Product of {begun}, {state}"


def _facts(
    product: ReportedProduct,
    received: list[int] | None,
    memory: list[int] | None,
    makespan: float,
    idle: tuple[float, ...],
    predicted: tuple[float, ...] | None,
) -> tuple[tuple[str, str], ...]:
    about, so_far = product.about, "" if product.is_over else " so far"
    done, panels = sum(r.done for r in product.ranks), sum(about["panels"])
    left, right = ("x".join(f"{n:,}" for n in shape) for shape in about["shapes"])
    bytes_of = [
        (
            name,
            "not counted" if n is None else format_bytes(each(n)),
            f"{how} {format_bytes(each(said))}",
        )
        for name, n, said, each, how in (
            ("bytes between workers", received, about["received"], sum, "predicted"),
            ("memory of the fullest worker", memory, about["memory"], max, "predicted at most"),
        )
    ]
    facts = [
        ("product", f"{left} @ {right}"),
        ("algorithm", " ".join(filter(None, (about["algorithm"], about["options"])))),
        ("panels done", f"{done} of {panels}"),
        *((f"{name}{so_far}", f"{n}, {said}") for name, n, said in bytes_of),
        (f"time{so_far}", format_seconds(makespan) if makespan else "0 s"),
    ]
    if about["seconds"]:
        facts.append(("time predicted", format_seconds(float(about["seconds"]))))
    if not math.isnan(idle[0]):
        facts.append((f"idle measured{so_far}", f"{100 * sum(idle) / len(idle):.1f} %"))
    if predicted is not None:
        facts.append(("idle predicted", f"{100 * sum(predicted) / len(predicted):.1f} %"))
    return tuple(facts)


def _note(product: ReportedProduct, received: list[int] | None) -> str:
    """What ended it, and what is left out."""
    said = [product.failed] if product.failed else []
    if received is None:
        said.append("A worker did not say what it counted.")
    if (kept := len(product.spans)) < product.count:
        said.append(f"The last {kept:,} of {product.count:,} spans are drawn.")
    return " ".join(said)
