"""Claims as tables, one subject each: what is predicted, what the plan says, what workers did.

product_rows     a distributed product: bytes, messages, memory, error and time
compare_claims   memory: what the planner predicts, and what workers were refused
lenet_claims     d2l's words about splitting its LeNet over 4 GPUs, in numbers

Dive into Deep Learning, "Training on Multiple GPUs", says in words what is in numbers here:
    network      a device holds a fraction of the model; whole activations go from layer to layer
    layerwise    "a very large number of synchronization or barrier operations", and an amount of
                 data that is "potentially even larger"
    data         the simplest, synchronised once; but a model must fit on each device
"""

from collections.abc import Iterable, Mapping
from math import isqrt
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import psutil

import tiledask as td
from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.convolution.lenet import train_lenet
from tiledask.distributed.memory.claims import TOLERANCE, ClaimRun
from tiledask.distributed.training import Trained
from tiledask.errors import DoesNotFitError
from tiledask.plan.program.making.lenet import PARAMETERS, Need, need
from tiledask.plan.units import format_bytes
from tiledask.tile import accumulator, as_dtype
from tiledask.tile.optimizers import SGD

__all__ = ["RandomProduct", "compare_claims", "lenet_claims", "product_rows"]

RULE = ("ratio", 1 - TOLERANCE, 1 + TOLERANCE)
ROUND_OFF = {"float64": 1e-13, "float32": 1e-5}
"""Of a gradient's largest element: sums over images and places differ by their order."""

# -- one product -----------------------------------------------------------------------------------


class RandomProduct(NamedTuple):
    """Two random matrices, and their product by one process."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    seconds: float
    """The faster of two single-process products, with all of BLAS's threads."""

    @classmethod
    def random(cls, m: int, n: int, k: int, dtype: str = "float32") -> "RandomProduct":
        """Of m x k and k x n numbers; DoesNotFitError where they and the workers' have no room.
        Half types are multiplied in what they are summed in."""
        size = max(4, as_dtype(dtype).itemsize)
        # A, B and C here and on the workers, and C once more to compare
        needed, free = size * (2 * k * (m + n) + 3 * m * n), psutil.virtual_memory().available
        if needed > free:
            raise DoesNotFitError(
                f"a product of {m:,} x {n:,} x {k:,} {dtype} numbers and its comparison take "
                f"{format_bytes(needed)}, and {format_bytes(free)} are free; take sizes of "
                f"{isqrt(free // (7 * size)):,} or less, or predict it without a run"
            )
        rng = np.random.default_rng(0)
        drawn = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
        a, b = (x.astype(as_dtype(dtype)) for x in drawn)
        times, sums = [], accumulator(a.dtype)
        for _ in range(2):
            begun = perf_counter()
            c = a.astype(sums, copy=False) @ b.astype(sums, copy=False)
            times.append(perf_counter() - begun)
        return cls(a, b, c, min(times))


def product_rows(
    problem: RandomProduct,
    C: ShardedArray,
    kernel: str,
    tile: int | None,
    algorithm: str = "summa",
) -> list[td.Check]:
    """What a formula, the plan and the workers say of one product; the formula of algorithms by
    which each rank gets once what it lacks of its rows of A and its columns of B."""
    (m, k), n, itemsize = problem.a.shape, problem.b.shape[1], C.dtype.itemsize
    (planned, counted), (predicted, measured), (p, q) = C.traffic, C.memory, C.mesh.shape
    runtime = max(predicted.by_tensor(place)["runtime"] for place in predicted.places)
    formula = None
    if algorithm in ("summa", "cannon", "gather"):
        # each rank lacks (q-1)/q of a block row of A and (p-1)/p of a block column of B
        formula = (m * k * (q - 1) + k * n * (p - 1)) * itemsize
    result = td.to_numpy(C).astype(problem.c.dtype)
    error = float(np.abs(result - problem.c).max() / np.abs(problem.c).max())
    rounded = 2.0 ** -(8 if C.dtype.name == "bfloat16" else 10) * (C.dtype != problem.c.dtype)
    bound = k * float(np.finfo(problem.c.dtype).eps) + rounded
    peak = ("peak bytes per worker", predicted.peak, None, measured.peak, "bytes", "at most")
    wrong = ("relative error of the answer", bound, None, error, "", "at most")
    rows = [
        td.Check("bytes between workers", formula, planned.total, counted.total, "bytes", "equal"),
        td.Check("messages between workers", None, planned.count, counted.count, "", "equal"),
        td.Check(*peak, f"{format_bytes(runtime)} are for BLAS, interpreter and allocator"),
    ]
    if C.tiles and algorithm == "summa":  # blocks are multiplied along all of k
        of = tile or td.tile.kernels[kernel].tile or 512
        loads: int = sum(
            td.tile.traffic(bottom - top, right - left, k, of, itemsize).loaded
            for (top, bottom), (left, right) in C.tiling.regions
        )
        what = f"bytes that tiles load, all workers, by {kernel}"
        rows.append(td.Check(what, loads, None, C.tiles.loaded, "bytes", "equal"))
    return [
        *rows,
        td.Check(*wrong, "bound k eps; against one process"),
        td.Check("seconds, one process, all cores", None, None, problem.seconds, "seconds"),
        td.Check("seconds, over the workers", None, None, C.seconds, "seconds"),
    ]


# -- memory ----------------------------------------------------------------------------------------


def compare_claims(title: str, runs: Mapping[str, ClaimRun]) -> td.Comparison:
    """Two rows a claim: the peak of the fullest device, and the verdict. Simulated is what the
    program holds that is run.

    A peak holds if predicted and measured are within TOLERANCE on every stage; of a claim that
    was refused memory, the row shows how much the refused device would have held at least.
    """
    rows = []
    for name, run in runs.items():
        if run.refused:
            peaks = run.predicted.peak, run.simulated.peak, run.refused.needed
            what = f"{name}: peak, refused at"
            rows.append(td.Check(what, *peaks, unit="bytes", note=str(run.refused)))
        else:
            stage, ledgers = run.widest, (run.predicted, run.simulated, run.measured)
            planned, counted, ran = (ledger.per_place[stage] for ledger in ledgers)
            note = f"stage {stage}"
            rows.append(td.Check(f"{name}: peak", planned, counted, ran, "bytes", RULE, note))
        verdicts = run.predicted_verdict, None, run.executed_verdict
        rows.append(td.Check(f"{name}: verdict", *verdicts, rule="equal"))
    return td.Comparison(title, rows)


# -- LeNet -----------------------------------------------------------------------------------------


class GradientsAsWeights(SGD):
    """A step after which the weights are the gradients that it was given."""

    def step(self, w: Any, g: Any, states: Any, steps: int) -> tuple[Any, dict[str, Any]]:
        return g, {}


def lenet_claims(
    mesh: td.Mesh | None = None,
    images: int = 256,
    ranks: int = 4,
    dtype: str = "float32",
    ways: Iterable[str] = ("layerwise", "network", "data parallel"),
) -> td.Comparison:
    """A Comparison of LeNet's partitionings: by counting programs, and by running.

    On the workers of ``mesh``, or, without one, on ``ranks`` threads of this process. Bytes and
    numbers of synchronisations are those of one training step on ``images`` images. ``ways``:
    which of the three, default all.

    >>> lenet_claims(images=4, dtype="float64")
    Comparison("d2l's LeNet on 4 devices, 4 images": 19 of 19 claims hold)
    """
    ranks = ranks if mesh is None else mesh.ranks
    digits, rule = td.load_images("digits"), GradientsAsWeights()
    how: dict[str, Any] = {"steps": 1, "batch": images, "rule": rule, "dtype": dtype}
    alone = train_lenet(digits, {}, **how)
    rows: list[td.Check] = []
    sent, itemsize = {}, np.dtype(dtype).itemsize
    for name in ways:
        done = train_lenet(digits, {name: ranks}, mesh, **how)
        predicted = need(name, images, ranks, itemsize)
        # the largest distance from the single device, of the loss or of any gradient
        errors = [abs(done.losses[0] / alone.losses[0] - 1)]
        for weight, g in alone.weights.items():
            far = np.max(np.abs(done.weights[weight] - g))
            errors.append(float(far / np.max(np.abs(g))))
        rows += _rows(name, predicted, done, max(errors), dtype)
        sent[name] = sum(predicted.sent), sum(r.sent for r in done.records)
    if sent.get("network", (0,))[0] and "layerwise" in sent:
        ratios = [a / b for a, b in zip(sent["layerwise"], sent["network"], strict=True)]
        what, note = "layerwise: bytes over network's", 'd2l: "potentially even larger"'
        rows.append(td.Check(what, ratios[0], None, ratios[1], "", "equal", note))
    return td.Comparison(f"d2l's LeNet on {ranks} devices, {images} images", rows)


def _rows(name: str, predicted: Need, done: Trained, error: float, dtype: str) -> list[td.Check]:
    """What a step moves and has on each device: in its program, and run."""
    held = [each["weights"] for each in done.held]
    sent = [sum(r.sent for r in done.records.where(rank=i)) for i in range(len(held))]
    waits, sends = done.records.barriers.values(), done.records.where(kind="send")
    share = max(held) / (np.dtype(dtype).itemsize * PARAMETERS)
    most = max(predicted.parameters) / PARAMETERS
    counted: list[tuple[str, float, Any, str]] = [
        ("bytes, all devices", sum(predicted.sent), sum(sent), "bytes"),
        ("bytes, busiest device", max(predicted.sent), max(sent), "bytes"),
        ("synchronisations", predicted.barriers, max(waits, default=0), "count"),
        ("transfers", predicted.transfers, len(sends), "count"),
        ("most weights on a device", most, share, "percent"),
    ]
    rows = [
        td.Check(f"{name}: {what}", claimed, None, run, unit, "equal")
        for what, claimed, run, unit in counted
    ]
    bound, note = ROUND_OFF[dtype], "of the largest element, against a single device"
    error_row = td.Check(f"{name}: gradients' error", bound, None, error, rule="at most", note=note)
    return [*rows, error_row]
