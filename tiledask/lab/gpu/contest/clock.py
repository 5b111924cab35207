"""Seconds of products on a CPU or a GPU.

A burst on a GPU    fill fill fill | begin | product 0 | product 1 | product 0 ... | end
                    the fills keep the device busy until all of it has been asked for, and
                    leave nothing of the operands in L2

A kernel that never ends is ended with its process, by lab/gpu/runner.py.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from tiledask.errors import KernelError
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import namespace

__all__ = ["Burst", "ContestClock", "CpuClock", "GpuClock", "Run", "Took", "clock_for"]

_BURST = 0.010
"""Seconds of products in a burst on a GPU, about."""
_MOST = 64
"""Products in a burst: with the fills fewer than a stream takes before its caller waits."""
_MOST_FILLS = 256


class Took(NamedTuple):
    """Seconds of one product: until it is done, and until the call returns."""

    seconds: float
    launch: float


class Burst(NamedTuple):
    """How an implementation is timed."""

    products: int
    sets: int
    """They are taken in turn."""
    fills: int = 0
    """Of memory, before: until they are done, a GPU cannot begin."""


Run = Callable[[int], None]


def _products(once: float, sets: int) -> int:
    return sets * max(1, min(_MOST // sets, round(_BURST / once / sets)))


class CpuClock:
    """Wall-clock time on NumPy arrays."""

    arrays = "numpy"

    def sets_of(self, size: int) -> int:
        """How many sets of ``size`` bytes are rotated; KernelError if there is no room."""
        return 2

    def warm(self, run: Run, sets: int) -> Burst:
        """How ``run`` is to be timed, after some products that warmed up."""
        return Burst(_products(self.burst(run, Burst(sets, sets)).seconds, sets), sets)

    def burst(self, run: Run, plan: Burst) -> Took:
        """The mean of the products of one burst."""
        begun = time.perf_counter()
        for i in range(plan.products):
            run(i % plan.sets)
        took = (time.perf_counter() - begun) / plan.products
        return Took(took, took)

    def wait(self) -> None:
        """None, once what was asked of the device is done; raises what broke it."""

    def release(self) -> None:
        """Gives unused memory back."""


class GpuClock:
    """CUDA's events on CuPy's current stream."""

    arrays = "cupy"

    def __init__(self) -> None:
        self.cp = cp = namespace("cupy")
        self.l2 = int(cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["l2CacheSize"])
        self.room = cp.empty(min(2**30, self._free() // 16), "u1")
        fill = Burst(8, 1)
        self.burst(self._fill, fill)
        self.fill = self.burst(self._fill, fill).seconds

    def sets_of(self, size: int) -> int:
        sets = max(2, min(8, -(-4 * self.l2 // size)))
        needed, free = sets * size, self._free()
        # numbers are drawn in float32, and the reference is made of float64
        if 3 * needed > free:
            raise KernelError(
                f"{sets} sets of operands are {format_bytes(needed)}, and three times that is "
                f"needed to make and check them: {format_bytes(free)} are free on this GPU"
            )
        return sets

    def warm(self, run: Run, sets: int) -> Burst:
        first = self.burst(run, Burst(sets, sets, 1))
        if first.seconds < _BURST:  # clocks rise, and code paths of the host are warm only now
            first = self.burst(run, Burst(4 * sets, sets, 1))
        products = _products(first.seconds, sets)
        # twice as long as it takes to ask for all of them
        fills = min(_MOST_FILLS, 1 + round(2 * products * first.launch / self.fill + 0.5))
        return Burst(products, sets, fills)

    def burst(self, run: Run, plan: Burst) -> Took:
        begin, end = self.cp.cuda.Event(), self.cp.cuda.Event()
        for _ in range(plan.fills):
            self._fill(0)
        begin.record()
        called = time.perf_counter()
        for i in range(plan.products):
            run(i % plan.sets)
        launch = (time.perf_counter() - called) / plan.products
        end.record()
        end.synchronize()
        seconds = self.cp.cuda.get_elapsed_time(begin, end) / 1e3
        return Took(seconds / plan.products, launch)

    def wait(self) -> None:
        self.cp.cuda.get_current_stream().synchronize()

    def release(self) -> None:
        self.cp.get_default_memory_pool().free_all_blocks()

    def _free(self) -> int:
        free, _ = self.cp.cuda.runtime.memGetInfo()
        return int(free + self.cp.get_default_memory_pool().free_bytes())

    def _fill(self, _: int) -> None:
        self.room.fill(0)


ContestClock = CpuClock | GpuClock


def clock_for(arrays: str) -> ContestClock:
    """The clock for "numpy" or "cupy" arrays."""
    return CpuClock() if arrays == "numpy" else GpuClock()
