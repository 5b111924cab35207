"""The kernels whose panels come by cp.async, on the host; and what they ask of shared memory."""

from functools import partial
from unittest.mock import patch

from twins.cuda_host import CHOSEN, HostFault, HostKernel
from twins.cuda_host.memory import lent_copies
from twins.cuda_host.products import GemmCase, is_right

from tiledask.tile.cuda import launch

__all__ = ["COPY", "LDMATRIX", "READ", "WRITE", "TileKernels", "lies", "runs", "shapes"]

OPEN = (*CHOSEN, "PAIRS")
READ, WRITE, COPY, LDMATRIX = range(4)
"""Kinds of instructions on shared memory, as gpu.cuh beside this file numbers them."""

SHARED = 227 * 1024
"""Bytes of shared memory that a block of sm_90 can have."""


def lies(layouts, boundary, dtype="bfloat16", c="C"):
    """What a GemmCase needs for lines that start on multiples of ``boundary`` bytes, no more."""
    itemsize = 4 if dtype == "float32" else 2
    return {"layouts": layouts + c, "margin": boundary // itemsize, "dtype": dtype}


def shapes(k):
    """(m, n, k) around tiles of 64 x 64 and steps of ``k`` along k: none whole, one, more, less."""
    return [
        (1, 1, 1),
        (64, 64, k),
        (63, 65, k + 1),
        (65, 63, k - 1),
        (64, 64, k // 8 + 3),
        (5, 70, 3 * k),
        (70, 5, 4 * k),
        (62, 61, 3 * k + 4),
        (3, 3, 3 * k - 1),
    ]


ENDINGS = {
    "alpha": {"alpha": -0.5},
    "alpha and beta": {"alpha": 2.0, "beta": 0.5},
    "bias": {"bias": True},
    "GELU": {"gelu": True},
    "all": {"beta": 1.0, "bias": True, "gelu": True, "before": True},
}


def runs(dtype, k):
    """{name: (case, seed)} for a kernel of 64 x 64 tiles and steps of ``k`` along k.

    What is done to the sums; many tiles; threads in any order.
    """
    rows, longer = lies("CC", 16, dtype), 5 * k // 4
    columns = lies("FF", 16, dtype, c="F")  # then the transposed product runs
    apart = lies("CC", 16, dtype, c="S")
    cases = {
        "C's elements all lie apart": GemmCase(66, 65, longer, **apart, beta=1.0, bias=True),
        "a whole band of tiles and a ragged one": GemmCase(64 * 8 + 3, 130, 3, **rows),
    }
    for name, how in ENDINGS.items():
        cases[f"{name}, rows"] = GemmCase(66, 70, longer, **rows, **how)
        cases[f"{name}, columns"] = GemmCase(66, 70, longer, **columns, **how)
    made = {name: (case, 1) for name, case in cases.items()}
    for seed in range(3, 9):
        made[f"threads in order {seed}"] = GemmCase(65, 66, 5 * longer, **rows), seed
    return made


class TileKernels:
    """Variants of one kernel, each built when a product first needs it."""

    def __init__(self, folder, name, faults=(), **macros):
        self.folder, self.name, self.faults, self.macros = folder, name, faults, macros
        self.tile = tuple(macros[x] for x in ("TILE_M", "TILE_N", "TILE_K"))
        self.built = {}

    def run(self, a, b, out, epilogue, seed=1):
        """Launches it as on a GPU, but told what it may read."""

        def kernel(name, macros, shared):
            fixed = {k: v for k, v in macros.items() if k not in OPEN} | self.macros
            key = tuple(sorted(fixed.items()))
            if key not in self.built:
                folder = self.folder / str(len(self.built))
                self.built[key] = HostKernel(folder, name, fixed, self.faults, chosen=OPEN)
                self.built[key].max_dynamic_shared_size_bytes = SHARED
            found = self.built[key]
            found.seed = seed
            return found.choose(macros)

        with patch.object(launch, "_kernel", kernel), lent_copies():
            getattr(launch, self.name)(a, b, out, self.tile, epilogue)

    def is_right(self, case, seed=1):
        return is_right(partial(self.run, seed=seed), case)

    def turns(self, kind, size):
        """How often shared memory was asked at most for one instruction with ``size`` bytes a lane.

        1: no two lanes that are served together wanted different words of one bank.
        """
        worst = [kernel.library.worst_conflict(kind, size) for kernel in self.built.values()]
        return max(worst)

    def unpaired(self, kind, size):
        """Instructions in which lanes neither go in pairs (i, i ^ 1) nor in pairs (i, i ^ 2)."""
        return sum(kernel.library.unpaired(kind, size) for kernel in self.built.values())

    def catches(self, tries):
        """Whether one of (case, seed) comes out wrong, or never."""
        try:
            return not all(self.is_right(*one) for one in tries)
        except HostFault:
            return True
