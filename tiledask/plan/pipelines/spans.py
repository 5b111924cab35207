"""Spans of actions and transfers in flat columns, simulated or measured, and what they hold.

    F   + activation                        when it starts
    B   - activation                        when it ends
    I   - (activation - weight_part)        when it ends: the weights' gradient needs the rest
    W   - weight_part                       when it ends

The paper's M_B is ``activation`` and its M_W is ``weight_part`` (arXiv 2401.10241, section 3).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.costs import numbers
from tiledask.plan.units import format_seconds
from tiledask.plan.whole import is_whole

__all__ = ["COMPUTE", "KINDS", "TRANSFER", "Footprint", "Spans", "memory_over_time"]

COMPUTE = ("F", "B", "I", "W", "U", "M")
"""Kinds of compute, PyTorch's letters: forward, full backward, input gradient, weight gradient; and
of no stage the update of a training, and the panels of a blocked product (M, multiply)."""
TRANSFER = "T"
"""A block on its way to the device; it may overlap compute. Its stage and micro-batch are those of
the action that made it, or -1 where that is not known."""
KINDS = (*COMPUTE, TRANSFER)


@dataclass(frozen=True, eq=False, repr=False)
class Spans:
    """Columns, a row for each span."""

    devices: int
    """Number of devices, those that did nothing included."""
    device: np.ndarray
    """int32, rising: one device's spans follow the other's, each in the order of their starts."""
    code: np.ndarray
    """int8: the kind of each span, as a position in KINDS."""
    stage: np.ndarray
    microbatch: np.ndarray
    start: np.ndarray
    end: np.ndarray
    """Seconds."""
    origin: str = "simulated"
    """Or "measured"."""

    @cached_property
    def computes(self) -> np.ndarray:
        """bool: which spans are compute."""
        return self.code < len(COMPUTE)

    @cached_property
    def acts(self) -> "Spans":
        """The compute spans alone."""
        own = self.computes
        columns = self.device[own], self.code[own], self.stage[own], self.microbatch[own]
        return Spans(self.devices, *columns, self.start[own], self.end[own], self.origin)

    @cached_property
    def turns(self) -> np.ndarray:
        """int [devices + 1]: where each device's spans begin, and where the last one's end."""
        return np.searchsorted(self.device, np.arange(self.devices + 1))

    @cached_property
    def free(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds from which on the device of each span is free for it, and each for good."""
        free, last = np.zeros(len(self.device)), np.zeros(self.devices)
        for d, (a, b) in enumerate(pairwise(self.turns.tolist())):
            reach = np.maximum.accumulate(np.append(0.0, self.end[a:b]))
            free[a:b], last[d] = reach[:-1], reach[-1]
        return free, last

    @cached_property
    def makespan(self) -> float:
        """Seconds from time 0 to the end of the last compute span."""
        return float(self.acts.end.max(initial=0.0))

    def rows(self) -> Iterator[tuple[int, str, int, int, float, float]]:
        """(device, kind, stage, microbatch, start, end) of each span."""
        kinds = [KINDS[code] for code in self.code.tolist()]
        numbers = self.stage, self.microbatch, self.start, self.end
        columns = self.device.tolist(), kinds, *(column.tolist() for column in numbers)
        return zip(*columns, strict=True)


@dataclass(frozen=True, eq=False, repr=False)
class Footprint:
    """What every device holds at every moment."""

    steps: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Per device (times, bytes): so many from each time on. Of equal times the last holds."""
    makespan: float
    origin: str = "simulated"

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """The most that each device holds."""
        return tuple(held.max().item() for _, held in self.steps)

    @cached_property
    def peak(self) -> tuple[float, int, float]:
        """(the most that any device holds, that device, seconds until it first does)."""
        first = [times[int(np.argmax(held))].item() for times, held in self.steps]
        most = max(self.peaks)
        time, device = min((t, d) for d, t in enumerate(first) if self.peaks[d] == most)
        return most, device, time

    def __repr__(self) -> str:
        most, device, time = self.peak
        size = f"{most:,}" if is_whole(most) else f"{most:g}"
        return (
            f"Footprint({self.origin}: {len(self.steps)} devices, peak {size} on device {device} "
            f"after {format_seconds(time)})"
        )


def memory_over_time(
    timeline: Spans,
    activation: float | Sequence[float] = 1,
    weight_part: float | Sequence[float] | None = None,
    static: float | Sequence[float] = 0,
) -> Footprint:
    """What every device holds at every moment of a simulated or measured ``timeline``.

    activation     bytes that the forward of a stage keeps of a micro-batch for its backward, one
                   number or one per stage; 1 counts activations
    weight_part    bytes of them that are kept from I to W; default: all
    static         bytes of a device at all times, weights for instance: a number, or one each

    Without any backward (inference) an activation is let go when its forward ends. Raises
    ScheduleError for sizes that are negative or of the wrong number, and for a ``weight_part``
    larger than its activation.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> from tiledask.plan.pipelines.simulate import simulate
    >>> held = memory_over_time(simulate(schedule("1f1b", stages=4, microbatches=8)))
    >>> held.peaks, held.peak
    ((4, 3, 2, 1), (4, 0, 3.0))
    """
    acts = timeline.acts

    def each(values: float | Sequence[float], name: str, what: str, count: int) -> np.ndarray:
        shapes = {(): "one number", (count,): f"{count}, one per {what}"}
        return np.broadcast_to(numbers(values, name, shapes, "bytes"), count)

    stages = 1 + int(timeline.stage.max(initial=0))
    whole = each(activation, "activation", "stage", stages)
    part = whole if weight_part is None else each(weight_part, "weight_part", "stage", stages)
    if (part > whole).any():
        raise ScheduleError(f"weight_part is at most activation; got {part} of {whole} by stage")
    none = np.zeros_like(whole)  # by F, B, I, W, U and M of each stage
    change = np.stack([whole, -whole, part - whole, -part, none, none])[acts.code, acts.stage]
    device, times = acts.device, np.where(acts.code == 0, acts.start, acts.end)
    if not acts.code.any():  # no backward: let go when the forward ends
        device, times = np.tile(device, 2), np.append(acts.end, times)
        change = np.append(-change, change)
    order = np.lexsort((times, device))  # at equal times what goes is before what comes
    steps = []
    for d, first in enumerate(each(static, "static", "device", timeline.devices)):
        mine = order[slice(*np.searchsorted(device[order], (d, d + 1)))]
        held = first + np.append(0, np.cumsum(change[mine]))
        steps.append((np.append(0.0, times[mine]), held))
    return Footprint(tuple(steps), timeline.makespan, timeline.origin)
