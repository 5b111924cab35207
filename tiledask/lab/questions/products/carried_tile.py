"""8: a kernel's tile was chosen on one GPU and runs on a faster one. What is given away?"""

from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import choice, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.readers import device as device_name
from tiledask.lab.questions.shares import count
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.choice import Prediction, Tuning
from tiledask.tile.choice.residency import refusal

__all__ = ["QUESTION"]

KERNELS = "smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent"
TILES = 16, 32, 64, 128, 256
"""Of the NumPy tile kernel, which stands in for the GPU's where there is none."""
SIZE = 512
"""Of the product that is measured."""


def _best(kernel: str, device: str, m: int, n: int, k: int) -> Prediction:
    """Of all tiles of ``kernel`` that ``device`` can run, the one that is predicted the fastest."""
    found = td.tile.candidates(kernel, device)
    if not found:
        why = refusal(td.tile.config_of(kernel), device)
        raise ConfigError(f"{kernel} does not run on {device}: {why}; take {KERNELS[0]}")
    return td.tile.order(m, n, k, found, device)[0]


def _described(best: Prediction, name: str, m: int, n: int) -> list[str]:
    tm, tn, tk = best.config.block
    item, stages = best.config.itemsize, best.config.stages
    device, taken = best.levels.device, best.config.shared_bytes
    padding = taken - (tm + tn) * tk * item * stages
    padded = f" + {format_bytes(padding)} besides" if padding else ""
    return [
        f"{name} on the {device.name}: {tm} x {tn} x {tk}, {count(stages, 'stage')}; shared memory "
        f"({tm} + {tn}) x {tk} x {item} B x {stages}{padded} = {format_bytes(taken)} of "
        f"{format_bytes(device.block_shared_bytes)}",
        f"{best.occupancy}",
        f"{td.tile.waves(m, n, best.config, device)}",
        f"at most {best.flops_per_second / 1e12:.4g} TFLOP/s, bound by {best.binding}",
    ]


def work(kernel: str, tuned_on: str, runs_on: str, m: int, n: int, k: int) -> WorkedAnswer:
    """Shared memory, occupancy, waves and bound of both tiles on the new device."""
    if tuned_on == runs_on:
        raise ConfigError(f"a tile is carried from {tuned_on} to another device; name two devices")
    old, new = (_best(kernel, device, m, n, k) for device in (tuned_on, runs_on))
    stays, why_not, reached = old.config == new.config, refusal(old.config, runs_on), 0.0
    lines, shown = _described(old, "tuned", m, n), [new]
    if why_not:
        lines.append(f"the same tile on the {runs_on} does not start: {why_not}")
    else:
        carried = td.tile.predict(m, n, k, old.config, runs_on)
        reached = carried.flops_per_second
        if not stays:
            shown = [carried, new]
            lines += _described(carried, "carried over", m, n)
    best, loss = new.flops_per_second, 1 - reached / new.flops_per_second
    faster, gained = best / old.flops_per_second, reached / old.flops_per_second
    lines += _described(new, "the best", m, n)
    lines.append(
        f"the {runs_on} could be {faster:.3g} times as fast as the {tuned_on}; with the old tile "
        f"it is {gained:.3g} times: 1 - {reached / 1e12:.4g} / {best / 1e12:.4g} = "
        f"{100 * loss:.1f} % given away"
    )
    tiles = [" x ".join(map(str, each.config.block)) for each in (old, new)]
    if tiles[0] == tiles[1] and not stays:
        tiles = [f"{t} in {x.config.stages} stages" for t, x in zip(tiles, (old, new), strict=True)]
    answer = (
        f"Nothing: of this product {tiles[1]} is the best tile on both. A tile belongs to its "
        f"device all the same"
        if stays
        else f"The tile belongs to the device it was chosen for: {tiles[0]} of the {tuned_on} "
        f"gives away {100 * loss:.1f} % on the {runs_on}, where {tiles[1]} is best"
    )
    return WorkedAnswer(
        f"{answer}. The blocks over GPUs stay as they are.",
        lines,
        {
            "tile before": list(old.config.block),
            "tile after": list(new.config.block),
            "given away": loss,
            "times as fast, carried": gained,
            "times as fast, tuned anew": faster,
            "blocks a multiprocessor": [old.occupancy.blocks, new.occupancy.blocks],
        },
        lambda: td.plots.roofline(shown),
    )


def _measure(kernel: str, tiles: tuple[Any, ...]) -> tuple[Tuning, list[int], bool]:
    """On a worker: (every tile timed, bytes that each NumPy tile loaded, whether C is right)."""
    tuned = td.tile.tune(
        kernel, SIZE, SIZE, SIZE, candidates=tiles or None, repeats=3, deadline=20.0, progress=False
    )
    if kernel != "tiled":
        return tuned, [], True
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-4, 5, (SIZE, SIZE)).astype("float32") for _ in range(2))
    done = [td.tile.count_traffic(a, b, tile) for tile in tiles]
    return tuned, [t.loaded for _, t in done], all(np.array_equal(c, a @ b) for c, _ in done)


def run(
    cluster: Cluster, kernel: str, tuned_on: str, runs_on: str, m: int, n: int, k: int
) -> Comparison:
    """Tiles of one kernel timed on a worker: on its GPU, or the NumPy tile kernel on its CPU."""
    gpu = cluster.backend == "cupy"
    job = cluster.submit(0, _measure, kernel if gpu else "tiled", () if gpu else TILES)
    (done,) = cluster.gather([job], "the tiles", 120.0, cancel=True)
    tuned, loaded, right = done
    rows = [
        Claim(f"tile {tile}: loaded", td.tile.traffic(SIZE, SIZE, SIZE, tile, 4).loaded, None,
              nbytes, "bytes", "equal")
        for tile, nbytes in zip(TILES, loaded, strict=False)
    ] + [
        Claim("C is A B, every number", measured=right, rule="true"),
    ]  # fmt: skip
    place = {t.tile: i for i, t in enumerate(sorted(tuned.trials, key=lambda t: t.predicted), 1)}
    rows += [
        Claim(f"tile {'x'.join(map(str, trial.tile))}: place in the order of speed",
              place[trial.tile], None, i, note=format_seconds(trial.measured))
        for i, trial in enumerate(tuned.trials, 1)
    ]  # fmt: skip
    rows.append(
        Claim(
            "rank correlation of both orders",
            None,
            None,
            tuned.correlation,
            note="of bytes moved and time" if tuned.by == "bytes" else "of the bound and time",
        )
    )
    where = f"on {tuned.device}" if gpu else f"NumPy's tiles, no GPU here: {tuned.device}"
    return Comparison(f"{tuned.kernel}, {SIZE} x {SIZE} x {SIZE}: {where}", rows)


QUESTION = CourseQuestion(
    number=8,
    title="Low-Level Tile-Based Execution in Tensor Parallelism",
    asked="The tile of {kernel} was chosen on the {tuned_on}; now it multiplies {m} x {k} by {k} x "
    "{n} on the {runs_on}. What does that give away, and what is the right tile there?",
    inputs={
        "kernel": Input("mma_multistage", "smem_tiled", choice(KERNELS), "the tile kernel"),
        "tuned_on": Input("L4", "A100-80GB", device_name, "GPU that the tile was chosen on"),
        "runs_on": Input("H200", "A100-80GB", device_name, "GPU that it runs on"),
        "m": Input(4096, 1024, whole(1, 65536), "rows of A"),
        "n": Input(4096, 1024, whole(1, 65536), "columns of B"),
        "k": Input(4096, 64, whole(1, 65536), "columns of A, and rows of B"),
    },
    work=work,
    run=run,
    workers=lambda **_: 1,
)
