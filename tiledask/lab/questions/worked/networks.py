"""13, 26, 28 and 29: a network over devices: its layers in a row, or a copy on each.

unit 1 [layers 1 ..]   unit 2 [.. ..]   unit 3 [.. L]      memory divided, one batch no faster
images shared out; gradient --all_reduce--> the same update everywhere
"""

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import MOST_WORKERS, Input, WorkedAnswer, question
from tiledask.lab.questions.shares import each
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.runs import lenet
from tiledask.lab.questions.worked.sizes import ADAM, GB
from tiledask.lab.table import Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.program.lenet import BOUNDARIES, PARAMETERS, stages_of
from tiledask.plan.program.making.convolution.of_lenet import need
from tiledask.plan.units import format_bytes

# -- 13 and 29: layers on devices in a row: memory is divided, one batch is no faster --------------

BATCH, FORWARD_SHARE = 0.6, 1 / 3
"""Seconds that all layers take for one batch, whoever does them; and of it the way up."""


@question(
    13,
    "The first set of layers on the first unit",
    "A research team's model has {parameters} parameters, kept as {recipe}, and a unit has "
    "{memory}. They place the first set of layers on the first unit, the next on the second, and "
    "so on over {units}. What does that achieve, and what not?",
    parameters=Input("parameters of the model", 1000),
    memory="bytes of a unit",
    units=Input("units that share the layers", 2, 64),
    recipe=Input("what is kept", choices=(ADAM, "fp16-weights", "fp32-sgd", "fp32-adam")),
    transfer=Input("seconds from unit to unit", 0),
)
def first_layers_first(
    parameters: float = 3e9,
    memory: int = 24 * GB,
    units: int = 4,
    recipe: str = ADAM,
    transfer: float = 0.02,
) -> WorkedAnswer:
    """Bytes on one unit and on each of several; computation and time of one batch."""
    B, p = td.load_recipe(recipe).bytes_per_parameter, units
    whole, least = B * parameters, td.formulas.minimum_devices(int(parameters), recipe, memory)
    share, T = whole / p, BATCH + 2 * (p - 1) * transfer
    fits = {True: "fits", False: "does not fit"}
    billions = f"{parameters / 1e9:g} billion"

    def run(cluster: Cluster) -> Comparison:
        """The states allocated under the units' cap, whole and in parts; one batch timed."""
        plans = {
            "one unit": (Layout(), recipe, memory),
            f"{p} units": (Layout(pp=p), recipe, memory),
        }
        n = min(p, cluster.slots)
        up = BATCH * FORWARD_SHARE / n
        seconds = {"forward": up, "backward": BATCH / n - up, "latency": transfer}
        order, T = runs.one_batch(range(n)), BATCH + 2 * (n - 1) * transfer
        rows = runs.timed(cluster, "one batch", order, [BATCH / n] * n, T, **seconds).rows[:2]
        return runs.held(cluster, "States on units", round(parameters), plans, rows)

    return WorkedAnswer(
        f"It divides memory: {format_bytes(share)} instead of {format_bytes(whole)} on a unit of "
        f"{format_bytes(memory)}{', where all of it would fit' * (whole <= memory)}. It saves no "
        f"computation, and one batch takes {T:g} s, {'more than' if T > BATCH else 'the same'} "
        f"{BATCH:g} s {'on' if T > BATCH else 'as on'} one unit.",
        [
            sizes.convention(recipe),
            f"one unit: {billions} x {B} B = {format_bytes(whole)} of {format_bytes(memory)}: "
            f"{fits[whole <= memory]}",
            f"layers in {p} equal parts: {format_bytes(whole)} / {p} = {format_bytes(share)} each: "
            f"{fits[share <= memory]}; over all units as much as before, only spread",
            f"units needed: {format_bytes(whole)} / {format_bytes(memory)}, rounded up = {least}",
            sizes.with_context(parameters / 1e9, memory, least, recipe)[1],
            f"computation of a token, up and down: 6 x {billions} = {6 * parameters / 1e9:g} GFLOP "
            f"on one unit, {p} x {6 * parameters / p / 1e9:.4g} on {p}: not less",
            f"time of one batch: {BATCH:g} s of work + 2 x {p - 1} x {transfer:g} s of transfers = "
            f"{T:g} s, not below {BATCH:g} s: each unit waits for the one before it",
        ],
        {
            "one unit": whole,
            "each unit": share,
            "fits on one": whole <= memory,
            "fits in parts": share <= memory,
            "units needed": least,
            "seconds": T,
        },
        run,
        min(units, MOST_WORKERS),
    )


@question(
    29,
    "Layer-wise Model Parallelism",
    "A network of {layers} layers is spread over {workers} workers, consecutive layers on each. "
    "What does each worker hold, what do they send each other, and how busy are they?",
    layers=Input("layers in a row", 2, 10_000, run=200),
    workers=Input("workers, one after the other", 2, 64),
)
def layer_wise(layers: int = 24, workers: int = 4) -> WorkedAnswer:
    """Consecutive layers on each worker; what each holds, sends and waits."""
    if layers < workers:
        raise ConfigError(
            f"{layers} layers are fewer than {workers} workers, and each takes one or more; use at "
            f"most {layers} workers"
        )
    cut, p = td.partition(layers, workers), workers
    t, fullest = td.simulate(runs.one_batch(range(p))), max(cut.sizes) / layers

    def run(cluster: Cluster) -> Comparison:
        """One batch up and down, timed; real layers, forward, on all workers and on one."""
        order, times = runs.one_batch(range(p)), {"forward": 0.1, "backward": 0.2}
        done = runs.pipelined(cluster, order, **times)
        sent = done.traffic.predicted.count, done.traffic.measured.count
        rows = [
            Claim("transfers, up and down", 2 * (p - 1), *sent, rule="equal"),
            runs.used_claim("used", 1 / p, td.simulate(order, **times), done.timeline),
            *runs.placed(cluster, "forward", cut.place, p - 1),
        ]
        return Comparison(f"{layers} feed-forward layers on {p} workers, one batch", rows)

    return WorkedAnswer(
        f"Consecutive layers on each worker: {cut}. Each holds {each(cut.sizes)} of {layers} "
        f"layers; the batch goes up and down through all of them, {2 * (p - 1)} transfers, and one "
        f"worker in {p} works: {100 / p:.1f} %.",
        [
            f"{layers} layers / {p} workers = {layers / p:g}: {cut}",
            f"fullest worker: {max(cut.sizes)} / {layers} = {100 * fullest:.1f} % of the weights",
            f"forward: worker 1 hands its output to 2, ... up to {p}: {p} - 1 = {p - 1} transfers; "
            f"backward: gradients the same way down, {p - 1} more: {2 * (p - 1)}",
            f"every layer needs the one before it, so workers take turns: 1/{p} = {100 / p:.1f} % "
            f"used, {100 * (1 - 1 / p):.1f} % idle",
            "the result is that of one device: the same layers, in the same order",
        ],
        {
            "cut": str(cut),
            "fullest": fullest,
            "transfers": 2 * (p - 1),
            "utilisation": t.utilisation,
        },
        run,
        workers,
        lambda: td.plots.gantt(t, title=f"{layers} layers on {p} workers"),
    )


# -- 26, 27 and 28: d2l's network, layerwise and data partitioning of its LeNet --------------------

IMAGES = Input("images of a step", run=4096)


@question(
    26,
    "Network Partitioning",
    "d2l's LeNet is spread over {devices} GPUs, consecutive layers on each, and trained on "
    "{images} images a step. How much memory does each need, how often do they wait for each "
    "other, how even is the work, and how much is transferred?",
    images=IMAGES,
    devices=Input("devices, consecutive layers of its 4 on each", 2, 4),
)
def network(images: int = 256, devices: int = 4) -> WorkedAnswer:
    """d2l's four claims: memory, synchronisation, balance, transfers; a line of numbers each."""
    from tiledask.distributed.convolution.lenet import LENET

    stages, said, lines, crossed = stages_of(devices), need("network", images, devices, 4), [], []
    for device, (layers, held) in enumerate(zip(stages, said.parameters, strict=True), 1):
        names = " + ".join(f"{LENET[i].name} {LENET[i].size:,}" for i in layers)
        share = f"{held:,} of {PARAMETERS:,} = {100 * held / PARAMETERS:.1f} %"
        lines.append(f"device {device}: {names} = {share}")
    for device, layers in enumerate(stages[:-1], 2):
        last = BOUNDARIES[layers[-1]]
        crossed.append(images * last.units * last.each * 4)
        lines.append(
            f"{last.name} -> device {device}: {images} x {last.units} x {last.each} x 4 B = "
            f"{format_bytes(crossed[-1])}, and its gradient back"
        )
    total, most = 2 * sum(crossed), 100 * max(said.parameters) / PARAMETERS
    work = ", ".join(f"device {d} {f / 1e6:,.1f} MFLOP" for d, f in enumerate(said.flops, 1))
    mean = sum(said.flops) / devices / 1e6
    return WorkedAnswer(
        f"A device needs a fraction of the memory, at most {most:.0f} %; neighbours wait for each "
        f"other {said.transfers} times a step; the busiest device has {said.imbalance:.2g} times "
        f"the mean work; {format_bytes(total)} of activations and gradients cross.",
        [
            "weights and biases, fp32, 4 B each:",
            *lines,
            f"transfers: 2 x ({devices} - 1) = {said.transfers}, in turn: each device waits for "
            f"its neighbour; bytes: 2 x ({' + '.join(map(format_bytes, crossed))}) = "
            f"{format_bytes(total)}",
            f"work: {work}",
            f"busiest over mean: {max(said.flops) / 1e6:,.1f} / {mean:,.1f} = "
            f"{said.imbalance:.3g}; even a pipeline would use at most "
            f"{100 / said.imbalance:.0f} %",
        ],
        {
            "parameters": list(said.parameters),
            "boundary bytes": crossed,
            "transfers": said.transfers,
            "bytes": sum(said.sent),
            "imbalance": said.imbalance,
        },
        lambda cluster: lenet(cluster, devices, images, "network"),
        devices,
    )


def _normalised(x: np.ndarray) -> np.ndarray:
    """Batch-normalised with its own mean and variance."""
    mean = x.sum(axis=0) / len(x)
    same: np.ndarray = (x - mean) / np.sqrt((x**2).sum(axis=0) / len(x) - mean**2 + 1e-5)
    return same


@question(
    28,
    "Data Parallelism",
    "d2l trains its LeNet on {devices} GPUs by data parallelism, {images} images a step. What "
    "happens in a step, how much do the GPUs transfer, how much faster can it be, and does it "
    "allow a larger model?",
    images=Input("images of a step", 8, 65536, run=4096),
    devices=Input("devices k, a copy of the model on each", 2, 64),
)
def copies(images: int = 256, devices: int = 4) -> WorkedAnswer:
    """d2l's five steps, with the bytes of the third; speed, memory and batch normalisation."""
    if images < devices:
        raise ConfigError(
            f"{images} images are fewer than {devices} devices, and each takes one or more; give "
            f"at least {devices} images"
        )
    k, said, P = devices, need("data parallel", images, devices, 4), PARAMETERS
    x = np.random.default_rng(28).standard_normal((images, 16))
    parts = np.concatenate([_normalised(part) for part in np.array_split(x, devices)])
    off = float(np.abs(parts - _normalised(x)).max())
    shares, sent = even(images, k), 2 * (k - 1) / k * P * 4
    most, work = max(said.flops), sum(said.flops)
    return WorkedAnswer(
        f"Each of {k} devices computes {each(shares)} of {images} images, and all synchronise once "
        f"a step: {format_bytes(sent)} sent by each. {work / most:.3g} times as fast at best; but "
        f"each keeps all {P:,} parameters, so more devices allow no larger model.",
        [
            f"1. the batch is cut: {images} / {k} = {images / k:.4g}, {each(shares)} images each",
            f"2. each computes its loss and gradients, at most {most / 1e6:,.1f} of "
            f"{work / 1e6:,.1f} MFLOP: {work / most:.3g} times as fast, ideally",
            f"3. gradients are added up: in a ring each sends 2 (k - 1) / k x P x 4 B = 2 x "
            f"{k - 1} / {k} x {P:,} x 4 B = {format_bytes(sent)}",
            f"4. everyone has the sum: {said.barriers} synchronisation a step",
            "5. each updates all its weights, and all copies stay equal",
            f"memory, weights alone: {P:,} x 4 B = {format_bytes(4 * P)} on 1 device, and on each "
            f"of {k}: flat",
            f"not the same as one device: batch normalisation. With the mean and variance of its "
            f"own {each(shares)} random samples each output is off by up to {off:.3g}; with "
            f"summed statistics by round-off",
        ],
        {
            "images": list(shares),
            "bytes of each": round(sent),
            "synchronisations": said.barriers,
            "speed-up at best": work / most,
            "batch normalisation off by": off,
        },
        lambda cluster: lenet(cluster, devices, images, "data parallel"),
        devices,
    )
