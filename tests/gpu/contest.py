"""Implementations of one product take turns: checked, then timed in rounds on the same numbers.

set 0 | set 1 | ...     A, B and a place for C each: more bytes together than L2 holds
round 1                 each implementation, in an order drawn anew: a burst over the sets in turn
round 2 ...             so that a slow moment, or a warm device, slows all of them

A burst on a GPU        fill fill fill | begin | product 0 | product 1 | product 0 ... | end
                        the fills keep the device busy until all of it has been asked for, and
                        leave nothing of the operands in L2
"""

import time
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from gpu.devices import memory_of, release

from tiledask.tile.backend import accumulator, as_dtype, namespace, synchronize
from tiledask.tile.product import matmul
from tiledask.tile.table import kernels

LIBRARY = {"cupy": "cuBLAS", "numpy": "numpy.matmul"}
"""What the other implementations are measured by."""
LIMITS = {
    "bf16": lambda k: 2.0**-8,
    "fp16": lambda k: 2.0**-11,
    "fp32": lambda k: 4 * 2.0**-24 * k**0.5,
}
"""Precision -> the largest ||out - reference|| / ||reference|| of a right result for a given k.

Rounding C to a half costs about 0.4 of its unit roundoff, 2^-9 or 2^-12; a sum of k random terms in
float32 about the square root of k times 2^-24. TF32 in its place is a hundred times over the limit.
"""
BURST = 0.010
"""Seconds of products in a burst on a GPU, about."""


@dataclass(frozen=True)
class Gemm:
    """A product [m, k] x [k, n] that implementations are compared on."""

    m: int
    n: int
    k: int
    precision: str  # A key of LIMITS
    orders: str = "CC"  # How A and B lie: "C" by rows, "F" by columns; the result lies by rows

    @property
    def dtype(self):
        return as_dtype({"bf16": "bfloat16", "fp16": "float16"}.get(self.precision, "float32"))

    @property
    def limit(self):
        """The largest relative error of a right result."""
        return LIMITS[self.precision](self.k)

    @property
    def flops(self):
        return 2 * self.m * self.n * self.k

    def __str__(self):
        cubed = self.m == self.n == self.k
        size = f"{self.m} cubed" if cubed else f"{self.m} x {self.n} x {self.k}"
        how = (f", {x} by columns" for x, o in zip("AB", self.orders, strict=True) if o == "F")
        return f"{self.precision} {size}{''.join(how)}"


# -- numbers and what is right ---------------------------------------------------------------------


def operands(work, arrays, seed):
    """A and B of standard normal numbers, for zeros would be faster, and a place for C."""
    xp = namespace(arrays)
    rng, found = xp.random.default_rng(seed), []
    for shape, order in zip(((work.m, work.k), (work.k, work.n)), work.orders, strict=True):
        wide = rng.standard_normal(shape[:: 1 if order == "C" else -1], accumulator(work.dtype))
        x = wide.astype(work.dtype, copy=False)
        found.append(x if order == "C" else x.T)
    return *found, xp.empty((work.m, work.n), work.dtype)


def reference(a, b, arrays, seed, stride=128):
    """(rows, their values) of a @ b from float64 copies: a random row out of each ``stride``, at
    most 128 of them."""
    xp, rng = namespace(arrays), np.random.default_rng(seed)
    m, n = a.shape[0], b.shape[1]
    starts = np.arange(0, m, max(stride, -(-m // 128)))
    rows = starts + rng.integers(0, np.diff(starts, append=m))
    wide, values = _rows(a, rows, xp), xp.empty((len(rows), n), np.float64)
    for j in range(0, n, 2048):
        values[:, j : j + 2048] = wide @ _wide(b[:, j : j + 2048])
    return rows, values


def error_of(out, right, arrays):
    """||out - reference|| / ||reference|| over the rows of the reference; NaN if any element of
    ``out`` is no number, in whatever row: it was poisoned before."""
    xp, (rows, values) = namespace(arrays), right
    step = max(1, 2**24 // out.shape[1])
    for i in range(0, out.shape[0], step):
        part = out[i : i + step].astype(accumulator(out.dtype), copy=False)
        if not bool(xp.isfinite(part).all()):
            return float("nan")
    return float(xp.linalg.norm(_rows(out, rows, xp) - values) / xp.linalg.norm(values))


def _rows(x, rows, xp):
    """Rows of ``x``; picked as integers, which every array library knows for halves too."""
    return _wide(x.view(f"u{x.itemsize}")[xp.asarray(rows)].view(x.dtype))


def _wide(x):
    return x.astype(accumulator(x.dtype), copy=False).astype(np.float64)


# -- the clock -------------------------------------------------------------------------------------


class Clock:
    """Wall-clock time on NumPy arrays; on a GPU CUDA's events on CuPy's current stream.

    How an implementation is timed is (products of a burst, fills of memory before it): until these
    are done, a GPU cannot begin.
    """

    def __init__(self, arrays):
        self.cp = namespace("cupy") if arrays == "cupy" else None
        if self.cp:
            self.memory = self.cp.empty(min(2**30, memory_of(arrays) // 32), "u1")
            for _ in range(2):
                self.fill_seconds = self.burst(lambda _: self.memory.fill(0), 1, 8)[0]

    def sets_of(self, work):
        """How many sets of operands are taken in turn: together four times what L2 holds."""
        if not self.cp:
            return 2
        cuda = self.cp.cuda
        l2 = cuda.runtime.getDeviceProperties(cuda.Device().id)["l2CacheSize"]
        size = (work.m * work.k + work.k * work.n + work.m * work.n) * work.dtype.itemsize
        return max(2, min(8, -(-4 * l2 // size)))

    def plan(self, run, sets):
        """How ``run`` is to be timed, after some products that warmed up."""
        once, launch = self.burst(run, sets, sets, 1)
        if not self.cp:
            return sets, 0
        if once < BURST:  # clocks rise, and code paths of the host are warm only now
            once, launch = self.burst(run, sets, 4 * sets, 1)
        # at most 64: with the fills fewer than a stream takes before its caller waits
        products = sets * max(1, min(64 // sets, round(BURST / once / sets)))
        # twice as long as it takes to ask for all of them
        return products, min(256, 1 + round(2 * products * launch / self.fill_seconds + 0.5))

    def burst(self, run, sets, products, fills=0):
        """Mean seconds of a product: until it is done, and until the call returns."""
        if self.cp:
            for _ in range(fills):
                self.memory.fill(0)
            begin, end = self.cp.cuda.Event(), self.cp.cuda.Event()
            begin.record()
        begun = time.perf_counter()
        for i in range(products):
            run(i % sets)
        took = launch = (time.perf_counter() - begun) / products
        if self.cp:
            end.record()
            end.synchronize()
            took = self.cp.cuda.get_elapsed_time(begin, end) / 1e3 / products
        return took, launch


# -- the contest -----------------------------------------------------------------------------------


def contest(work, names, arrays, rounds=15):
    """A row for the library and each of ``names``: its state, and its seconds if that is "timed".

    Other states: "skipped" (it cannot run here), "failed" and "wrong", with the reason as "why".
    Raises what broke the device, if anything did.
    """
    release(arrays)
    clock, xp, library = Clock(arrays), namespace(arrays), LIBRARY[arrays]
    sets = [operands(work, arrays, seed) for seed in range(clock.sets_of(work))]
    right = [reference(a, b, arrays, seed) for seed, (a, b, _) in enumerate(sets)]

    def product(name):
        if name == library:  # float32 as long as CUPY_TF32 is not set
            return lambda i: xp.matmul(*sets[i][:2], out=sets[i][2])
        return lambda i: matmul(*sets[i][:2], name, out=sets[i][2])

    def tried(name):
        """(state, why, error: the largest of all sets)."""
        if name in kernels and kernels[name].why_not:
            return "skipped", kernels[name].why_not, None
        errors = []
        try:
            for i, (*_, out) in enumerate(sets):
                out.view(np.uint8)[...] = 0xFF  # a NaN, in every type of float
                product(name)(i)
                synchronize(out)
                errors.append(error_of(out, right[i], arrays))
        except Exception as failure:  # libraries and drivers raise all sorts of things
            synchronize(sets[0][2])  # raises again where the device is of no use any more
            return "failed", f"{type(failure).__name__}: {failure}"[:300], None
        error = float(np.max(errors))  # NaN if one is
        if error <= work.limit:
            return "timed", "", error
        return "wrong", f"a relative error of {error:.2g}", error

    rows = {}
    for name in (library, *names):
        state, why, error = tried(name)
        rows[name] = {"work": str(work), "way": name, "kernel": name, **asdict(work)}
        rows[name] |= {"state": state, "why": why, "error": error, "error limit": work.limit}
    runs = {name: product(name) for name, row in rows.items() if row["state"] == "timed"}
    plans = {name: clock.plan(run, len(sets)) for name, run in runs.items()}
    bursts, rng = {name: [] for name in runs}, np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(runs)).tolist():
            bursts[name].append(clock.burst(runs[name], len(sets), *plans[name]))
    for name, taken in bursts.items():
        seconds, launch = map(list, zip(*taken, strict=True))
        middle = median(seconds)
        rows[name] |= {"rounds": rounds, "all seconds": seconds, "launch": median(launch)}
        rows[name] |= {"seconds": middle, "TFLOP/s": work.flops / middle / 1e12}
        if library in bursts:
            rows[name]["ratio"] = rows[library]["seconds"] / middle
    return list(rows.values())
