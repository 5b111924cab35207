"""d2l's claims about splitting its LeNet over 4 GPUs: predicted, run, and side by side.

Dive into Deep Learning, "Training on Multiple GPUs", says in words what is in numbers here:
    network      a device holds a fraction of the model; whole activations go from layer to layer
    layerwise    "a very large number of synchronization or barrier operations", and an amount of
                 data that is "potentially even larger"
    data         the simplest, synchronised once; but a model must fit on each device
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.dist.convolution.lenet import BATCH, LENET, samples
from tiledask.dist.convolution.lenet_plan import PARAMETERS, Need, need
from tiledask.dist.convolution.lenet_runs import PARTITIONINGS, put_together
from tiledask.dist.data_parallel.chain import gradients, initial_weights
from tiledask.dist.ranks.program import Ranks
from tiledask.dist.ranks.threads import run_threads
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison

if TYPE_CHECKING:
    from tiledask.dist.mesh import Mesh

__all__ = ["lenet_claims"]

ROUND_OFF = {"float64": 1e-13, "float32": 1e-5}
"""Of a gradient's largest element: sums over images and places differ by their order."""


def lenet_claims(
    mesh: "Mesh | None" = None, images: int = BATCH, ranks: int = 4, dtype: str = "float32",
    seed: int = 0, timeout: float = 120.0,
) -> Comparison:  # fmt: skip
    """A Comparison of LeNet's three partitionings: predicted by arithmetic, measured by running.

    On the workers of ``mesh``, or, without one, on ``ranks`` threads of this process. Bytes and
    numbers of synchronisations are those of one training step on ``images`` images.

    >>> lenet_claims(images=4, dtype="float64")
    Comparison("d2l's LeNet on 4 devices, 4 images": 22 of 22 claims hold)
    """
    ranks = ranks if mesh is None else mesh.ranks
    weights, (x, classes) = initial_weights(LENET, seed, dtype), samples(images, seed, dtype)
    whole = gradients(LENET, weights, x, classes)
    rows, sent = [], {}
    for name, program in PARTITIONINGS.items():
        done = _run(program, mesh, ranks, timeout, weights, x, classes)
        said = need(name, images, ranks, np.dtype(dtype).itemsize)
        rows += _rows(name, said, done, _error(put_together(name, done.results), whole), dtype)
        sent[name] = sum(said.sent), sum(record.sent for record in done.records)
    (predicted, measured), network = sent["layerwise"], sent["network"]
    if network[1]:
        rows.append(
            Claim(
                "layerwise over network: bytes", predicted / network[0], None,
                measured / network[1], rule="equal", note='d2l: "potentially even larger"',
            )
        )  # fmt: skip
    return Comparison(f"d2l's LeNet on {ranks} devices, {images} images", tuple(rows))


def _run(program: Any, mesh: "Mesh | None", ranks: int, timeout: float, *args: Any) -> Ranks:
    if mesh is None:
        return run_threads(program, ranks, *args, timeout=timeout)
    from tiledask.dist.ranks.run import run_ranks

    return run_ranks(program, mesh, *args, timeout=timeout)


def _rows(name: str, said: Need, done: Ranks, error: float, dtype: str) -> list[Claim]:
    shares, itemsize = done.results, np.dtype(dtype).itemsize
    sent = [sum(r.sent for r in done.records.where(rank=i)) for i in range(len(shares))]
    held = [share.weight_bytes for share in shares]
    flops = [share.flops for share in shares]
    return [
        Claim(f"{name}: bytes, all devices", sum(said.sent), None, sum(sent), "bytes", "equal"),
        Claim(f"{name}: bytes, busiest device", max(said.sent), None, max(sent), "bytes", "equal"),
        Claim(
            f"{name}: synchronisations", said.barriers, None,
            max(done.records.barriers.values(), default=0), "count", "equal",
        ),
        Claim(
            f"{name}: transfers", said.transfers, None, len(done.records.where(kind="send")),
            "count", "equal",
        ),
        Claim(
            f"{name}: weights on a device", max(said.parameters) / PARAMETERS, None,
            max(held) / (itemsize * PARAMETERS), "percent", "equal", "of the model, at most",
        ),
        Claim(
            f"{name}: busiest over mean FLOP", said.imbalance, None,
            max(flops) * len(flops) / sum(flops), rule="equal",
        ),
        Claim(
            f"{name}: gradients' error", ROUND_OFF[dtype], None, error, rule="at most",
            note="of the largest element, against a single device",
        ),
    ]  # fmt: skip


def _error(found: tuple, whole: tuple) -> float:
    """The largest distance from the single device, of the loss or of any gradient."""
    (loss, grads), (expected, others) = found, whole
    errors = [abs(loss - expected) / abs(expected)]
    for layer, each in others.items():
        for kind, g in each.items():
            errors.append(float(np.max(np.abs(grads[layer][kind] - g)) / np.max(np.abs(g))))
    return max(errors)
