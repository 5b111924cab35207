"""27: d2l's layerwise partitioning: each layer on all devices. Every way to split a convolution.

by output channels   a device makes some channels        all_gather of y, all_reduce of dx
by input channels    a device reads some channels        all_reduce of y
out, then in         two layers, one of each             one all_reduce up, one down
by rows              a device has some rows, and halos   halo_exchange, halo_reduce, dw and db
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import each, listed
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives import convolution as planned
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.expected import Expected
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

ROUND_OFF = 1e-13
"""Of the largest element, in float64: sums are in another order."""
PARTS = {
    "by output channels": (None, None, 0, 0),
    "by input channels": (None, 1, 1, None),
    "out, then in": (None, None, 0, 0, 1, None),
    "by rows": (2, 2, None, None),
}
"""Way -> along which dimension a rank has a part of y, dx, dw, db (of both layers' dw and db)."""
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


def work(channels: int, units: int, rows: int, devices: int) -> WorkedAnswer:
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


def _program(
    rank: Any, way: str, x: Any, w: Any, b: Any, dy: Any, rows: Sequence[int]
) -> tuple[Any, ...]:
    """(y, dx, dw, db) of this rank's part; of two layers the second's dw and db behind."""
    from tiledask.distributed import convolution as C

    group, padded = rank.group(), {"padding": 1}
    if way == "by output channels":
        mine = C.part(group, w, 0), C.part(group, b, 0)
        y, kept = C.by_output(group, x, *mine, gather=True, **padded)
        return y, *C.by_output_grad(group, dy, kept, *mine)
    if way == "by input channels":
        columns = C.part(group, w, 1)
        y, kept = C.by_input(group, C.part(group, x, 1), columns, b, **padded)
        return y, *C.by_input_grad(group, dy, kept, columns, b)
    if way == "out, then in":
        first, second = (C.part(group, w, 0), C.part(group, b, 0)), (C.part(group, w, 1), b)
        y, kept = C.in_pairs(group, x, first, second, options=(padded, padded))
        dx, *grads = C.in_pairs_grad(group, dy, kept, first, second)
        return y, dx, *(g for each in grads for g in each)
    here = slice(*list(pairwise((0, *accumulate(rows))))[rank.index])
    y, kept = C.conv2d_in_rows(group, x[:, :, here], w, b, rows=rows, **padded)
    return y, *C.conv2d_in_rows_grad(group, dy[:, :, here], kept, w, b)


def _one_device(way: str, x: Any, w: Any, b: Any, dy: Any) -> tuple[Any, ...]:
    """The same on one device, whole."""
    from tiledask.tile import layers as L

    y, kept = L.conv2d(x, w, b, padding=1)
    if way != "out, then in":
        return y, *L.conv2d_grad(dy, kept, w, b)
    z, activation = L.relu(y)
    y, second = L.conv2d(z, w, b, padding=1)
    dz, *others = L.conv2d_grad(dy, second, w, b)
    return y, *L.conv2d_grad(L.relu_grad(dz, activation), kept, w, b), *others


def run(cluster: Cluster, channels: int, units: int, rows: int, devices: int) -> Comparison:
    """A convolution forward and backward under every split; then LeNet's synchronisations."""
    from tiledask.lab.lenet import lenet_claims

    mesh, claims = td.Mesh(cluster, (devices,)), []
    rng = np.random.default_rng(27)
    image, filters = (IMAGES, channels, rows, rows), (channels, channels, 3, 3)
    x, w, b, dy = (rng.standard_normal(shape) for shape in (image, filters, channels, image))
    for way, calls in _calls(channels, rows, devices).items():
        done = td.run_ranks(_program, mesh, way, x, w, b, dy, even(rows, devices))
        errors = []
        for i, whole_ in enumerate(_one_device(way, x, w, b, dy)):
            parts, dim = [result[i] for result in done.results], PARTS[way][i]
            got = parts[0] if dim is None else np.concatenate(parts, axis=dim)
            errors.append(float(np.max(np.abs(got - whole_)) / np.max(np.abs(whole_))))
        sent = sum(record.sent for record in done.records)
        waits = max(done.records.barriers.values(), default=0)
        claims += [
            Claim(f"{way}: synchronisations", len(calls), None, waits, "count", "equal"),
            Claim(f"{way}: bytes, all devices", _sent(calls), None, sent, "bytes", "equal"),
            Claim(
                f"{way}: off one device's",
                ROUND_OFF,
                None,
                max(errors),
                rule="at most",
                note="y, dx, dw and db, of the largest element",
            ),
        ]
    wanted = ("synchronisations", "transfers", "layerwise: bytes over network's")
    lenet = lenet_claims(mesh, LENET_IMAGES)
    claims += [row for row in lenet.rows if row.quantity.endswith(wanted)]
    return Comparison(f"A convolution, and LeNet, split over {devices} workers", claims)


QUESTION = CourseQuestion(
    number=27,
    title="Layerwise Partitioning",
    asked=lambda channels, units, rows, devices: (
        f"A convolution of {rows} x {rows} images has {channels} channels, and {devices} GPUs work "
        f"on each layer together, with {each(even(channels, devices))} channels each; a fully "
        f"connected layer is split by its {units} outputs. How often must they synchronise, and "
        f"how much do they transfer?"
    ),
    inputs={
        "channels": Input(64, 10, whole(1, 16384), "channels, in and out"),
        "units": Input(128, 10, whole(1, 100_000), "outputs of a fully connected layer"),
        "rows": Input(11, 8, whole(4, 4096), "rows and columns of an image"),
        "devices": Input(4, 3, whole(2, 64), "devices that share each layer"),
    },
    work=work,
    run=run,
    workers=lambda devices, **_: devices,
    largest_run={"channels": 256, "rows": 64},
)
