"""Split convolutions: borrow rows, count devices; both are run.

borrowed_rows               rank -> rows    each rank multiplies what it has, and nan for the rest
until_layerwise_moves_more  devices         two training steps: bytes counted
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tiledask.distributed.convolution.lenet import initial_weights, samples
from tiledask.distributed.convolution.lenet_runs import PARTITIONINGS
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.products.placements import span
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.plan.collectives.rows import RowSplit, split_rows
from tiledask.plan.program.making.convolution.of_lenet import need
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as L

__all__ = ["borrowed_rows", "until_layerwise_moves_more"]

MB = 1_000_000
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

    return Exercise(
        name="who borrows what",
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

    return Exercise(
        name="until output units move more",
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
        read=lambda answer: answer if is_whole(answer, 2, MOST) else None,
    )


_SAID = {"layerwise": "by output units", "data parallel": "data parallel"}
_BOTH = tuple(_SAID)


def _counted(name: str, images: int, devices: int, seed: int) -> int:
    """Bytes that all devices sent in a training step."""
    weights, batch = initial_weights(seed, "float32"), samples(images, seed, "float32")
    done = run_threads(PARTITIONINGS[name], devices, weights, *batch)
    return sum(record.sent for record in done.records)
