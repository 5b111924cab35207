"""d2l's claims about splitting its LeNet over 4 GPUs: by arithmetic, by program, and run.

Dive into Deep Learning, "Training on Multiple GPUs", says in words what is in numbers here:
    network      a device holds a fraction of the model; whole activations go from layer to layer
    layerwise    "a very large number of synchronization or barrier operations", and an amount of
                 data that is "potentially even larger"
    data         the simplest, synchronised once; but a model must fit on each device
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.convolution.lenet import BATCH, gradients, initial_weights, samples
from tiledask.distributed.convolution.lenet_runs import PARTITIONINGS, put_together
from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison
from tiledask.plan.program.lenet import PARAMETERS, Need, Split
from tiledask.plan.program.making.convolution.lenet_formulas import need_by_formulas
from tiledask.plan.program.making.convolution.of_lenet import need

__all__ = ["lenet_claims"]

ROUND_OFF = {"float64": 1e-13, "float32": 1e-5}
"""Of a gradient's largest element: sums over images and places differ by their order."""


def lenet_claims(
    mesh: Mesh | None = None,
    images: int = BATCH,
    ranks: int = 4,
    dtype: str = "float32",
    seed: int = 0,
    timeout: float = 120.0,
    ways: Iterable[str] = tuple(PARTITIONINGS),
) -> Comparison:
    """A Comparison of LeNet's partitionings: by closed forms, by counting programs, by running.

    On the workers of ``mesh``, or, without one, on ``ranks`` threads of this process. Bytes and
    numbers of synchronisations are those of one training step on ``images`` images. ``ways``:
    which of the three, default all.

    >>> lenet_claims(images=4, dtype="float64")
    Comparison("d2l's LeNet on 4 devices, 4 images": 22 of 22 claims hold)
    """
    ranks = ranks if mesh is None else mesh.ranks
    weights, (x, classes) = initial_weights(seed, dtype), samples(images, seed, dtype)
    loss, others = gradients(weights, x, classes)
    rows: list[Claim] = []
    sent, itemsize = {}, np.dtype(dtype).itemsize
    for name in ways:
        step = PARTITIONINGS[name], weights, x, classes
        if mesh is None:
            done = run_threads(step[0], ranks, *step[1:], timeout=timeout)
        else:
            done = run_ranks(step[0], mesh, *step[1:], timeout=timeout)
        said = need_by_formulas(Split.of(name, ranks), images, itemsize)
        counted = need(name, images, ranks, itemsize)
        # the largest distance from the single device, of the loss or of any gradient
        found, grads = put_together(name, done.results)
        errors = [abs(found - loss) / abs(loss)]
        for layer, each in others.items():
            for kind, g in each.items():
                errors.append(float(np.max(np.abs(grads[layer][kind] - g)) / np.max(np.abs(g))))
        rows += _rows(name, said, counted, done, max(errors), dtype)
        sent[name] = sum(said.sent), sum(counted.sent), sum(r.sent for r in done.records)
    if sent.get("network", (0,))[0] and "layerwise" in sent:
        pairs = zip(sent["layerwise"], sent["network"], strict=True)
        predicted, program, run = (a / b for a, b in pairs)
        what, note = "layerwise: bytes over network's", 'd2l: "potentially even larger"'
        rows.append(Claim(what, predicted, program, run, "", "equal", note))
    return Comparison(f"d2l's LeNet on {ranks} devices, {images} images", rows)


def _rows(
    name: str, said: Need, counted: Need, done: Ranks, error: float, dtype: str
) -> list[Claim]:
    """What a step moves and has on each device: by closed forms, in its program, and run."""
    held = [share.weight_bytes for share in done.results]
    flops = [share.flops for share in done.results]
    sent = [sum(r.sent for r in done.records.where(rank=i)) for i in range(len(held))]
    waits, sends = done.records.barriers.values(), done.records.where(kind="send")
    share = max(held) / (np.dtype(dtype).itemsize * PARAMETERS)
    imbalance = max(flops) * len(flops) / sum(flops)
    claims: list[tuple[str, Callable[[Need], float], Any, str]] = [
        ("bytes, all devices", lambda need: sum(need.sent), sum(sent), "bytes"),
        ("bytes, busiest device", lambda need: max(need.sent), max(sent), "bytes"),
        ("synchronisations", lambda need: need.barriers, max(waits, default=0), "count"),
        ("transfers", lambda need: need.transfers, len(sends), "count"),
        ("weights on a device", lambda need: max(need.parameters) / PARAMETERS, share, "percent"),
        ("busiest over mean FLOP", lambda need: need.imbalance, imbalance, ""),
    ]
    notes = {"weights on a device": "of the model, at most"}
    rows = [
        Claim(f"{name}: {what}", of(said), of(counted), run, unit, "equal", notes.get(what, ""))
        for what, of, run, unit in claims
    ]
    bound, note = ROUND_OFF[dtype], "of the largest element, against a single device"
    error_row = Claim(f"{name}: gradients' error", bound, None, error, rule="at most", note=note)
    return [*rows, error_row]
