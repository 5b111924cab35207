"""Split convolutions: borrow rows, split each layer its own way, count devices; all of it run.

borrowed_rows               rank -> rows    each rank multiplies what it has, and nan for the rest
split_each_layer            layer -> way    a training step: bytes counted, gradients compared
until_layerwise_moves_more  devices         two training steps: bytes counted
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from tiledask.distributed.convolution.lenet import gradients, initial_weights, samples
from tiledask.distributed.convolution.lenet_runs import PARTITIONINGS
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.products.placements import span
from tiledask.lab.exercises.split_layers import lenet_splits as splits
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, GREY, ORANGE, canvas, styled
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.program.making.convolution.of_lenet import need
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as L

__all__ = ["borrowed_rows", "split_each_layer", "until_layerwise_moves_more"]

MB = 1_000_000
ROUND_OFF = 1e-5
"""Of a float32 gradient's largest element: sums differ by their order."""
MOST, RUN = 64, 16
"""Devices, at most, of an answer, and that are threads here: more of them take minutes."""


# -- rows ----------------------------------------------------------------------------------------


def borrowed_rows(
    rows: Sequence[int], size: int, stride: int = 1, padding: tuple[int, int] = (0, 0)
) -> Exercise:
    """Say which rows of others each rank needs for its windows: rank -> rows of the whole image.

    A window belongs to the rank that has its middle row. The answer is run: each rank multiplies
    an image in which every row that it neither owns nor borrows is not a number.

    >>> borrowed_rows((3, 3), 3, padding=(1, 1)).check({0: (3,), 1: (2,)}).best
    True
    """
    split = split_rows(rows, size, stride, padding)
    ends = (0, *accumulate(split.rows))
    right = {
        rank: [i for i in range(slab.start, slab.stop) if not ends[rank] <= i < ends[rank + 1]]
        for rank, slab in enumerate(split.slabs)
    }
    best = sum(map(len, right.values()))

    def measure(mine: dict[int, tuple[int, ...]]) -> list[Target]:
        lost = _lost(mine, split, size, stride, padding)
        lacking, idle = offences(mine)
        remarks = [
            f"rank {rank} lacks row {row}, so that its output {span('row', lost[rank])} "
            f"{'is' if len(lost[rank]) == 1 else 'are'} not a number"
            for rank, row in lacking[:1]
        ] + [f"rank {rank} lacks rows, too" for rank, _ in lacking[1:]]
        where = "; ".join(f"no window of rank {rank} reads row {row}" for rank, row in idle)
        missing = sum(map(len, lost.values()))
        return [
            Target("output rows that lack an input row", 0, missing, 0, remarks=remarks),
            Target("rows borrowed", best, sum(map(len, mine.values())), best, where=where),
        ]

    def offences(
        mine: Mapping[int, Sequence[int]],
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(rank, row): the first one lacking of each rank, and all that nobody reads."""
        lacking = [(r, row) for r in right for row in sorted({*right[r]} - {*mine[r]})[:1]]
        idle = [(r, row) for r in right for row in sorted({*mine[r]} - {*right[r]})]
        return lacking, idle

    def figure(mine: dict[int, tuple[int, ...]] | None) -> draw.Figure:
        if mine is None:
            title = "Nobody borrows yet"
            return plots.rows_on_ranks(rows, size, stride, padding, borrowed={}, title=title)
        lacking, idle = offences(mine)
        marked = {r: [row for at, row in (*lacking[:1], *idle) if at == r] for r in mine}
        title = "Your loans" + ("; in red, what is lacking or not read" * bool(lacking or idle))
        return plots.rows_on_ranks(
            rows, size, stride, padding, borrowed=mine, marked=marked, title=title
        )

    above, below = padding
    return Exercise(
        name="who borrows what",
        question=(
            f"{sum(rows)} rows of an image on {len(rows)} ranks, which have "
            f"{', '.join(map(str, rows))}; windows of {size} rows with stride {stride}, {above} "
            f"rows of zeros above and {below} below. A window belongs to the rank that has its "
            f"middle row. Say for each rank which rows of others it needs: 0 output rows may lack "
            f"an input row, and at most {best} rows may be borrowed in all."
        ),
        form=(
            f"a dict, rank (0..{len(rows) - 1}) -> rows of the image (0..{sum(rows) - 1}), for "
            f"example {{0: ({ends[1]},), 1: ({ends[1] - 1},)}}"
        ),
        hints=(
            "Where does each window begin, where is its middle, and so whose is it? draw({}) has "
            "a line for each, with a dot at its middle.",
            "A rank needs what lies under its windows, from the first row of its first to the last "
            "row of its last, and has some of that already. Zeros come from nobody.",
            "With a stride, windows don't reach equally far over both edges of a rank: take its "
            "first window for what it lacks above, its last for what it lacks below.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: _borrowed(answer, split),
    )


def _borrowed(answer: Any, split: RowSplit) -> dict[int, tuple[int, ...]] | None:
    """``answer`` for every rank; raises ConfigError or PlacementError for rows that are none."""
    ranks, ends = len(split.rows), (0, *accumulate(split.rows))
    if not isinstance(answer, Mapping) or not set(answer) <= set(range(ranks)):
        return None
    for rank, mine in answer.items():
        if not isinstance(mine, tuple | list | range | set):
            raise ConfigError(f"rows of rank {rank} are a tuple such as (3, 4), got {mine!r}")
    found = {rank: tuple(answer.get(rank, ())) for rank in range(ranks)}
    for rank, mine in found.items():
        for row in mine:
            if row not in range(ends[-1]) or mine.count(row) > 1:
                raise PlacementError(
                    f"rows are numbers from 0 to {ends[-1] - 1}, each once: got {list(mine)} for "
                    f"rank {rank}"
                )
            if ends[rank] <= row < ends[rank + 1]:
                raise PlacementError(
                    f"a rank borrows what it does not have: rank {rank} has rows {ends[rank]} to "
                    f"{ends[rank + 1] - 1}, got row {row}; leave it out"
                )
    return found


def _lost(
    borrowed: Mapping[int, Sequence[int]],
    split: RowSplit,
    size: int,
    stride: int,
    padding: tuple[int, int],
) -> dict[int, list[int]]:
    """For each rank, the output rows for which it lacks an input row."""
    image, w = np.ones((1, 1, sum(split.rows), size)), np.ones((1, 1, size, size))
    ends, outs = (0, *accumulate(split.rows)), (0, *accumulate(split.out))
    lost = {}
    for rank, mine in borrowed.items():
        here = np.full_like(image, np.nan)
        for row in (*range(ends[rank], ends[rank + 1]), *mine):
            here[:, :, row] = image[:, :, row]
        y, _ = L.conv2d(here, w, stride=(stride, 1), padding=(padding, (0, 0)))
        gone = np.isnan(y[0, 0, outs[rank] : outs[rank + 1]]).any(axis=1)
        lost[rank] = [int(i) for i in outs[rank] + np.flatnonzero(gone)]
    return lost


# -- layers --------------------------------------------------------------------------------------


def split_each_layer(images: int = 256, ranks: int = 4, seed: int = 0) -> Exercise:
    """Choose for each of LeNet's layers "images", "out" or "in", so that a step moves the fewest
    bytes. The answer is run on threads in float32: the bytes are counted, gradients compared."""
    ways_there_are = (splits.parts_of(ways, images, ranks, 4) for ways in splits.every())
    least = min(ways_there_are, key=lambda parts: sum(part.nbytes for part in parts))
    best = sum(part.nbytes for part in least)

    def measure(ways: dict[str, str]) -> list[Target]:
        weights, (x, classes), whole = _batch(images, seed)
        done = run_threads(splits.split_step, ranks, ways, weights, x, classes)
        # the layer that is furthest above the same one in the best, and the most of it
        over = splits.parts_of(ways, images, ranks, 4)
        above = {at: -sum(p.nbytes for p in least if p.layer == at) for at in splits.NAMES}
        for part in over:
            above[part.layer] += part.nbytes
        at = max(above, key=above.__getitem__)
        most = max((part for part in over if part.layer == at), key=lambda part: part.nbytes)
        sent = sum(record.sent for record in done.records)
        loss, grads = splits.whole_gradients(ways, done.results)
        # the largest distance from the single device, as a share of the largest element
        apart = max(
            float(np.max(np.abs(grads[layer][kind] - g)) / np.max(np.abs(g)))
            for layer, each in whole[1].items()
            for kind, g in each.items()
        )
        error = max(abs(loss - whole[0]) / whole[0], apart)
        return [
            Target(
                "MB that all devices send",
                best / MB,
                sent / MB,
                best / MB,
                where=f"too much is {most.what}, {most.nbytes / MB:.4g} MB",
            ),
            Target("error of the gradients", ROUND_OFF, error, None),
        ]

    def figure(answer: Any) -> draw.Figure:
        alike = {f'all layers "{way}"': dict.fromkeys(splits.NAMES, way) for way in splits.WAYS}
        bars = {name: splits.bytes_of(ways, images, ranks, 4) for name, ways in alike.items()}
        if answer is not None:
            parts = splits.parts_of(answer, images, ranks, 4)
            bars["yours"] = sum(part.nbytes for part in parts)
            bars |= {part.what: part.nbytes for part in parts if part.nbytes}
        return _bars(bars, f"LeNet, {images} images, {ranks} devices: bytes of a step", best)

    alike = splits.bytes_of(dict.fromkeys(splits.NAMES, "images"), images, ranks, 4)
    return Exercise(
        name="a split for each layer",
        question=(
            f"LeNet, {images} images, {ranks} devices. For each of its layers "
            f"({', '.join(splits.NAMES)}) choose 'images' (all weights, some images), 'out' (some "
            f"output units) or 'in' (some input units). Between two layers the arrays are brought "
            f"to where they are needed. All layers by images move {alike / MB:.2f} MB in "
            f"a step. Reach {best / MB:.7g} MB, with gradients at most {ROUND_OFF:f} of the "
            f"largest away from a single device's."
        ),
        form=f"a dict with the way of each layer, for example {dict.fromkeys(splits.NAMES, 'out')}",
        hints=(
            "By images a layer pays for its weights; by units it pays for its activations. Which "
            "layers have many of which?",
            "Convolutions have few weights and many activations; one of the matrices has four "
            "fifths of all weights. 'in' sums its outputs, 'out' wants all of its inputs "
            "everywhere: which of the two is the smaller for it?",
            "What stands after that matrix decides in which form its sum is wanted: whole on every "
            "device, or shared out at once.",
        ),
        measured=measure,
        drawn=figure,
        read=splits.checked,
    )


@cache
def _batch(images: int, seed: int) -> tuple:
    """(weights, (images, classes), (loss, gradients on a single device)) in float32."""
    weights, batch = initial_weights(seed, "float32"), samples(images, seed, "float32")
    return weights, batch, gradients(weights, *batch)


# -- devices -------------------------------------------------------------------------------------


def until_layerwise_moves_more(each: int = 4, seed: int = 0) -> Exercise:
    """Find the fewest devices, with ``each`` images for every one of them, on which LeNet's
    layerwise split moves more bytes than data parallelism. Both are run, and counted; on more
    devices than RUN the plan says what they would send.

    >>> until_layerwise_moves_more(each=15).check(2).best
    True
    """

    def planned(name: str, devices: int) -> int:
        return sum(need(name, each * devices, devices, 4).sent)

    best = next(
        (n for n in range(2, MOST + 1) if planned("layerwise", n) > planned("data parallel", n)),
        None,
    )
    if best is None:
        raise PlacementError(
            f"with {each} images a device the layerwise split moves less than data parallelism on "
            f"up to {MOST} devices; take more images"
        )

    def measure(devices: int) -> list[Target]:
        if devices <= RUN:
            sent = {name: _counted(name, each * devices, devices, seed) for name in _BOTH}
        else:
            sent = {name: planned(name, devices) for name in _BOTH}
        percent = 100 * sent["data parallel"] / sent["layerwise"]
        both = " and ".join(f"{_SAID[name]} {sent[name] / MB:.4g} MB" for name in _BOTH)
        where = f"on {devices} devices, {each * devices} images, {both} are sent: too few images"
        return [
            Target(
                "data parallelism's bytes in % of those by output units",
                100,
                round(percent, 2),
                None,
                where=where,
            ),
            Target("devices", best, devices, best, least=True),
        ]

    def figure(answer: Any) -> draw.Figure:
        devices = answer or 2
        bars = {_SAID[name]: planned(name, devices) for name in _BOTH}
        title = f"LeNet, {devices} devices, {each} images on each: bytes of a step"
        return _bars(bars, title)

    return Exercise(
        name="until output units move more",
        question=(
            f"Every device brings {each} images, so the batch grows with them. On how many devices "
            f"does LeNet's split by output units move more bytes than data parallelism for the "
            f"first time? Give the fewest: data parallelism's bytes are to be at most 100 % of "
            f"those by output units."
        ),
        form=f"a whole number from 2 to {MOST}",
        hints=(
            "What data parallelism moves does not depend on the images. What does the split by "
            "output units move for each?",
            "Both move p - 1 times something, so the number of devices cancels. What stays is the "
            "size of the whole batch.",
            "Divide twice the weights by the activations that an image moves, there and back: "
            f"from so many images on it turns. Every device brings {each}.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: answer if is_whole(answer, 2, MOST) else None,
    )


_SAID = {"layerwise": "by output units", "data parallel": "data parallel"}
_BOTH = tuple(_SAID)


def _counted(name: str, images: int, devices: int, seed: int) -> int:
    """Bytes that all devices sent in a training step."""
    weights, batch = initial_weights(seed, "float32"), samples(images, seed, "float32")
    done = run_threads(PARTITIONINGS[name], devices, weights, *batch)
    return sum(record.sent for record in done.records)


@styled
def _bars(sizes: Mapping[str, int], title: str, most: int | None = None) -> draw.Figure:
    """A bar for each number of bytes; what is above ``most`` in "yours" is hatched."""
    figure = canvas(0.9 + 0.38 * len(sizes), title)
    axes = figure.subplots()
    colours = [ORANGE if name == "yours" else BLUE for name in sizes]
    axes.barh(list(sizes), [size / MB for size in sizes.values()], color=colours)
    for y, size in enumerate(sizes.values()):
        draw.note(axes, (size / MB, y), f"{size / MB:.2f} MB", color=GREY)
    if most is not None and "yours" in sizes:
        draw.mark_excess(axes, list(sizes).index("yours"), most / MB, sizes["yours"] / MB, 0.8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("MB that all devices send")
    return figure
