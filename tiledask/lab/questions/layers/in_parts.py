"""13 and 29: a model too large for one unit, its layers placed on several in order.

unit 1 [layers 1 ..]   unit 2 [.. ..]   unit 3 [.. L]      memory divided, one batch no faster
"""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import choice, number, size, whole
from tiledask.lab.questions.pipelines.one_batch import NEARLY, executed, one_batch
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.sized import convention, counted
from tiledask.lab.questions.question import MOST_WORKERS, CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import each
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.formulas import minimum_devices
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTIONS"]

# -- 13: what placing the first layers on the first unit is for ------------------------------------

RECIPES = ("mixed-adam-16", "fp16-weights", "fp32-sgd", "fp32-adam")
BATCH = 0.6
"""Seconds that all layers take for one batch, forward and backward, whoever does them."""
FORWARD_SHARE = 1 / 3


def place(parameters: float, memory: int, units: int, recipe: str, transfer: float) -> WorkedAnswer:
    """Bytes on one unit and on each of several; computation and time of one batch."""
    B, p = load_recipe(recipe).bytes_per_parameter, units
    whole_, least = B * parameters, minimum_devices(int(parameters), recipe, memory)
    each, T = whole_ / p, BATCH + 2 * (p - 1) * transfer
    fits = {True: "fits", False: "does not fit"}
    lines = [
        convention(recipe),
        f"one unit: {parameters / 1e9:g} billion x {B} B = {format_bytes(whole_)} of "
        f"{format_bytes(memory)}: {fits[whole_ <= memory]}",
        f"layers in {p} equal parts: {format_bytes(whole_)} / {p} = {format_bytes(each)} each: "
        f"{fits[each <= memory]}",
        f"over all units {p} x {format_bytes(each)} = {format_bytes(p * each)}: as before, only "
        f"spread",
        f"units needed: {format_bytes(whole_)} / {format_bytes(memory)}, rounded up = {least}",
        counted(parameters / 1e9, memory, recipe)[1],
        f"computation of a token, up and down: 6 x {parameters / 1e9:g} billion = "
        f"{6 * parameters / 1e9:g} GFLOP on one unit, {p} x {6 * parameters / p / 1e9:.4g} on "
        f"{p}: not less",
        f"time of one batch: {BATCH:g} s of work + 2 x {p - 1} x {transfer:g} s of transfers = "
        f"{T:g} s, not below {BATCH:g} s: each unit waits for the one before it",
    ]
    return WorkedAnswer(
        f"It divides memory: {format_bytes(each)} instead of {format_bytes(whole_)} on a unit of "
        f"{format_bytes(memory)}{', where all of it would fit' * (whole_ <= memory)}. It saves no "
        f"computation, and one batch takes {T:g} s, {'more than' if T > BATCH else 'the same'} "
        f"{BATCH:g} s {'on' if T > BATCH else 'as on'} one unit.",
        lines,
        {
            "one unit": whole_,
            "each unit": each,
            "fits on one": whole_ <= memory,
            "fits in parts": each <= memory,
            "units needed": least,
            "seconds": T,
        },
    )


def run_placed(
    cluster: Cluster, parameters: float, memory: int, units: int, recipe: str, transfer: float
) -> Comparison:
    """The states allocated under the units' cap, whole and in parts; then the time of one batch."""
    plans, rows = {}, []
    for p in dict.fromkeys((1, units)):
        name = "one unit" if p == 1 else f"{p} units"
        plans[name] = td.Layout(pp=p), recipe, memory
    for p in dict.fromkeys((1, min(units, cluster.slots))):
        order = one_batch(range(p))
        times = {
            "forward": BATCH * FORWARD_SHARE / p,
            "backward": BATCH * (1 - FORWARD_SHARE) / p,
            "latency": transfer,
        }
        t, seen = td.simulate(order, **times), executed(cluster, order, **times).timeline
        T, used = BATCH + 2 * (p - 1) * transfer, (t.utilisation, seen.utilisation)
        rows += [
            Claim(f"{p} of them: work of one batch", BATCH, t.busy, seen.busy, "seconds"),
            Claim(f"{p} of them: time of one batch", T, t.makespan, seen.makespan, "seconds"),
            Claim(f"{p} of them: used", BATCH / (p * T), *used, "percent", NEARLY),
        ]
    return sized.held(cluster, "States on units", parameters / 1e9, plans, *rows)


# -- 29: layer-wise model parallelism -------------------------------------------------------------

SHAPE = {"width": 64, "hidden": 128, "seed": 29, "dtype": "float64"}
TOKENS = 32
FORWARD, BACKWARD = 0.1, 0.2
"""Seconds of a worker's part."""


def in_order(layers: int, workers: int) -> WorkedAnswer:
    """Consecutive layers on each worker; what each holds, sends and waits."""
    if layers < workers:
        raise ConfigError(
            f"{layers} layers are fewer than {workers} workers, and each takes one or more; use at "
            f"most {layers} workers"
        )
    cut, p = td.partition(layers, workers), workers
    t = td.simulate(one_batch(range(p)))
    return WorkedAnswer(
        f"Consecutive layers on each worker: {cut}. Each holds {each(cut.sizes)} of {layers} "
        f"layers; the batch goes up and down through all of them, {2 * (p - 1)} transfers, and one "
        f"worker in {p} works: {100 / p:.1f} %.",
        [
            f"{layers} layers / {p} workers = {layers / p:g}: {cut}",
            f"fullest worker: {max(cut.sizes)} / {layers} = {100 * max(cut.sizes) / layers:.1f} % "
            f"of the weights",
            f"forward: worker 1 hands its output to 2, ... up to {p}: {p} - 1 = {p - 1} transfers; "
            f"backward: gradients the same way down, {p - 1} more: {2 * (p - 1)}",
            f"every layer needs the one before it, so workers take turns: 1/{p} = {100 / p:.1f} % "
            f"used, {100 * (1 - 1 / p):.1f} % idle",
            "the result is that of one device: the same layers, in the same order",
        ],
        {
            "cut": str(cut),
            "fullest": max(cut.sizes) / layers,
            "transfers": 2 * (p - 1),
            "utilisation": t.utilisation,
        },
        lambda: td.plots.gantt(t, title=f"{layers} layers on {p} workers"),
    )


def run_in_order(cluster: Cluster, layers: int, workers: int) -> Comparison:
    """Real layers, forward and backward, on all workers and on one."""
    import numpy as np

    from tiledask.distributed.pipelines.stages import flat, stack

    cut, p = td.partition(layers, workers), workers
    batch, target = np.random.default_rng(29).standard_normal((2, TOKENS, SHAPE["width"]))
    stages, (alone,) = (stack(bounds, **SHAPE) for bounds in (cut.bounds, (0, layers)))
    options = {"batch": batch, "cluster": cluster, "target": target}
    one = td.run_schedule(td.schedule("naive", 1, 1), [alone], **options)
    times = {"forward": FORWARD, "backward": BACKWARD}
    order = td.schedule("naive", p, 1)
    done = td.run_schedule(order, stages, engine="loop", **options, **times)
    sent, counted = done.traffic.predicted, done.traffic.measured
    held = [sum(g.nbytes for layer in stage for g in layer.values()) for stage in done.gradients]
    t = td.simulate(order, **times)
    rows = [
        Claim("transfers, up and down", 2 * (p - 1), sent.count, counted.count, rule="equal"),
        Claim(
            "bytes between workers",
            2 * (p - 1) * batch.nbytes,
            sent.total,
            counted.total,
            "bytes",
            "equal",
        ),
        Claim(
            "parameters of the fullest worker, of all",
            max(cut.sizes) / layers,
            None,
            max(held) / sum(held),
            "percent",
            ("within", 1e-12),
            "counted from the gradients that it has",
        ),
        Claim(
            "output has the bits of one worker's",
            measured=done.outputs.tobytes() == one.outputs.tobytes(),
            rule="true",
        ),
        Claim(
            "gradients off one worker's",
            1e-12,
            None,
            float(np.abs(flat(done.gradients) - flat(one.gradients)).max()),
            rule="at most",
        ),
        Claim("used", 1 / p, t.utilisation, done.timeline.utilisation, "percent", NEARLY),
    ]
    return Comparison(f"{layers} feed-forward layers on {p} workers, one batch", rows)


QUESTIONS = (
    CourseQuestion(
        number=13,
        title="The first set of layers on the first unit",
        asked="A research team's model has {parameters} parameters, kept as {recipe}, and a unit "
        "has {memory}. They place the first set of layers on the first unit, the next on the "
        "second, and so on over {units}. What does that achieve, and what not?",
        inputs={
            "parameters": Input(3e9, number(1000), "parameters of the model"),
            "memory": Input(24 * 10**9, size, "bytes of a unit"),
            "units": Input(4, whole(2, 64), "units that share the layers"),
            "recipe": Input("mixed-adam-16", choice(RECIPES), "what is kept"),
            "transfer": Input(0.02, number(), "seconds from unit to unit"),
        },
        work=place,
        run=run_placed,
        workers=lambda units, **_: min(units, MOST_WORKERS),
    ),
    CourseQuestion(
        number=29,
        title="Layer-wise Model Parallelism",
        asked="A network of {layers} layers is spread over {workers} workers, consecutive layers "
        "on each. What does each worker hold, what do they send each other, and how busy are they?",
        inputs={
            "layers": Input(24, whole(2, 10_000), "layers in a row"),
            "workers": Input(4, whole(2, 64), "workers, one after the other"),
        },
        work=in_order,
        run=run_in_order,
        workers=lambda workers, **_: workers,
        largest_run={"layers": 200},
    ),
)
