"""The makespans that formulas give, schedule by schedule, and where each formula holds.

All stages equal: F, I and W are the seconds of a stage's forward, gradient of the input and of
the weights, B = I + W; p devices, m micro-batches, v stages per device, c seconds of latency.
"""

from collections.abc import Callable
from typing import NamedTuple

from tiledask.plan.pipelines.closed_form import gpipe_makespan, one_forward_one_backward_makespan

__all__ = ["Known", "known_makespan"]


class Known(NamedTuple):
    """A makespan by formula."""

    seconds: float
    formula: str
    source: str


class _Case(NamedTuple):
    p: int
    m: int
    v: int
    F: float
    I: float
    W: float
    c: float
    both: float
    """Of a forward and a backward at once."""

    @property
    def B(self) -> float:
        return self.I + self.W

    @property
    def busy(self) -> float:
        """Of a device."""
        return self.m * self.v * (self.F + self.B)


def _overlapped(x: _Case, each: int, half: int) -> float:
    """Of the device in the middle: ``each`` forwards, of which so many meet a backward."""
    pairs = each - 2 * half - 1
    return (each - pairs) * (x.F + x.B) + pairs * x.both + (half - 1) * (x.both + x.B - 3 * x.W)


_Holds = Callable[[_Case], bool]
_Seconds = Callable[[_Case], float]
_2104, _2401, _2107 = "arXiv 2104.04473", "arXiv 2401.10241", "arXiv 2107.06925"
_DUAL = "DualPipe's table (arXiv 2412.19437, figure 5)"
# fmt: off
_FORMULAS: tuple[tuple[str, _Holds, _Seconds, str, str], ...] = (
    ("naive", lambda x: True,
     lambda x: x.m * (x.p * (x.F + x.B) + 2 * (x.p - 1) * x.c),
     "m (p (F + B) + 2 (p - 1) c)", "arXiv 1811.06965, figure 2b"),
    ("gpipe", lambda x: True,
     lambda x: gpipe_makespan([x.F] * x.p, [x.B] * x.p, x.m, x.c),
     "(m + p - 1)(F + B) + 2 (p - 1) c", "arXiv 1811.06965, section 2.3"),
    ("1f1b eager-1f1b", lambda x: x.c == 0,
     lambda x: (x.m + x.p - 1) * (x.F + x.B),
     "(m + p - 1)(F + B)", f"{_2104}, section 2.2"),
    ("1f1b", lambda x: x.p > 1 and x.m % x.p == 0 and 2 * x.c <= min(x.F, x.B),
     lambda x: one_forward_one_backward_makespan(x.p, x.m, x.F, x.B, x.c),
     "(m + p - 1)(F + B) + c (2 (p - 1) m / p + 2 (p - 2))", f"{_2401}, Table 5"),
    ("interleaved looped-bfs", lambda x: x.c == 0 and x.m >= x.p,
     lambda x: x.busy + (x.p - 1) * (x.F + x.B),
     "m v (F + B) + (p - 1)(F + B)", f"{_2104}, section 2.2"),
    ("zb-h1", lambda x: x.c == 0 and x.m >= x.p and min(x.F, x.I) >= x.W,
     lambda x: x.busy + (x.p - 1) * (x.F + x.I - x.W),
     "m (F + B) + (p - 1)(F + I - W)", f"{_2401}, Table 2"),
    ("zb-h2",
     lambda x: x.c == 0 and x.m >= 2 * x.p and min(x.F, x.I) >= x.W and x.I <= 2 * x.W,
     lambda x: x.busy + (x.p - 1) * x.F,
     "m (F + B) + (p - 1) F", f"{_2401}, section 2: no bubble but the way down"),
    ("zb-v", lambda x: x.c == 0 and x.F == x.I == x.W and x.m >= 2 * x.p - 1,
     lambda x: x.busy + (x.p - 1) * x.F,
     "m v (F + B) + (p - 1) F", f"{_2401}, section 6"),
    ("chimera", lambda x: x.c == 0 and x.F == x.B and x.p % 2 == 0 == x.m % x.p,
     lambda x: (2 * x.m + x.p - 2) * x.F,
     "(2 m + p - 2) F", f"{_2107}, Table 2"),
    ("chimera", lambda x: x.c == 0 and x.B >= x.F and x.p % 2 == 0 and x.m == x.p,
     lambda x: x.busy + (x.p - 2) * x.B,
     "m (F + B) + (p - 2) B", f"{_2107}, figure 3"),
    ("dualpipe", lambda x: x.c == 0 and x.F == x.I and x.m % 2 == 0 and x.m >= 2 * x.p,
     lambda x: _overlapped(x, x.m, x.p // 2),
     "busy + (p / 2 - 1)(F&B + B - 3 W)", _DUAL),
    ("dualpipev", lambda x: x.c == 0 and x.F == x.I and x.m >= 2 * x.p,
     lambda x: _overlapped(x, x.m * 2, x.p),
     "busy + (p - 1)(F&B + B - 3 W)", _DUAL),
)
# fmt: on
"""(schedules, where it holds, seconds, formula, source)."""


def known_makespan(
    name: str,
    devices: int,
    microbatches: int,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    latency: float = 0.0,
    *,
    chunks: int = 1,
    overlapped: float | None = None,
) -> Known | None:
    """The makespan of the schedule called ``name`` by formula; None where none is known to hold.

    Seconds are of one stage; all stages are equal. ``chunks``: stages per device.
    ``overlapped``: of a forward and a backward at once; default their sum.

    >>> known_makespan("1f1b", 4, 8).seconds, known_makespan("zb-h1", 4, 8).formula
    (33.0, 'm (F + B) + (p - 1)(F + I - W)')
    >>> known_makespan("v-min", 4, 8) is None
    True
    """
    seconds = forward, backward_input, backward_weight
    both = sum(seconds) if overlapped is None else overlapped
    case = _Case(devices, microbatches, chunks, *seconds, latency, both)
    for names, holds, makespan, formula, source in _FORMULAS:
        if name in names.split() and holds(case):
            return Known(float(makespan(case)), formula, source)
    return None
