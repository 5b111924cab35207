"""Seconds of products on a CPU or a GPU, and waits that end even if a kernel does not.

A burst on a GPU    fill fill fill | begin | product 0 | product 1 | product 0 ... | end
                    the fills keep the device busy until all of it has been asked for, and
                    leave nothing of the operands in L2
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tiledask.errors import KernelError
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import namespace

__all__ = ["Burst", "ContestClock", "CpuClock", "GpuClock", "Run", "Stopped", "Took", "clock_for"]

DEADLINE = 30.0
"""Seconds that any burst may take."""
_BURST = 0.010
"""Seconds of products in a burst on a GPU, about."""
_MOST = 64
"""Products in a burst: with the fills fewer than a stream takes before its caller waits."""
_MOST_FILLS = 256


class Stopped(KernelError):
    """The device does not answer any more; nothing else can be measured in this process."""


class Took(NamedTuple):
    """Seconds of one product: until it is done, and until the call returns."""

    seconds: float
    launch: float


class Burst(NamedTuple):
    """How a contender is timed."""

    products: int
    sets: int
    """They are taken in turn."""
    fills: int = 0
    """Of memory, before: until they are done, a GPU cannot begin."""


Run = Callable[[int], None]


class ContestClock:
    """What a contest asks of the machine's clock."""

    arrays: str

    def sets_of(self, size: int) -> int:
        """How many sets of ``size`` bytes are rotated; KernelError if there is no room."""
        raise NotImplementedError

    def warm(self, run: Run, sets: int, what: str) -> Burst:
        """How ``run`` is to be timed, after some products that warmed up."""
        raise NotImplementedError

    def burst(self, run: Run, plan: Burst, what: str) -> Took:
        """The mean of the products of one burst."""
        raise NotImplementedError

    def wait(self, what: str) -> None:
        """None, once what was asked of the device is done; Stopped after DEADLINE seconds."""

    def still_alive(self, name: str, error: Exception) -> None:
        """None if the device can be used on after ``error``, else Stopped."""

    def release(self) -> None:
        """Gives unused memory back."""


def _products(once: float, sets: int) -> int:
    return sets * max(1, min(_MOST // sets, round(_BURST / once / sets)))


class CpuClock(ContestClock):
    """Wall-clock time on NumPy arrays."""

    arrays = "numpy"

    def sets_of(self, size: int) -> int:
        return 2

    def warm(self, run: Run, sets: int, what: str) -> Burst:
        return Burst(_products(self.burst(run, Burst(sets, sets), what).seconds, sets), sets)

    def burst(self, run: Run, plan: Burst, what: str) -> Took:
        begun = time.perf_counter()
        for i in range(plan.products):
            run(i % plan.sets)
        took = (time.perf_counter() - begun) / plan.products
        return Took(took, took)


class GpuClock(ContestClock):
    """CUDA's events on CuPy's current stream."""

    arrays = "cupy"

    def __init__(self) -> None:
        self.cp = cp = namespace("cupy")
        self.waiter = ThreadPoolExecutor(1)
        self.l2 = int(cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)["l2CacheSize"])
        self.room = cp.empty(min(2**30, self._free() // 16), "u1")
        fill = Burst(8, 1)
        self.burst(self._fill, fill, "filling memory")
        self.fill = self.burst(self._fill, fill, "filling memory").seconds

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

    def warm(self, run: Run, sets: int, what: str) -> Burst:
        first = self.burst(run, Burst(sets, sets, 1), what)
        if first.seconds < _BURST:  # clocks rise, and code paths of the host are warm only now
            first = self.burst(run, Burst(4 * sets, sets, 1), what)
        products = _products(first.seconds, sets)
        # twice as long as it takes to ask for all of them
        fills = min(_MOST_FILLS, 1 + round(2 * products * first.launch / self.fill + 0.5))
        return Burst(products, sets, fills)

    def burst(self, run: Run, plan: Burst, what: str) -> Took:
        begin, end = self.cp.cuda.Event(), self.cp.cuda.Event()
        for _ in range(plan.fills):
            self._fill(0)
        begin.record()
        called = time.perf_counter()
        for i in range(plan.products):
            run(i % plan.sets)
        launch = (time.perf_counter() - called) / plan.products
        end.record()
        self._until(end, what)
        seconds = self.cp.cuda.get_elapsed_time(begin, end) / 1e3
        return Took(seconds / plan.products, launch)

    def wait(self, what: str) -> None:
        end = self.cp.cuda.Event(disable_timing=True)
        end.record()
        self._until(end, what)

    def still_alive(self, name: str, error: Exception) -> None:
        self.wait(f"the device, after {name} failed ({type(error).__name__}: {error})")

    def release(self) -> None:
        self.cp.get_default_memory_pool().free_all_blocks()

    def _free(self) -> int:
        free, _ = self.cp.cuda.runtime.memGetInfo()
        return free + self.cp.get_default_memory_pool().free_bytes()

    def _fill(self, _: int) -> None:
        self.room.fill(0)

    def _until(self, event: Any, what: str) -> None:
        """Waits in another thread: asking again and again whether an event is done leaves "not
        ready" behind as CUDA's last error, and torch would take it for its own."""
        try:
            self.waiter.submit(event.synchronize).result(DEADLINE)
        except TimeoutError:
            raise Stopped(
                f"waited {DEADLINE:g} s for {what}, which does not end; nothing more can be "
                f"measured in this process: run again with --without and its name"
            ) from None
        except self.cp.cuda.runtime.CUDARuntimeError as error:
            raise Stopped(
                f"{what} broke the device's context ({error}); nothing more can be measured in "
                f"this process: run again with --without and its name"
            ) from error


def clock_for(arrays: str) -> ContestClock:
    """The clock for "numpy" or "cupy" arrays."""
    return CpuClock() if arrays == "numpy" else GpuClock()
