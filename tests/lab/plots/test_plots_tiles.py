"""Figures of tiles: what they say is what was computed, and every word can be read.

Holds `tiledask.lab.plots.products.roofline`, `tiledask.lab.plots.products.tile_levels` and
`tiledask.lab.plots.products.tile_step`.
"""

from functools import cache

import pytest
from oracles.figures import clipped, drawn_texts, overlaps, words

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab import plots
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


def by_gid(figure, gid):
    return figure.findobj(lambda a: a.get_gid() == gid)


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


def test_levels_are_drawn_to_scale_and_as_long_as_they_take():
    found = levels(load_cluster("8xH200"), workers=(2, 4))
    figure = plots.tile_levels(found)
    tiles = [(patch.get_height(), patch.get_width()) for patch in by_gid(figure, "tile")]
    assert tiles == [level.tile for level in found.levels]
    for name, seconds in found.times.items():
        (bar,) = by_gid(figure, name)
        assert bar.get_width() == seconds
    text = "\n".join(words(figure))
    assert text.count("the longest") == 1
    for said in ("4096 x 2048 of 8192 x 8192", "H200, one of 2 x 4 workers", "2048 FLOP/byte"):
        assert said in text
    assert text.count("moved, 8 workers") == 1  # bytes between workers are those of all


def test_kernels_lie_below_the_roofs_and_one_mark_is_on_its_roof():
    predictions = ladder()
    figure = plots.roofline(predictions)
    for prediction in predictions:
        kernel, speed = prediction.config.kernel, prediction.flops_per_second
        (line,) = by_gid(figure, kernel)
        assert set(line.get_ydata()) == {speed}
        filled = []
        for level in prediction.levels.levels:
            (mark,) = by_gid(figure, f"{kernel} {level.name}")
            (x,), (y,) = mark.get_data()
            assert (x, y) == (level.intensity, speed)
            assert y <= x * level.bandwidth * 1.0001
            if mark.get_fillstyle() == "full":
                filled.append(level.name)
        assert filled == ([] if prediction.binding == "arithmetic" else [prediction.binding])
    (roof,) = by_gid(figure, "roof DRAM -> L2")
    for x, y in roof.get_xydata():
        assert y == pytest.approx(x * load_device("H200").memory_bandwidth)
    (peak,) = by_gid(figure, "peak bf16")
    assert set(peak.get_ydata()) == {989.5e12}


def test_a_step_loads_one_tile_of_each_and_the_last_ones_are_smaller():
    figure = plots.tile_step(13, 11, 9, (5, 4, 4), (2, 2, 2))
    sizes = {
        name: [(patch.get_height(), patch.get_width()) for patch in by_gid(figure, name)]
        for name in ("A before", "A now", "B before", "B now", "C now")
    }
    assert sizes == {
        "A before": [(3, 8)],
        "A now": [(3, 1)],
        "B before": [(8, 3)],
        "B now": [(1, 3)],
        "C now": [(3, 3)],
    }
    assert "loaded now: 6 numbers, for 18 FLOP" in words(figure)
    with pytest.raises(ConfigError, match="begins beyond 13 x 11 x 9"):
        plots.tile_step(13, 11, 9, 4, (0, 3, 0))
