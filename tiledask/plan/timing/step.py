"""The time of one training step of a layout, taken apart: what the seconds go to, and why.

stage 0  F F F F B F B F B ...  B B B | reduce gradients | update
stage 1  . F F F B F B F B ...  B B . |                  |
         fill                    drain   dp                optimizer
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.arrays import Array
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, check_trains, chunk_kinds
from tiledask.plan.pipelines.schedules import BOTH_WAYS, layout_schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.timing.calibration import Calibration, calibration_of
from tiledask.plan.timing.layer_time import PIECE, LayerTime
from tiledask.plan.timing.step_estimate import StepEstimate
from tiledask.plan.timing.step_time import held_weights, reduction, update

__all__ = ["StepEstimate", "calibrate", "estimate_step", "estimate_steps", "pipeline_seconds"]

MOST_ACTIONS = 200_000
"""Of a 1F1B, up to which more rounds are simulated to see one repeat itself."""
ELSEWHERE = 0.05
"""The relative error of a scale that one layout showed, in others."""
_order = lru_cache(maxsize=64)(layout_schedule)
"""The Schedule. Kept: a search simulates the same ones for many layouts."""


def estimate_step(
    model: Model | str,
    layout: Layout,
    cluster: ClusterSpec | str,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
    *,
    calibration: str | Calibration | None = None,
    framework: str | None = None,
) -> StepEstimate:
    """The StepEstimate of training ``model`` in ``layout`` on ``cluster``.

    ``model``, ``cluster``: or their names. ``sequence``: tokens of a sequence.
    ``framework``: whose kernels and overlaps are assumed, a name in data/calibration/framework;
    by default the recipe's, or the device's. ``calibration``: one that `tiledask.calibrate` made
    of measured steps, or the path of a saved one, in place of both.
    Ranks stand as Megatron-LM orders them: tp within a node, then cp, dp, pp; an expert's
    slices, then ep.
    Raises ConfigError for a layout of more devices than the cluster has, heads that tp cannot
    divide, a recipe that does not train, or a sequence that is not a whole number of 1 or more.

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> layout = Layout(tp=8, pp=4, dp=2, microbatches=64, recompute="selective")
    >>> estimate_step(load_model("llama-2-70b"), layout, load_cluster("64xA100-80GB"),
    ...               sequence=4096)  # doctest: +ELLIPSIS
    StepEstimate(... s a step on 64 x A100-80GB, MFU ... %, ... tokens/s)
    """
    run = model, [layout], cluster, recipe, sequence
    return estimate_steps(*run, calibration=calibration, framework=framework)[0]


def estimate_steps(
    model: Model | str,
    layouts: Sequence[Layout],
    cluster: ClusterSpec | str,
    recipe: str | Recipe,
    sequence: int | None,
    **assumed: Any,
) -> list[StepEstimate]:
    """What `estimate_step` says of each of ``layouts``: their layers are timed together."""
    model, cluster, recipe = load_model(model), load_cluster(cluster), load_recipe(recipe)
    check_trains(recipe, timed=True)
    for layout in layouts:
        sequence = check_run(model, layout, sequence)
        if layout.devices > cluster.devices:
            raise ConfigError(
                f"the layout needs {layout.devices} devices (dp x cp x tp x pp), the cluster has "
                f"{cluster.devices}; use fewer copies or a cluster such as "
                f"'{layout.devices}x{cluster.device.name}'"
            )
    known = calibration_of(cluster.device, recipe, **assumed, mixture=model.experts > 0)
    given: dict[str, Any] = {"model": model, "cluster": cluster, "recipe": recipe}
    given |= {"sequence": sequence, "calibration": known}
    time = LayerTime(**given, n=Numbers.of(*layouts))
    # of each layout [a layer of each kind, transfer, embedding, head, mean layer][PIECE, ways]
    pieces = *time.kinds, time.transfer(), time.embedding(), time.head(), time.mean_layer()
    shape = len(PIECE), 2, len(layouts)
    every = np.moveaxis(np.stack([np.broadcast_to(piece, shape) for piece in pieces]), -1, 0)
    stages = list[tuple[Array, float, int]]()
    for layout, here in zip(layouts, every[:, :-1], strict=True):
        # how many a chunk has: layers of each kind, what it sends, embeddings, heads
        counts = np.array(chunk_kinds(model, layout))
        counts = np.column_stack([counts, np.ones(len(counts)), np.zeros((len(counts), 2))])
        counts[0, -2] = counts[-1, -1] = 1
        run = 0.0  # from the first forward to the last backward pass
        if layout.pp > 1:
            run = pipeline_seconds(layout, *(counts @ here.sum(1)).T.tolist())
        of_stage = sum(counts[chunk] for chunk in layout.stage_chunks(np.arange(layout.pp)))
        # both copies of a stage get half of the micro-batches each
        part = 0.5 if layout.schedule in BOTH_WAYS else 1
        busiest = part * of_stage[np.argmax(of_stage @ here.sum((1, 2)))]
        fullest_here = int(of_stage[:, :-3].sum(1).max())  # layers
        stages.append((np.tensordot(busiest, here, 1), run, fullest_here))
    slowest, runs, fullest = map(np.array, zip(*stages, strict=True))
    m = np.array([layout.microbatches for layout in layouts])
    parts = dict(zip(PIECE, m * slowest.sum(2).T, strict=True))
    work, held = slowest.sum(1).T, held_weights(time, fullest)
    parts["dp"] = reduction(time, held, fullest, work)
    parts["bubble"] = np.maximum(0.0, runs - m * work.sum(0))
    parts["optimizer"] = update(time, held)
    rows = zip(*((known.scale * part).tolist() for part in parts.values()), strict=True)
    means = map(tuple, (known.scale * every[:, -1].sum(1)).tolist())
    return [
        StepEstimate(**given, **dict(zip(parts, row, strict=True)), layout=each, layer_seconds=mean)
        for each, row, mean in zip(layouts, rows, means, strict=True)
    ]


def calibrate(
    seconds: float,
    model: Model | str,
    layout: Layout,
    cluster: ClusterSpec | str,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
    *,
    framework: str | None = None,
    error: float = 0.02,
) -> Calibration:
    """The Calibration in which a step of ``model`` in ``layout`` takes the ``seconds`` it took.

    All parts of a step are scaled by measured over estimated seconds. ``framework``: the one that
    the step was measured with, by default the recipe's or the device's. ``error``: the relative
    error of the measurement. `Calibration.save` writes it; ``calibration=`` of `estimate_step`,
    `fits` and `search`, and --calibration of the command line, take it or its path. Raises what
    `estimate_step` does, and ConfigError for seconds of 0.

    >>> run = "llama-2-70b", Layout(tp=8, pp=4, dp=2, microbatches=64), "64xA100-80GB"
    >>> mine = calibrate(70.0, *run, sequence=4096)
    >>> round(estimate_step(*run, sequence=4096, calibration=mine).total, 6)
    70.0
    """
    for name, value, most in (("seconds", seconds, float("inf")), ("error", error, 1)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value < most):
            above = "above 0" if name == "seconds" else "above 0 and below 1, a share"
            raise ConfigError(f"{name} must be a measured number {above}; got {short(value)}")
    step = estimate_step(model, layout, cluster, recipe, sequence, framework=framework)
    errors = {"measurement": float(error), "other layouts": ELSEWHERE}
    why = f"scaled to a measured step, framework {step.calibration.why}"
    if framework is None:
        why += ": framework= names another"
    scaled = replace(step.calibration, scale=seconds / step.total, errors=errors)
    return replace(scaled, why=why, usual=False, named=True)


def pipeline_seconds(layout: Layout, forward: list[float], backward: list[float]) -> float:
    """Seconds from the first forward to the last backward pass, by simulation: of 1F1B until its
    rounds repeat themselves.

    ``forward``, ``backward``: seconds of a micro-batch in each chunk, in model order. For p
    equal stages of v chunks in 1F1B it is (m + (p-1)/v) micro-batches.

    >>> pipeline_seconds(Layout(pp=4, microbatches=8), [1.0] * 4, [2.0] * 4)
    33.0
    >>> pipeline_seconds(Layout(pp=4, microbatches=8, schedule="zb-h1"), [1.0] * 4, [2.0] * 4)
    27.0
    """
    name, p, m, chunks = layout.schedule, layout.pp, layout.microbatches, layout.chunks
    if name in ("naive", "gpipe"):
        once = sum(forward) + sum(backward)
        slowest = max(forward) + max(backward)
        return once + (m - 1) * (once if name == "naive" else slowest)
    if name not in ("1f1b", "interleaved"):
        return simulate(_order(name, chunks, m, p), forward, backward).makespan
    # between filling and draining all rounds of p micro-batches are alike: if all actions of one
    # begin the same seconds after those before, so do all that follow; else, from MOST_ACTIONS on,
    # the mean of the least and the most is taken
    rounds, length = (3 if layout.interleave == 1 else 4), 2 * chunks
    while True:
        few = min(m, rounds * p + m % p)
        order = _order(name, chunks, few, p)
        run = simulate(order, forward, backward)
        if few == m:
            return run.makespan
        start, kind = run.start.reshape(p, -1), order.kind.reshape(p, -1)
        drain = np.argmax(kind[:, ::-1] == 0, axis=1)  # actions after the last forward
        last = start.shape[1] - 1 - drain[:, None] - np.arange(length)
        this, before = (np.take_along_axis(start, last - ago, 1) for ago in (0, length))
        later = this - before
        rounds *= 3
        if np.ptp(later) <= 1e-9 * later.max() or length * min(m, rounds * p) > MOST_ACTIONS:
            return run.makespan + (m - few) // p * float(later.max() + later.min()) / 2
