"""26, 27 and 28: d2l's network, layerwise and data partitioning of its LeNet; all run.

26  network     device 1 conv1 --3.46 MB--> 2 conv2 --0.82--> 3 fc1 --0.13--> 4 fc2, and back
27  layerwise   each layer on all devices: by output or input channels, both in turn, by rows
28  data        images shared out; gradient --all_reduce--> the same update everywhere
"""

from collections.abc import Sequence

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import each, listed
from tiledask.lab.table import Comparison
from tiledask.plan.collectives import convolution as planned
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.expected import Expected
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION_26", "QUESTION_27", "QUESTION_28"]


def work_26(images: int, devices: int) -> WorkedAnswer:
    """d2l's four claims: memory, synchronisation, balance, transfers; a line of numbers each."""
    from tiledask.distributed.convolution.lenet import LENET
    from tiledask.plan.program.lenet import BOUNDARIES, PARAMETERS, stages_of
    from tiledask.plan.program.making.convolution.of_lenet import need

    stages, said = stages_of(devices), need("network", images, devices, 4)
    lines, crossed = ["weights and biases, fp32, 4 B each:"], []
    for device, (layers, held) in enumerate(zip(stages, said.parameters, strict=True), 1):
        names = " + ".join(f"{LENET[i].name} {LENET[i].size:,}" for i in layers)
        lines.append(
            f"device {device}: {names} = {held:,} of {PARAMETERS:,} = "
            f"{100 * held / PARAMETERS:.1f} %"
        )
    for device, layers in enumerate(stages[:-1], 1):
        last = BOUNDARIES[layers[-1]]
        size = images * last.units * last.each * 4
        crossed.append(size)
        lines.append(
            f"{last.name} -> device {device + 1}: {images} x {last.units} x {last.each} x 4 B = "
            f"{format_bytes(size)}, and its gradient back"
        )
    total = 2 * sum(crossed)
    lines += [
        f"transfers: 2 x ({devices} - 1) = {said.transfers}, in turn: each device waits for its "
        f"neighbour",
        f"bytes: 2 x ({' + '.join(map(format_bytes, crossed))}) = {format_bytes(total)}",
        "work: "
        + ", ".join(f"device {d} {f / 1e6:,.1f} MFLOP" for d, f in enumerate(said.flops, 1)),
        f"busiest over mean: {max(said.flops) / 1e6:,.1f} / {sum(said.flops) / devices / 1e6:,.1f} "
        f"= {said.imbalance:.3g}; even a pipeline would use at most {100 / said.imbalance:.0f} %",
    ]
    return WorkedAnswer(
        f"A device needs a fraction of the memory, at most "
        f"{100 * max(said.parameters) / PARAMETERS:.0f} %; neighbours wait for each other "
        f"{said.transfers} times a step; the busiest device has {said.imbalance:.2g} times the "
        f"mean work; {format_bytes(total)} of activations and gradients cross.",
        lines,
        {
            "parameters": list(said.parameters),
            "boundary bytes": crossed,
            "transfers": said.transfers,
            "bytes": sum(said.sent),
            "imbalance": said.imbalance,
        },
    )


def run_26(cluster: Cluster, images: int, devices: int) -> Comparison:
    """A training step of LeNet, consecutive layers on each worker."""
    from tiledask.lab.lenet import lenet_claims

    return lenet_claims(td.Mesh(cluster, (devices,)), images, ways=("network",))


QUESTION_26 = CourseQuestion(
    number=26,
    title="Network Partitioning",
    asked="d2l's LeNet is spread over {devices} GPUs, consecutive layers on each, and trained on "
    "{images} images a step. How much memory does each need, how often do they wait for each "
    "other, how even is the work, and how much is transferred?",
    inputs={
        "images": Input(256, whole(1, 10**6), "images of a step"),
        "devices": Input(4, whole(2, 4), "devices, consecutive layers of its 4 on each"),
    },
    work=work_26,
    run=run_26,
    workers=lambda devices, **_: devices,
    largest_run={"images": 4096},
)
IMAGES, LENET_IMAGES, LAYERS = 2, 32, 4


def _calls(channels: int, rows: int, devices: int) -> dict[str, tuple[Expected, ...]]:
    """What each way calls, forward and backward."""
    conv = planned.Convolution(
        IMAGES, channels, channels, (rows, rows), (3, 3), padding=((1, 1), (1, 1))
    )
    return {
        "by output channels": planned.by_output(conv, devices, 8, gather=True),
        "by input channels": planned.by_input(conv, devices, 8),
        "out, then in": planned.in_pairs(conv, conv, devices, 8),
        "by rows": planned.in_rows(conv, even(rows, devices), 8),
    }


def _sent(calls: Sequence[Expected]) -> int:
    return sum(sum(call.cost.sent) for call in calls)


def work_27(channels: int, units: int, rows: int, devices: int) -> WorkedAnswer:
    """Who has which channels; what each way of splitting has to synchronise, and its bytes."""
    from tiledask.plan.program.making.convolution.of_lenet import need

    if rows < devices:
        raise ConfigError(
            f"{rows} rows are fewer than {devices} devices, and by rows each takes one or more; "
            f"give at least {devices} rows"
        )
    shares, dense = even(channels, devices), even(units, devices)
    lines = [
        f"{channels} channels / {devices} devices: {listed(shares)}; a fully connected layer of "
        f"{units} outputs: {listed(dense)}",
        f"a convolution of {channels} to {channels} channels, 3x3, {IMAGES} images of {rows} x "
        f"{rows}, float64: y has {IMAGES} x {channels} x {rows} x {rows} x 8 B = "
        f"{format_bytes(IMAGES * channels * rows * rows * 8)}",
    ]
    ways = {}
    for way, calls in _calls(channels, rows, devices).items():
        kinds = " + ".join(call.label.replace("/", " ") + f" {call.kind}" for call in calls)
        ways[way] = {"barriers": len(calls), "bytes": _sent(calls)}
        lines.append(
            f"{way}: {kinds}; synchronisations: {len(calls)}, sent by all: "
            f"{format_bytes(_sent(calls))}"
        )
    layerwise, data = (need(way, 256, devices, 4) for way in ("layerwise", "data parallel"))
    network = need("network", 256, min(devices, LAYERS), 4)
    more = sum(layerwise.sent) / sum(network.sent)
    lines += [
        f"all of LeNet by output units, 256 images: a gather for each of 4 layers, 3 sums back: "
        f"4 + 3 = {layerwise.barriers} synchronisations a step; layer by layer on "
        f"{min(devices, LAYERS)} devices {network.transfers} messages and no synchronisation of "
        f"all; data parallelism {data.barriers}",
        f"bytes of a step: layerwise {format_bytes(sum(layerwise.sent))}, network "
        f'{format_bytes(sum(network.sent))}: {more:.3g} times (d2l: "potentially even larger")',
    ]
    return WorkedAnswer(
        f"Each of {devices} devices has {each(shares)} of {channels} "
        f"channels. All results come out as on one device, but every layer synchronises all "
        f"devices: {layerwise.barriers} times in a step of LeNet, where data parallelism does "
        f"once, with {more:.2g} times the bytes of whole layers on devices.",
        lines,
        {
            "channels": list(shares),
            "outputs": list(dense),
            "ways": ways,
            "barriers": [layerwise.barriers, network.transfers, data.barriers],
            "layerwise over network": more,
        },
    )


def run_27(cluster: Cluster, channels: int, units: int, rows: int, devices: int) -> Comparison:
    """A training step of LeNet, each layer on all workers; beside whole layers on workers."""
    from tiledask.lab.lenet import lenet_claims

    return lenet_claims(td.Mesh(cluster, (devices,)), LENET_IMAGES)


QUESTION_27 = CourseQuestion(
    number=27,
    title="Layerwise Partitioning",
    asked=lambda channels, units, rows, devices: (
        f"A convolution of {rows} x {rows} images has {channels} channels, and {devices} GPUs work "
        f"on each layer together, with {each(even(channels, devices))} channels each; a fully "
        f"connected layer is split by its {units} outputs. How often must they synchronise, and "
        f"how much do they transfer?"
    ),
    inputs={
        "channels": Input(64, whole(1, 16384), "channels, in and out"),
        "units": Input(128, whole(1, 100_000), "outputs of a fully connected layer"),
        "rows": Input(11, whole(4, 4096), "rows and columns of an image"),
        "devices": Input(4, whole(2, 64), "devices that share each layer"),
    },
    work=work_27,
    run=run_27,
    workers=lambda devices, **_: devices,
    largest_run={"channels": 256, "rows": 64},
)
FEATURES = 16
EPSILON = 1e-5
"""Added to a variance by batch normalisation."""


def _samples(images: int) -> np.ndarray:
    """[images, FEATURES] of standard normal numbers."""
    return np.random.default_rng(28).standard_normal((images, FEATURES))


def _normalised(x: np.ndarray, count: int, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    mean = total / count
    return (x - mean) / np.sqrt(squares / count - mean**2 + EPSILON)


def _alone(x: np.ndarray) -> np.ndarray:
    """Batch-normalised with its own mean and variance."""
    return _normalised(x, len(x), x.sum(axis=0), (x**2).sum(axis=0))


def _difference(images: int, devices: int) -> float:
    """The largest difference that each device's own statistics make."""
    x = _samples(images)
    parts = [_alone(part) for part in np.array_split(x, devices)]
    return float(np.abs(np.concatenate(parts) - _alone(x)).max())


def work_28(images: int, devices: int) -> WorkedAnswer:
    """d2l's five steps, with the bytes of the third; speed, memory and batch normalisation."""
    from tiledask.plan.program.lenet import PARAMETERS
    from tiledask.plan.program.making.convolution.of_lenet import need

    if images < devices:
        raise ConfigError(
            f"{images} images are fewer than {devices} devices, and each takes one or more; give "
            f"at least {devices} images"
        )
    k, said, P = devices, need("data parallel", images, devices, 4), PARAMETERS
    shares, off = even(images, k), _difference(images, k)
    sent = 2 * (k - 1) / k * P * 4
    flops = max(said.flops)
    return WorkedAnswer(
        f"Each of {k} devices computes {each(shares)} of {images} images, and all synchronise once "
        f"a step: {format_bytes(sent)} sent by each. {sum(said.flops) / flops:.3g} times as fast "
        f"at best; but each keeps all {P:,} parameters, so more devices allow no larger model.",
        [
            f"1. the batch is cut: {images} / {k} = {images / k:.4g}, {each(shares)} images each",
            f"2. each computes its loss and gradients, at most {flops / 1e6:,.1f} of "
            f"{sum(said.flops) / 1e6:,.1f} MFLOP",
            f"3. gradients are added up: in a ring each sends 2 (k - 1) / k x P x 4 B = 2 x "
            f"{k - 1} / {k} x {P:,} x 4 B = {format_bytes(sent)}",
            f"4. everyone has the sum: {said.barriers} synchronisation a step",
            "5. each updates all its weights, and all copies stay equal",
            f"ideal speed: {sum(said.flops) / 1e6:,.1f} / {flops / 1e6:,.1f} = "
            f"{sum(said.flops) / flops:.3g} times",
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
            "speed-up at best": sum(said.flops) / flops,
            "batch normalisation off by": off,
        },
    )


def run_28(cluster: Cluster, images: int, devices: int) -> Comparison:
    """A training step of LeNet, a copy on each worker."""
    from tiledask.lab.lenet import lenet_claims

    return lenet_claims(td.Mesh(cluster, (devices,)), images, ways=("data parallel",))


QUESTION_28 = CourseQuestion(
    number=28,
    title="Data Parallelism",
    asked="d2l trains its LeNet on {devices} GPUs by data parallelism, {images} images a step. "
    "What happens in a step, how much do the GPUs transfer, how much faster can it be, and does it "
    "allow a larger model?",
    inputs={
        "images": Input(256, whole(8, 65536), "images of a step"),
        "devices": Input(4, whole(2, 64), "devices k, a copy of the model on each"),
    },
    work=work_28,
    run=run_28,
    workers=lambda devices, **_: devices,
    largest_run={"images": 4096},
)
