"""3: a weight matrix of 26 GB on GPUs of 24 GB: held by two of them, trained by more."""

from functools import partial
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.planning.layer_too_large import attempt, gives, small_layer
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.products.too_large import ROWS, scaled
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RECIPES = {
    "fp32-weights": "the weights alone",
    "fp32-sgd": "SGD: weights and gradients",
    "fp32-momentum": "SGD with momentum",
    "fp32-adam": "Adam: weights, gradients, m and v",
}
WITHIN = 0.02
"""Relative difference between predicted and measured peak."""


def work(weights: int, memory: int, gpus: int, recipe: str) -> WorkedAnswer:
    """W over the GPUs for each optimizer; the fewest GPUs of each."""
    if weights < 4_000_000:
        raise ConfigError(f"weights of {weights} B are none at 1:1000; give 4MB or more")
    parameters = weights // 4
    lines = [
        f"data parallelism, or a layer to each GPU: {format_bytes(weights)} of weights on each, "
        f"{'more' if weights > memory else 'no more'} than {format_bytes(memory)}",
        f"tensor parallelism: {format_bytes(weights)} / {gpus} = {format_bytes(weights / gpus)} of "
        f"weights on a GPU",
    ]
    fewest, held = {}, {}
    for name, words in RECIPES.items():
        each = td.load_recipe(name).bytes_per_parameter
        held[name] = sum(td.formulas.state_bytes(-(-parameters // gpus), name).values())
        fewest[name] = td.formulas.minimum_devices(parameters, name, memory)
        lines.append(
            f"{words}: {each} B x {parameters / 1e9:.4g}e9 / {gpus} = {format_bytes(held[name])}, "
            f"{'fits' if held[name] <= memory else 'does not fit'}; by states alone "
            f"{fewest[name]} GPUs or more"
        )
    fits = held[recipe] <= memory
    return WorkedAnswer(
        f"Cut W: {format_bytes(weights / gpus)} on each of {gpus} GPUs, where "
        f"{fewest['fp32-weights']} hold the weights. {recipe} takes {format_bytes(held[recipe])} a "
        f"GPU and "
        f"{'fits' if fits else 'does not fit'}: {fewest[recipe]} GPUs do.",
        lines,
        {"held": held, "fewest": fewest, "fits": fits},
        partial(_bars, parameters // gpus, memory),
    )


def _bars(parameters: int, memory: int) -> Any:
    """The figure of what each recipe keeps on a GPU."""
    bars = {
        name: Ledger.of(
            Row(0, tensor, ALWAYS, nbytes)
            for tensor, nbytes in td.formulas.state_bytes(parameters, name).items()
        )
        for name in RECIPES
    }
    return td.plots.memory_bars(bars, memory, place="GPU", title="States on a GPU, by recipe")


def run(cluster: Cluster, weights: int, memory: int, gpus: int, recipe: str) -> Comparison:
    """States allocated and stepped on workers, at 1:1000, under the cap."""
    parameters = weights // 4
    fewest = td.formulas.minimum_devices(parameters, recipe, memory)
    plans = {
        "copies, weights": (td.Layout(dp=gpus), "fp32-weights"),
        **{f"tp {gpus}, {name}": (td.Layout(tp=gpus), name) for name in RECIPES},
        f"tp {fewest}, {recipe}": (td.Layout(tp=fewest), recipe),
    }
    _, columns, _ = scaled(weights, memory)
    x, w = small_layer(ROWS, columns)
    mesh = td.Mesh(cluster, (min(gpus, cluster.slots),))
    outs = [
        y for y, _ in td.run_ranks(attempt, mesh, "columns", "forward", x, w, 2 * w.nbytes).results
    ]
    same = gives("columns", outs, x @ w)
    rows = [Claim(f"y over {mesh.ranks} workers is one process's", measured=same, rule="true")]
    for name, (layout, kept) in plans.items():
        done = td.run_claim(parameters, layout, memory, cluster, recipe=kept)
        said, ran = done.predicted.peak, done.measured.peak
        if done.refused:
            note = f"measured: when refused. {done.refused}"
            peak = Claim(f"{name}: peak", said, None, done.refused.needed, "bytes", note=note)
        else:
            rule = ("ratio", 1 - WITHIN, 1 + WITHIN)
            peak = Claim(f"{name}: peak", said, None, ran, "bytes", rule)
        verdicts = done.predicted_verdict, None, done.executed_verdict
        rows += [peak, Claim(f"{name}: verdict", *verdicts, rule="equal")]
    return Comparison(f"W on workers of {format_bytes(memory // 1000)}, at 1:1000", rows)


QUESTION = CourseQuestion(
    number=3,
    title="Solving a Memory Bottleneck with Parallelism",
    asked="Training stops at one product whose weights need 26 GB, on 4 GPUs of 24 GB. Which kind "
    "of parallelism makes it fit, and why do the others not?",
    inputs={
        "weights": Input(26_000_000_000, 52_000_000_000, size, "bytes of the weights, fp32"),
        "memory": Input(24_000_000_000, 40_000_000_000, size, "bytes of a GPU"),
        "gpus": Input(4, 8, whole(1, 64), "GPUs"),
        "recipe": Input("fp32-adam", "fp32-sgd", choice(tuple(RECIPES)), "what training keeps"),
    },
    work=work,
    run=run,
)
