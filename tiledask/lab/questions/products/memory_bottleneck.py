"""3: a weight matrix of 26 GB on GPUs of 24 GB: held by two of them, trained by more."""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.exercises.planning.layer_too_large import attempt, gives, small_layer
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.products.too_large import ROWS, bars, scaled
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import count
from tiledask.lab.table import Claim, Comparison
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
        "states alone: GB = 1e9 bytes; no CUDA context, no activations",
    ]
    fewest, held, states = {}, {}, {}
    for name, words in RECIPES.items():
        each = td.load_recipe(name).bytes_per_parameter
        states[name] = td.formulas.state_bytes(-(-parameters // gpus), name)
        held[name] = sum(states[name].values())
        fewest[name] = td.formulas.minimum_devices(parameters, name, memory)
        lines.append(
            f"{words}: {each} B x {parameters:,} / {gpus} = {format_bytes(held[name])}, "
            f"{'fits' if held[name] <= memory else 'does not fit'}; "
            f"{count(fewest[name], 'GPU')} or more"
        )
    with_context, how = sized.counted(parameters / 1e9, memory, recipe)
    lines.append(f"{recipe} {how}")
    fits, one = held[recipe] <= memory, fewest[recipe] == 1
    cut = f"Cut W: {format_bytes(weights / gpus)} of it on each of {gpus}"
    return WorkedAnswer(
        f"{'W need not be cut' if one else cut}. By states alone, the weights take "
        f"{count(fewest['fp32-weights'], 'GPU')} or more, and {recipe}, "
        f"{format_bytes(held[recipe])} a GPU, {'fits' if fits else 'does not fit'} "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}: it takes "
        f"{count(fewest[recipe], 'GPU')} or more{sized.beside(fewest[recipe], with_context)}.",
        lines,
        {"held": held, "fewest": fewest, "fits": fits},
        lambda: bars(states, memory, "States on a GPU, by recipe"),
    )


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
    asked=lambda weights, memory, gpus, recipe: (
        f"Training ({recipe}) stops at one product whose weights need {format_bytes(weights)}, on "
        f"{count(gpus, 'GPU')} of {format_bytes(memory)}. Which kind of parallelism makes it fit, "
        f"and why do the others not?"
    ),
    inputs={
        "weights": Input(26_000_000_000, 52_000_000_000, size, "bytes of a layer's weights, fp32"),
        "memory": Input(24_000_000_000, 40_000_000_000, size, "bytes of a GPU"),
        "gpus": Input(4, 8, whole(1, 64), "GPUs"),
        "recipe": Input("fp32-adam", "fp32-sgd", choice(tuple(RECIPES)), "what training keeps"),
    },
    work=work,
    run=run,
)
