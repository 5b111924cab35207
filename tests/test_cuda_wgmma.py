"""The kernel for Hopper's tensor cores, run on the host: ring of stages, barriers, swizzles, edges.

tiledask/tile/cuda/README.md says what this shows and what only a GPU can.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import cuda_host
import pytest
from cuda_host import HostFault, host_gpu, why_not
from cuda_host.products import Case, is_right

from tiledask.tile.cuda import launch

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

NARROW, WIDE = launch.WGMMA_TILES[1], launch.WGMMA_TILES[0]
BASE = Case(200, 150, 150, dtype="bfloat16")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with host_gpu(tmp_path_factory.mktemp("wgmma")) as built:
        yield built


def right(case, tile=NARROW, built=None, seeds=(1,)):
    for seed in seeds:
        for kernel in (built or {}).values():
            kernel.seed = seed
        if not is_right(partial(launch_it, tile=tile), replace(case, seed=seed)):
            return False
    return True


def launch_it(a, b, out, epilogue, tile):
    launch.wgmma_ws_persistent(a, b, out, tile, epilogue)


CASES = {
    **{f"{layouts}": replace(BASE, layouts=layouts) for layouts in
       ("CCC", "FCC", "CFC", "FFC", "CCF", "FCF", "CFF", "FFF")},
    "one element": replace(BASE, m=1, n=1, k=1),
    "one row": replace(BASE, m=1, n=300, k=70),
    "one column": replace(BASE, m=300, n=1, k=70),
    "a tile exactly": replace(BASE, m=128, n=128, k=64),
    "two tiles of a cluster exactly": replace(BASE, m=256, n=128, k=128),
    "one more than a tile": replace(BASE, m=129, n=129, k=65),
    "one less": replace(BASE, m=127, n=127, k=63),
    "many tiles, and stages": replace(BASE, m=700, n=300, k=500),
    "more rows of clusters than a band": replace(BASE, m=2500, n=200, k=10),
    "a batch": replace(BASE, batch=3),
    "a batch that shares a": replace(BASE, batch=3, shared="a"),
    "a batch that shares b": replace(BASE, batch=3, shared="b", layouts="FFC"),
    "operands off their boundary": replace(BASE, margin=1),
    "a batch off its boundary": replace(BASE, margin=1, batch=2, layouts="FCC"),
    "operands and C without neighbours": replace(BASE, layouts="SSS"),
    "halves with 5 bits of exponent": replace(BASE, dtype="float16"),
    "float32 out": replace(BASE, out_dtype="float32"),
    "alpha": replace(BASE, alpha=-0.5),
    "beta": replace(BASE, alpha=2.0, beta=0.5),
    "beta, float32 out, columns": replace(BASE, beta=1.0, out_dtype="float32", layouts="CCF"),
    "bias": replace(BASE, bias=True),
    "bias and columns": replace(BASE, bias=True, layouts="CCF"),
    "bias and GELU": replace(BASE, bias=True, gelu=True),
    "everything": replace(BASE, alpha=0.7, beta=-1.0, bias=True, gelu=True, before=True),
    "everything, columns, float32 out": replace(
        BASE, alpha=0.7, beta=-1.0, bias=True, gelu=True, before=True, layouts="FCF",
        out_dtype="float32", batch=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_float64_inside_and_touches_nothing_outside(gpu, case):
    assert right(CASES[case], built=gpu)


@pytest.mark.parametrize("seed", range(1, 7))
def test_whoever_is_slow_and_whenever_things_land(gpu, seed):
    assert right(replace(BASE, m=300, n=290, k=420), built=gpu, seeds=[seed])


@pytest.mark.parametrize("layouts", ["CCC", "FFC"])
def test_the_wide_tile(gpu, layouts):
    assert right(replace(BASE, m=140, n=270, layouts=layouts), tile=WIDE)
    assert right(replace(BASE, m=100, n=270, layouts=layouts, beta=1.0), tile=WIDE)


def test_a_variant_for_each_epilogue(tmp_path):
    """Built as a GPU builds it: without the parts of the epilogue that are not asked for."""
    with host_gpu(tmp_path, plain=False) as built:
        for case in (BASE, replace(BASE, bias=True), replace(BASE, beta=0.5, gelu=True)):
            assert right(case)
        used = [dict(key[1:]) for key in built]
    assert [(m["HAS_BIAS"], m["HAS_BETA"], m["HAS_GELU"]) for m in used] == [
        (0, 0, 0), (1, 0, 0), (0, 1, 1),
    ]  # fmt: skip


def test_what_goes_through_shared_memory(gpu):
    """Rows on boundaries, not read, nothing wanted before the activation: only then."""

    def staged(case):
        before = {key: len(kernel.launched) for key, kernel in gpu.items()}
        assert right(case)
        ran = [k for k, kernel in gpu.items() if len(kernel.launched) > before.get(k, 0)]
        (key,) = ran
        return dict(key[1:])["STAGED"]

    assert staged(BASE) == staged(replace(BASE, bias=True, gelu=True)) == 1
    assert staged(replace(BASE, layouts="CCF")) == 1  # computed as the transposed product
    for other in (
        {"margin": 1}, {"beta": 1.0}, {"out_dtype": "float32"}, {"layouts": "CCS"},
        {"gelu": True, "before": True},
    ):  # fmt: skip
        assert staged(replace(BASE, **other)) == 0


def test_a_map_is_as_large_as_what_a_kernel_copies_of_it():
    text = (Path(cuda_host.__file__).parent / "hopper.cuh").read_text()
    assert f"static_assert(sizeof(TensorMap) == {cuda_host.MAP.itemsize}," in text


# -- planted faults ------------------------------------------------------------------------------

MANY = replace(BASE, m=400, n=300, k=420)
TURNED = replace(MANY, layouts="FFC")
DIRECT = replace(MANY, out_dtype="float32", beta=1.0)

MUTATIONS = {
    "a stage is read before its bytes are there": (
        "barrier_wait(s.full(ring.stage), ring.parity);", ";", MANY,
    ),
    "a stage is filled while it is read": (
        "barrier_wait(s.empty(ring.stage), ring.parity ^ 1);", ";", MANY,
    ),
    "the producer waits for the wrong phase": ("ring.parity ^ 1);", "ring.parity);", MANY),
    "the phase never changes": ("parity ^= 1;", ";", MANY),
    "the ring starts over at every tile": (
        "        const Place at = place_of(tile, m, n);\n        float sums",
        "        ring = Ring{0, 0};\n        const Place at = place_of(tile, m, n);\n"
        "        float sums",
        MANY,
    ),
    "a stage is released before it was read": (
        "if (k0 > 0) release(s, before, thread);", "release(s, ring.stage, thread);", MANY,
    ),
    "nobody waits for the products": ("            wgmma_wait<1>();", "", MANY),
    "sums are stored before they are made": ("        wgmma_wait<0>();", "", MANY),
    "no fence before the products": ("    wgmma_begin();\n", "", MANY),
    "too few bytes are announced": (
        "barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES)",
        "barrier_arrive_expecting(s.full(ring.stage), A_BYTES + B_BYTES / CLUSTER)", MANY,
    ),
    "too many bytes are announced": (
        "barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES)",
        "barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES + 16)", MANY,
    ),
    "B is not shared with the neighbour": (
        "everyone = (1 << CLUSTER) - 1", "everyone = 1 << cluster_rank()", MANY,
    ),
    "both blocks load the same half of B": (
        "first = cluster_rank() * share", "first = 0", MANY,
    ),
    "only one consumer is waited for": ("CONSUMERS * CLUSTER);", "CLUSTER);", MANY),
    "the neighbour's producer is not told": (
        "if (thread < CLUSTER) barrier", "if (thread < 1) barrier", MANY,
    ),
    "blocks leave while others write to them": (
        "    cluster_sync();  // nobody leaves", "    // nobody leaves", MANY,
    ),
    "barriers are used before they are made": ("    cluster_sync();\n\n", "\n", MANY),
    "the tile of C is not fenced": ("    tile_writes_done();\n", "", MANY),
    "the tile of C leaves before all have written": (
        "    tile_writes_done();\n    group_sync(1 + consumer, GROUP_THREADS);",
        "    tile_writes_done();", MANY,
    ),
    "the last tile of C never leaves": ("    if (thread == 0) stores_are_done();", "", MANY),
    "C is not swizzled": ("((j ^ r) & 7) * 16", "(j & 7) * 16", MANY),
    "panels of C are mixed up": ("at.col + j * 64,", "at.col + (j ^ 1) * 64,", MANY),
    "consumers store to each other's rows": (
        "at.row + consumer * ROWS, at.batch", "at.row + (1 - consumer) * ROWS, at.batch", MANY,
    ),
    "both consumers multiply the same rows": (
        "descriptor(s.a(stage) + consumer * PANEL_BYTES,", "descriptor(s.a(stage),", MANY,
    ),
    "the descriptor of A has the wrong stride": (
        "PANEL_BYTES, 8 * ROW_BYTES);", "PANEL_BYTES, 4 * ROW_BYTES);", MANY,
    ),
    "the descriptor of B has the wrong leading offset": (
        "TILE_K * ROW_BYTES, 8 * ROW_BYTES);", "ROW_BYTES, 8 * ROW_BYTES);", MANY,
    ),
    "steps of k are taken twice": ("i * (A_TURNED ? 16 * ROW_BYTES : 32)", "0", MANY),
    "turned steps of k go the straight way": (
        "i * (A_TURNED ? 16 * ROW_BYTES : 32)", "i * 32", TURNED,
    ),
    "turned halves of A are mixed up": (
        "row + half * ROWS, k0,", "row + (1 - half) * ROWS, k0,", TURNED,
    ),
    "the first step adds to what the registers held": ("add || i > 0", "true", MANY),
    "a step of k is lost": (
        "k0 < k; k0 += TILE_K) {\n            barrier_wait(s.empty",
        "k0 + TILE_K < k; k0 += TILE_K) {\n            barrier_wait(s.empty", MANY,
    ),
    "tiles of the last band are mixed up": (
        "within % rows", "within % RASTER", replace(BASE, m=2500, n=200, k=10),
    ),
    "registers are taken that nobody gave": ("        registers_down_to<40>();", "", MANY),
    "a batch reads its first matrix": ("at.batch * a_batched", "0", replace(BASE, batch=3)),
    "one row too many is stored": (
        "if (i >= m) continue;", "if (i > m) continue;", replace(MANY, out_dtype="float32"),
    ),
    "the lower half lies 4 rows on": (
        "row + half * 8;\n        if (i >= m)", "row + half * 4;\n        if (i >= m)", DIRECT,
    ),
    "sums of the two halves are exchanged": (
        "sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]",
        "sums[4 * j + 2 - 2 * half], sums[4 * j + 3 - 2 * half]", DIRECT,
    ),
}  # fmt: skip


def is_caught(folder, faults, case):
    with host_gpu(folder, faults) as built:
        try:
            return not all(right(case, built=built, seeds=[seed]) for seed in range(1, 5))
        except HostFault:
            return True


@pytest.mark.parametrize("fault", MUTATIONS)
def test_planted_fault_is_caught(tmp_path, fault):
    before, after, case = MUTATIONS[fault]
    assert is_caught(tmp_path, [(before, after)], case)


@pytest.mark.parametrize("case", [MANY, TURNED, DIRECT], ids=["many", "turned", "direct"])
def test_an_untouched_kernel_is_not_caught(tmp_path, case):
    assert not is_caught(tmp_path, [], case)
