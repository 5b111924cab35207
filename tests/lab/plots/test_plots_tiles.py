"""Figures of tiles: what they say is what was computed, and every word can be read.

Holds `tiledask.lab.plots.kernels` and `tiledask.lab.plots.products.tile_step`.
"""

from functools import cache

import pytest
from oracles.figures import clipped, drawn_texts, overlaps, words

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.plots.primitives import places
from tiledask.plan.inputs.hardware import load_cluster, load_device

LADDER = (
    ("smem_tiled", "float32"),
    ("sgemm_warptiled", "float32"),
    ("mma_multistage", "bfloat16"),
    ("wgmma_ws_persistent", "bfloat16"),
)


def levels(device="H200", n=8192, kernel="wgmma_ws_persistent", **more):
    return td.tile.levels_of(n, n, n, kernel, device, **more)


def ladder(device="H200", names=LADDER, n=8192):
    return [td.tile.predict(n, n, n, kernel, device, dtype) for kernel, dtype in names]


FIGURES = {
    "levels": lambda: plots.tile_levels(levels(load_cluster("8xH200"), workers=(2, 4))),
    "levels, unknown": lambda: plots.tile_levels(levels("L4", kernel="mma_multistage")),
    "levels, thin": lambda: plots.tile_levels(
        td.tile.levels_of(65536, 16, 4096, "smem_tiled", "T4")
    ),
    "levels, one tile": lambda: plots.tile_levels(levels(n=64)),
    "roofline": lambda: plots.roofline(ladder()),
    "roofline, measured": lambda: plots.roofline(
        ladder("B200", LADDER[:3], 4096), measured={"smem_tiled": 5e12}
    ),
    "roofline, one": lambda: plots.roofline(ladder("T4", LADDER[:1], 100)),
    "step": lambda: plots.tile_step(500, 700, 300, 32, (7, 12, 5)),
    "step, shared": lambda: plots.tile_step(512, 768, 256, (256, 256, 64), (1, 1, 2), blocks=2),
    "step, of one": lambda: plots.tile_step(20, 30, 40, 1, (7, 12, 18)),
}


@cache
def drawn(name: str) -> tuple:
    """(figure, its words), drawn once for all that is asked of it."""
    figure = FIGURES[name]()
    return figure, drawn_texts(figure)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FIGURES)
def test_every_word_is_inside_the_picture_and_upon_no_other(name):
    figure, texts = drawn(name)
    assert len(texts) >= 6
    assert not clipped(figure, texts)
    assert not overlaps(texts)


def test_levels_are_as_long_as_they_take():
    found = levels(load_cluster("8xH200"), workers=(2, 4))
    figure = plots.tile_levels(found)
    for name, seconds in found.times.items():
        ((_, _, width, _),) = places(figure.axes[0], name)
        assert width == seconds
    text = "\n".join(words(figure))
    assert text.count("the longest") == 1
    for said in ("between workers: 4096 x 2048", "one of 2 x 4 workers", "2048 FLOP/byte"):
        assert said in text
    assert text.count("moved, 8 workers") == 1  # bytes between workers are those of all


def test_kernels_are_on_the_roof_that_binds_them_or_below_all():
    (axes,) = plots.roofline(ladder(), measured={"smem_tiled": 5e12}).axes
    lines = {line.get_gid(): line.get_xydata().tolist() for line in axes.lines}
    crosses = lines["a kernel at its bound; a dot: as measured"]
    for found, (x, y) in zip(ladder(), crosses, strict=True):
        assert y == pytest.approx(found.flops_per_second / 1e12)
        for level in found.levels.levels:
            if level.name == found.binding:  # a little below it: its reads are not all whole
                assert x == level.intensity
                assert y == pytest.approx(x * level.bandwidth / 1e12, rel=2e-3)
    bandwidth = load_device("H200").memory_bandwidth
    (roof,) = (line for name, line in lines.items() if str(name).startswith("DRAM -> L2: "))
    assert all(y == pytest.approx(min(x * bandwidth, 989.5e12) / 1e12) for x, y in roof)
    assert [y for _, y in lines["smem_tiled measured"]] == [5.0]


def test_a_step_loads_one_tile_of_each_and_the_last_ones_are_smaller():
    figure = plots.tile_step(13, 11, 9, (5, 4, 4), (2, 2, 2))
    drawn = {
        name: [(high, wide) for _, _, wide, high in places(figure.axes[0], name)]
        for name in ("needed of X", "loaded of X", "needed of A", "loaded of A", "made")
    }
    assert [*drawn.values()] == [[(3, 8)], [(3, 1)], [(8, 3)], [(1, 3)], [(3, 3)]]
    assert "loaded now: 6 numbers, for 18 FLOP" in words(figure)
    with pytest.raises(ConfigError, match="begins beyond 13 x 11 x 9"):
        plots.tile_step(13, 11, 9, 4, (0, 3, 0))
