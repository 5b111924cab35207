"""d2l's claims about splitting its LeNet over 4 GPUs: by arithmetic, by program, and run.

lenet_claims      one step on random images: are the gradients those of a single device?
lenet_trainings   trained for real under each split; lenet_training_claims: is every step as said?

Dive into Deep Learning, "Training on Multiple GPUs", says in words what is in numbers here:
    network      a device holds a fraction of the model; whole activations go from layer to layer
    layerwise    "a very large number of synchronization or barrier operations", and an amount of
                 data that is "potentially even larger"
    data         the simplest, synchronised once; but a model must fit on each device
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.convolution.lenet import BATCH, LENET, gradients, initial_weights, samples
from tiledask.distributed.convolution.lenet_runs import PARTITIONINGS, put_together
from tiledask.distributed.convolution.lenet_train import TrainedLeNet, train_lenet
from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.records import Records
from tiledask.distributed.ranks.run import run_ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.precision import verdicts
from tiledask.lab.table import Comparison
from tiledask.plan.program.lenet import PARAMETERS, Need, Split
from tiledask.plan.program.making.convolution.lenet_formulas import need_by_formulas
from tiledask.plan.program.making.convolution.of_lenet import need
from tiledask.tile.datasets import Images, load_images
from tiledask.tile.optimizers import Adam, Rule

__all__ = ["lenet_claims", "lenet_training_claims", "lenet_trainings"]

ROUND_OFF = {"float64": 1e-13, "float32": 1e-5}
"""Of a gradient's largest element: sums over images and places differ by their order."""
EARLY = 10
"""Steps whose losses are compared. Later, sooner or later, the input of one relu is so near to zero
that round-off moves it across: a gradient goes through in one run and not in the other, which is no
fault of the split, but in float32 moves the loss far more than round-off does."""
SPLITS = (
    {"network": 4},
    {"by output units": 4},
    {"data parallel": 4},
    {"space": 4},
    {"data parallel": 2, "by output units": 2},
)
"""What is trained, on four ranks each."""


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
    whole = gradients(weights, x, classes)
    rows, sent = [], {}
    for name in ways:
        done = _run(PARTITIONINGS[name], mesh, ranks, timeout, weights, x, classes)
        itemsize = np.dtype(dtype).itemsize
        said = need_by_formulas(Split.of(name, ranks), images, itemsize)
        counted = need(name, images, ranks, itemsize)
        # the largest distance from the single device, of the loss or of any gradient
        found = put_together(name, done.results)
        (loss, grads), (expected, others) = found, whole
        errors = [abs(loss - expected) / abs(expected)]
        for layer, each in others.items():
            for kind, g in each.items():
                errors.append(float(np.max(np.abs(grads[layer][kind] - g)) / np.max(np.abs(g))))
        rows += _rows(name, said, counted, done, max(errors), dtype)
        sent[name] = sum(said.sent), sum(counted.sent), sum(r.sent for r in done.records)
    if sent.get("network", (0,))[0] and "layerwise" in sent:
        ratios = (a / b for a, b in zip(sent["layerwise"], sent["network"], strict=True))
        rows.append(
            Claim(
                "layerwise: bytes over network's",
                *ratios,
                rule="equal",
                note='d2l: "potentially even larger"',
            )
        )
    return Comparison(f"d2l's LeNet on {ranks} devices, {images} images", tuple(rows))


def _run(program: Any, mesh: Mesh | None, ranks: int, timeout: float, *args: Any) -> Ranks:
    if mesh is None:
        return run_threads(program, ranks, *args, timeout=timeout)
    return run_ranks(program, mesh, *args, timeout=timeout)


def _rows(
    name: str, said: Need, counted: Need, done: Ranks, error: float, dtype: str
) -> list[Claim]:
    held = [share.weight_bytes for share in done.results]
    flops = [share.flops for share in done.results]
    return [
        *_step_rows(name, said, counted, [_Count.of(done.records, len(held))], held, flops, dtype),
        Claim(
            f"{name}: gradients' error",
            ROUND_OFF[dtype],
            None,
            error,
            rule="at most",
            note="of the largest element, against a single device",
        ),
    ]


class _Count(NamedTuple):
    """What a step moved."""

    sent: list[int]
    """Bytes, by rank."""
    barriers: int
    transfers: int

    @classmethod
    def of(cls, records: Records, ranks: int) -> "_Count":
        """Counts from the records of one step."""
        sent = [sum(r.sent for r in records.where(rank=i)) for i in range(ranks)]
        waits = max(records.barriers.values(), default=0)
        return cls(sent, waits, len(records.where(kind="send")))


def _step_rows(
    name: str,
    said: Need,
    counted: Need,
    counts: list[_Count],
    held: list[int],
    flops: list[int],
    dtype: str,
) -> list[Claim]:
    """What each step moves and has on each device: by closed forms, in its program, and run."""

    def same(values: list[int]) -> Any:
        """The number of every step; all there were, if they differ."""
        return values[0] if len(set(values)) == 1 else tuple(sorted(set(values)))

    every = same([sum(count.sent) for count in counts])
    busiest = same([max(count.sent) for count in counts])
    waits, messages = (same([c[i] for c in counts]) for i in (1, 2))
    share = max(held) / (np.dtype(dtype).itemsize * PARAMETERS)
    imbalance = max(flops) * len(flops) / sum(flops)
    claims: list[tuple[str, Callable[[Need], float], Any, str]] = [
        ("bytes, all devices", lambda need: sum(need.sent), every, "bytes"),
        ("bytes, busiest device", lambda need: max(need.sent), busiest, "bytes"),
        ("synchronisations", lambda need: need.barriers, waits, "count"),
        ("transfers", lambda need: need.transfers, messages, "count"),
        ("weights on a device", lambda need: max(need.parameters) / PARAMETERS, share, "percent"),
        ("busiest over mean FLOP", lambda need: need.imbalance, imbalance, ""),
    ]
    notes = {"weights on a device": "of the model, at most"}
    return [
        Claim(f"{name}: {what}", of(said), of(counted), run, unit, "equal", notes.get(what, ""))
        for what, of, run, unit in claims
    ]


# -- trained for real ------------------------------------------------------------------------------


def lenet_trainings(
    mesh: Mesh | None = None,
    splits: Iterable[Mapping[str, int]] = SPLITS,
    *,
    steps: int = 40,
    batch: int = 32,
    rule: Rule | None = None,
    dtype: str = "float32",
    data: Images | None = None,
    seed: int = 0,
    timeout: float = 300.0,
) -> dict[str, TrainedLeNet]:
    """LeNet trained on a single device and under each of ``splits``, by their names.

    On the workers of ``mesh``, the single device on one of them; or, without one, on threads of
    this process. ``data``: default four fifths of the shipped digits.

    >>> list(lenet_trainings(splits=[{"network": 2}], steps=1, batch=2))
    ['a single device', 'network 2']
    """
    data = load_images("digits").split(0.8)[0] if data is None else data
    options = {"steps": steps, "batch": batch, "rule": rule or Adam(), "dtype": dtype, "seed": seed}
    runs = {}
    for ways in ({}, *splits):
        here = mesh and Mesh(mesh.cluster, (Split.of(ways).ranks,))
        run = train_lenet(data, ways, here, **options, timeout=timeout)
        runs[str(run.split)] = run
    return runs


def lenet_training_claims(
    runs: Mapping[str, TrainedLeNet], held_out: Images | None = None
) -> Comparison:
    """A Comparison of `lenet_trainings`: what every step was to move and moved, and the losses.

    A measured number is that of every step; where steps differ it is all that there were, and no
    claim holds. A loss is the single device's if `tiledask.lab.precision.acceptable` says that the
    difference is round-off. ``held_out``: images to name, default the digits' last fifth.

    Raises ConfigError for runs without a single device to compare with, or without a step.

    >>> lenet_training_claims(lenet_trainings(splits=[{"network": 2}], steps=2, batch=2))
    Comparison("d2l's LeNet trained, 2 steps under each split": 8 of 8 claims hold)
    """
    held_out = load_images("digits").split(0.8)[1] if held_out is None else held_out
    alone = next((run for run in runs.values() if run.split.ranks == 1), None)
    if alone is None:
        raise ConfigError(
            f"splits are compared with a single device, and there is none in {', '.join(runs)}; "
            f"train_lenet(data, {{}}, ...) is one"
        )
    if not all(len(run.losses) for run in runs.values()):
        raise ConfigError("trainings are compared step by step: steps=1 or more, got runs of 0")
    right, rows = alone.accuracy(held_out), [_seconds("a single device", alone)]
    for name, run in runs.items():
        if run is not alone:
            rows += _training_rows(name, run, alone)
            rows.append(
                Claim(
                    f"{name}: accuracy on unseen digits",
                    right,
                    None,
                    run.accuracy(held_out),
                    "percent",
                    ("within", 0.02),
                    f"of {len(held_out)} unseen; predicted: by a single device",
                )
            )
            rows.append(_seconds(name, run))
    title = f"d2l's LeNet trained, {len(alone.losses)} steps under each split"
    return Comparison(title, tuple(rows))


def _training_rows(name: str, run: TrainedLeNet, alone: TrainedLeNet) -> list[Claim]:
    dtype, ranks = run.weights["fc1"]["w"].dtype.name, run.split.ranks
    steps = range(len(run.losses))
    counts = [_Count.of(run.records.where(step=n), ranks) for n in steps]
    held = [each["weights"] for each in run.held]
    pairs = list(zip(alone.losses, run.losses, strict=True))
    near = verdicts(alone.losses[:EARLY], run.losses[:EARLY], dtype, ranks, len(LENET))
    apart = max(abs(a - b) / a for a, b in pairs)
    return [
        *_step_rows(name, run.planned, run.counted, counts, held, run.flops, dtype),
        Claim(
            f"{name}: losses of a single device",
            len(near),
            None,
            sum(map(bool, near)),
            "count",
            "equal",
            f"of the first {len(near)} steps; of all at most {apart:.1e} apart",
        ),
    ]


def _seconds(name: str, run: TrainedLeNet) -> Claim:
    return Claim(
        f"{name}: time of a step",
        measured=float(np.median(run.seconds)),
        unit="seconds",
        note="the median",
    )
