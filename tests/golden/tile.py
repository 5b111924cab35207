"""Golden values of one device: kernels' products, and their bounds."""

from typing import Any

import ml_dtypes
import numpy as np

import tiledask as td
from golden.store import MACHINE, GoldenSet, bits, numbers, picked


def optimizer(kind: str, lr: float, eps: float | None = None, **options: Any) -> Any:
    """A rule by the usual names of its options."""
    rules = td.tile.optimizers
    if eps is not None:
        options["tiny"] = eps
    return {"sgd": rules.SGD, "adam": rules.Adam, "adamw": rules.AdamW}[kind](rate=lr, **options)


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def predicted(given: dict[str, Any]) -> Any:
    """Of each size what binds, seconds, and of each level its tile, bytes and intensity."""
    config = td.tile.config_of(given["kernel"], given["dtype"])
    found = {"blocks": td.tile.occupancy(config, given["device"]).blocks}
    for m, n, k in given["sizes"]:
        bound = td.tile.predict(m, n, k, config, given["device"])
        of_level = {x.name: [*x.tile, x.loaded, x.stored, x.intensity] for x in bound.levels}
        found[f"{m}x{n}x{k}"] = picked(bound, "binding seconds") | of_level
    return found


def traffic(given: dict[str, Any]) -> Any:
    """Bytes that tiles load and store, and what kernels allocate beside."""
    extents, size = given["extents"], given["itemsize"]
    found = td.tile.traffic(*extents, tuple(given["tile"]), size, given["accumulate"])
    large = [8 * each for each in extents]
    hows: list[dict[str, Any]] = [{}, {"accumulate": True}]
    hows += [{"out_itemsize": {2: 4}.get(size)}]
    return {
        "bytes": [found.a, found.b, found.c, found.tiles],
        "workspace": {
            kernel: [td.tile.workspace(*large, size, kernel, **how) for how in hows]
            for kernel in ("blas", "tiled")
        },
    }


def kernel_bits(given: dict[str, Any]) -> Any:
    """Bits of a product by definition, and by tiles of one column: whatever library there is. Of
    the library's own product the bits depend on the machine."""
    (m, n, k), dtype = given["extents"], dtype_of(given["dtype"])
    a, b, c = (numbers(i, *s).astype(dtype) for i, s in enumerate([(m, k), (k, n), (m, n)]))
    found = {}
    for kernel, tile in (("loops", None), ("tiled", tuple(given["tile"])), ("blas", None)):
        out = td.tile.matmul(a, b, kernel, tile, out=c.copy(), beta=given["beta"])
        found[kernel] = bits(out)
    return {"loops": found["loops"], "tiled": found["tiled"], MACHINE: found["blas"]}


SETS = (
    GoldenSet("tiles", predicted),
    GoldenSet("tile_bytes", traffic),
    GoldenSet("kernels", kernel_bits),
)
