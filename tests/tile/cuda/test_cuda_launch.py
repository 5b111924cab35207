"""What the host does for a launch, without a GPU: the choice of a tile, what it is planned to take.

Holds `tiledask.tile.cuda.build`, `tiledask.tile.cuda.hopper_tile`, `tiledask.tile.cuda.prebuilt`
and `tiledask.tile.cuda.tensor_map`.
"""

import os
import sys

import numpy as np
import pytest
from twins.cuda_host import host_tensor_map, why_not

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile.cuda import build, hopper_tile, launch
from tiledask.tile.cuda.hopper_tile import (
    PARTIAL_BYTES,
    WGMMA_TILES,
    HopperTile,
    chosen,
    most_partials,
    slices,
)
from tiledask.tile.epilogue import Epilogue

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

HALF = td.tile.as_dtype("bfloat16")


# -- tensor maps ---------------------------------------------------------------------------------

REFUSED = {
    "address": (8, (64, 64, 1), (128, 8192), (64, 64, 1)),
    "stride": (16, (64, 64, 1), (130, 8192), (64, 64, 1)),
    "stride of a batch": (16, (64, 64, 1), (128, 2**40), (64, 64, 1)),
    "wide box": (16, (64, 64, 1), (128, 8192), (128, 64, 1)),
    "long box": (16, (64, 512, 1), (128, 2**16), (64, 257, 1)),
    "nothing": (16, (64, 0, 1), (128, 8192), (64, 64, 1)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_maps_on_the_host_go_by_the_drivers_rules(why):
    with pytest.raises(AssertionError):
        host_tensor_map("float16", *REFUSED[why])


# -- how the Hopper kernel goes over C ------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tile": (128, 64, 64)}, {"stages": 4}, {"stages": 1}, {"panels": 3}, {"cluster": 3}),
        *({"panels": 1, "stages": 5}, {"raster": 0}, {"splits": 0}),
    ],
    ids=str,
)
def test_a_way_that_cannot_be_is_refused(wrong):
    with pytest.raises(KernelError):
        HopperTile(**wrong)


def cycles(m, n, k, way, multiprocessors):
    """Of the busiest multiprocessor, by walking over the works of each cluster."""
    columns, steps, at_once = way.tile[1], -(-k // 64), way.at_once(multiprocessors)
    tiles = len(range(0, m, 128 * way.cluster)) * len(range(0, n, columns))
    found = slices(tiles, k, way, multiprocessors)
    step = hopper_tile._CYCLES[columns] * (1.04 if way.cluster == 1 else 1)
    end, moved = hopper_tile._END[columns], 128 * columns * 4 / 38
    tile, slice = steps * step + end, -(-steps // found.splits) * step + end + moved
    works = [tile] * found.whole + [slice] * (found.cut * found.splits)
    busiest = max(sum(works[first::at_once]) for first in range(at_once))
    return busiest + found.splits * moved * (found.cut > 0)


SHAPES = [
    *((1024, 1024, 2**e) for e in range(6, 17)),
    *((3072, 3072, 8192), (2304, 2304, 8192), (4096,) * 3, (8192,) * 3, (128, 4096, 7168)),
    *((300, 700, 4000), (1, 1, 2**20), (130, 10**5, 4096), (256, 256, 65536), (384, 2048, 4096)),
    *((128 * rows, 2**17, 4096) for rows in (1, 2, 3, 4, 5, 7, 27, 28)),  # an odd row costs
]


@pytest.mark.long
@pytest.mark.parametrize("multiprocessors", [132, 114, 7, 1])
def test_k_is_split_where_that_pays_and_nowhere_else(multiprocessors):
    splits = set()
    for m, n, k in SHAPES:
        how = chosen(m, n, k, 1, multiprocessors)
        took = cycles(m, n, k, how, multiprocessors)
        ways = [HopperTile(t, cluster=c) for t in WGMMA_TILES for c in (1, 2)[: 1 + (m > 128)]]
        uncut = min(cycles(m, n, k, way, multiprocessors) for way in ways)
        cut = min(
            cycles(m, n, k, HopperTile(way.tile, cluster=way.cluster, splits=s), multiprocessors)
            for way in ways
            for s in range(1, min(16, max(1, k // 64 // 4)) + 1)
        )
        assert took == pytest.approx(cut if cut < 0.95 * uncut else uncut), (m, n, k)
        splits.add(how.splits)
    assert 1 in splits
    assert (max(splits) > 1) == (multiprocessors > 1)  # one is never left idle


@pytest.mark.long
def test_partial_sums_take_no_more_than_was_said():
    """By launches as they are planned, on a GPU of whatever size: of `td.tile.workspace`."""
    took = set()
    wide, narrow = (HopperTile(tile, splits=9) for tile in WGMMA_TILES)
    for (m, n, k), tile in [(s, t) for s in SHAPES for t in (None, *WGMMA_TILES, wide, narrow)]:
        a, b, out = np.empty((m, k), HALF), np.empty((k, n), HALF), np.empty((m, n), HALF)
        said = td.tile.workspace(m, n, k, 2, "wgmma_ws_persistent", tile)
        for multiprocessors in (132, 78, 16):
            found = launch.planned(
                "wgmma_ws_persistent", a, b, out, tile, Epilogue(), multiprocessors
            )
            nbytes = 4 * (found.split.sums + found.split.counters) if found.split else 0
            assert nbytes <= most_partials(m, n, k, tile) <= said
            assert found.traffic.partials <= 2 * PARTIAL_BYTES
            took.add(nbytes > 0)
    assert took == {True, False}


# -- machine code that is brought along -----------------------------------------------------------

SMALL = ("smem_tiled", {"TILE": 16}, "sm_90")


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """A folder with the machine code of one variant; and a list of what is compiled from now."""
    folder, made = tmp_path / "brought", []

    def compiled(*given):
        made.append(given)
        return b"\x7fELF right", ""

    monkeypatch.setattr(build, "compile_for", compiled)
    monkeypatch.setenv("TILEDASK_CACHE", str(tmp_path / "cache"))
    size, seconds = build.bring(folder, *SMALL)
    assert (size, seconds > 0) == (len(b"\x7fELF right"), True)
    assert build.bring(folder, *SMALL) == (size, 0.0)
    assert made == [SMALL]
    made.clear()
    monkeypatch.setenv("TILEDASK_CUBINS", os.pathsep.join(map(str, (tmp_path / "none", folder))))
    return folder, made


@pytest.mark.parametrize("version", ["13.0", "12.4", "none"])
def test_what_was_brought_is_not_compiled_whatever_compiler_is_here(brought, monkeypatch, version):
    _, made = brought
    monkeypatch.setattr(build, "_version", lambda: version)
    assert build._kept(*SMALL).read_bytes() == b"\x7fELF right"
    assert not made


def test_a_version_that_cannot_be_asked_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    build._version.cache_clear()
    assert build._version() == "none"
    build._version.cache_clear()


DAMAGES = {
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
    "anyone's": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_damaged_on_the_way_is_refused_and_made_anew(brought, damage):
    folder, made = brought
    (path,) = folder.iterdir()
    DAMAGES[damage](path)
    with pytest.warns(UserWarning, match=r"cubin is not used: .*; bring it again"):
        assert build._kept(*SMALL).read_bytes() == b"\x7fELF right"
    assert made == [SMALL]


OTHERS = {
    "text": lambda patch: patch.setattr(build, "source", lambda name: "another"),
    "macros": lambda patch: patch.setitem(SMALL[1], "TILE", 32),
    "options": lambda patch: patch.setattr(build, "_options", lambda *given: ["another"]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_was_made_of_something_else_is_not_taken(brought, monkeypatch, other):
    _, made = brought
    OTHERS[other](monkeypatch)
    build._kept(*SMALL)
    assert made == [SMALL]
