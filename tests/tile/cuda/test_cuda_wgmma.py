"""The kernel for Hopper's tensor cores, run on the host: ring of stages, barriers, swizzles, edges.

tiledask/tile/README.md says what this shows and what only a GPU can.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from oracles.planted import faults
from twins import cuda_host
from twins.cuda_host import HostFault, host_gpu, why_not
from twins.cuda_host.products import GemmCase, is_right

from tiledask.tile.choice.config import configs, hopper
from tiledask.tile.cuda import launch
from tiledask.tile.levels import traffic

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

WIDE, NARROW = (each.block for each in configs["wgmma_ws_persistent"])
BASE = GemmCase(200, 152, 150, dtype="bfloat16")
"""Rows and columns of C end on boundaries of 16 bytes, so that it leaves through shared memory."""
ALL = {"beta": -1.0, "bias": True, "gelu": True, "before": True}
EVERYTHING = replace(BASE, out_dtype="float32", alpha=0.7, **ALL)


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


@pytest.fixture
def told(monkeypatch):
    """Takes the choice of how the kernel goes over C."""

    def tell(cluster):
        def way(m, n, k, multiprocessors, staged, tile):
            return hopper(tile[1], cluster, staged)

        launch._plan.cache_clear()
        monkeypatch.setattr(launch, "hopper_tile", way)

    yield tell
    launch._plan.cache_clear()


def launch_it(a, b, out, epilogue, tile):
    launch.wgmma_ws_persistent(a, b, out, tile, epilogue)


CASES = {
    **{"".join(x): replace(BASE, layouts="".join(x)) for x in product("CF", repeat=3)},
    "columns that end between boundaries": replace(BASE, n=150),
    "rows that do, of a C by columns": replace(BASE, m=203, layouts="CCF"),
    "one element": replace(BASE, m=1, n=1, k=1),
    "one row": replace(BASE, m=1, n=300, k=70),
    "one column": replace(BASE, m=300, n=1, k=70),
    "a tile exactly": replace(BASE, m=128, n=128, k=64),
    "two tiles of a cluster exactly": replace(BASE, m=256, n=128, k=128),
    "one more than a tile": replace(BASE, m=129, n=129, k=65),
    "one less": replace(BASE, m=127, n=127, k=63),
    "many tiles, and stages": replace(BASE, m=700, n=300, k=500),
    "more rows of clusters than a band": replace(BASE, m=2500, n=200, k=10),
    "operands off their boundary": replace(BASE, margin=1),
    "operands and C without neighbours": replace(BASE, layouts="SSS"),
    "halves with 5 bits of exponent": replace(BASE, dtype="float16"),
    "float32 out": replace(BASE, out_dtype="float32"),
    "alpha": replace(BASE, alpha=-0.5),
    "beta": replace(BASE, alpha=2.0, beta=0.5),
    "beta, float32 out, columns": replace(BASE, beta=1.0, out_dtype="float32", layouts="CCF"),
    "bias": replace(BASE, bias=True),
    "bias and columns": replace(BASE, bias=True, layouts="CCF"),
    "bias and GELU": replace(BASE, bias=True, gelu=True),
    "everything": replace(EVERYTHING, out_dtype=""),
    "everything, columns, float32 out": replace(EVERYTHING, layouts="FCF"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_float64_inside_and_touches_nothing_outside(gpu, case):
    assert right(CASES[case], built=gpu)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(1, 7))
def test_whoever_is_slow_and_whenever_things_land(gpu, told, seed):
    odd = replace(BASE, m=300, n=296, k=420)  # a cluster has no rows for its second block
    told(2)
    assert right(odd, built=gpu, seeds=[seed])


@pytest.mark.few(1)
@pytest.mark.parametrize("layouts", ["CCC", "FFC"])
def test_the_wide_tile(gpu, layouts):
    assert right(replace(BASE, m=140, n=272, layouts=layouts), tile=WIDE)
    assert right(replace(BASE, m=100, n=272, layouts=layouts, beta=1.0), tile=WIDE)


COUNTED = {
    "in pairs": (BASE, 2),
    "alone": (BASE, 1),
    "a cluster has no rows for its second block": (replace(BASE, m=300, n=296, k=420), 2),
    "less than a tile": (replace(BASE, m=9, n=7, k=17), 1),
    "columns of C": (replace(BASE, m=300, layouts="CCF"), 2),
}


@pytest.mark.parametrize("case", COUNTED)
def test_what_it_says_it_loads_is_what_the_copy_engine_takes(gpu, told, case):
    """A tile of B once for the blocks of a cluster, to the byte, edges and all."""
    case, cluster = COUNTED[case]
    said, before = [], sum(kernel.taken for kernel in gpu.values())

    def run(a, b, out, epilogue):
        said.append(launch.wgmma_ws_persistent(a, b, out, NARROW, epilogue))

    told(cluster)

    assert is_right(run, case)
    assert said[0].loaded == sum(kernel.taken for kernel in gpu.values()) - before
    turned = case.layouts.endswith("F")  # as it is launched, the transposed product
    m, n = (case.n, case.m) if turned else (case.m, case.n)
    assert said == [traffic(m, n, case.k, (128 * cluster, NARROW[1], 64), 2)]


def test_a_variant_for_each_epilogue(tmp_path):
    """Built as a GPU builds it: without the parts of the epilogue that are not asked for."""
    with host_gpu(tmp_path, plain=False) as built:
        for case in (BASE, replace(BASE, bias=True), replace(BASE, beta=0.5, gelu=True)):
            assert right(case)
        used = [dict(key[1:]) for key in built]
    assert [(m["HAS_BIAS"], m["HAS_BETA"], m["HAS_GELU"]) for m in used] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 1),
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("ending", [{}, {"alpha": 0.5, **ALL}], ids=["plain", "everything"])
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("tile", [NARROW, WIDE])
def test_blocks_alone(gpu, told, tile, out, ending):
    told(1)
    assert right(replace(BASE, m=500, n=300, k=420, out_dtype=out, **ending), tile)


def test_what_goes_through_shared_memory(gpu):
    """Rows from boundary to boundary, not read, nothing wanted before the activation: only then."""

    def staged(case):
        before = {key: len(kernel.launched) for key, kernel in gpu.items()}
        assert right(case)
        ran = [k for k, kernel in gpu.items() if len(kernel.launched) > before.get(k, 0)]
        (key,) = ran
        return dict(key[1:])["STAGED"]

    assert staged(BASE) == staged(replace(BASE, bias=True, gelu=True)) == 1
    assert staged(replace(BASE, layouts="CCF")) == 1  # computed as the transposed product
    for other in (
        {"margin": 1},
        {"n": 150},
        {"m": 203, "layouts": "CCF"},
        {"beta": 1.0},
        {"out_dtype": "float32"},
        {"layouts": "CCS"},
        {"gelu": True, "before": True},
    ):
        assert staged(replace(BASE, **other)) == 0


def test_a_map_is_as_large_as_what_a_kernel_copies_of_it():
    text = (Path(cuda_host.__file__).parent / "hopper.cuh").read_text()
    assert f"static_assert(sizeof(TensorMap) == {cuda_host.MAP.itemsize}," in text


# -- planted faults ------------------------------------------------------------------------------

MANY = replace(BASE, m=400, n=304, k=420)
TURNED = replace(MANY, layouts="FFC")
DIRECT = replace(MANY, out_dtype="float32", beta=1.0)
APART = replace(DIRECT, layouts="CCS")  # elements move one by one, not by pairs

OF_THE_EPILOGUE = faults(r"""
one row too many: r * ROW_STEP < down && => r * ROW_STEP <= down &&
one column too many: COL_STEP + q < right; => COL_STEP + q <= right;
no edge is looked for along n: && p * COL_STEP + q < right; => ;
the bias of a column too many: column < right => column <= right
the bias of the next column: e.bias + j + column => e.bias + j + column + 1
the bias of another pair: bias[2 * p + q % 2] => bias[2 * r + q % 2]
beta is applied twice: y[q] += e.beta * => y[q] += 2 * e.beta *
beta is forgotten: y[q] += e.beta * => y[q] +=
alpha is forgotten: y[q] *= e.alpha; =>
neighbours are exchanged: q % 2 ? held[q / 2].y => q % 2 == 0 ? held[q / 2].y
what goes to C goes beside it: write(c.before, y); => write(c.data, y);
""")
"""In what all kernels but the first do with their sums (epilogue.cuh)."""

OF_THE_KERNEL = faults(r"""
a stage is read before its bytes are there: barrier_wait(s.full(ring.stage), ring.parity); => ;
a stage is filled while it is read: barrier_wait(s.empty(ring.stage), ring.parity ^ 1); => ;
the producer waits for the wrong phase: ring.parity ^ 1); => ring.parity);
the phase never changes: parity ^= 1; => ;
the ring starts over at every tile:
    float sums[TILE_N / 2];\n => ring = Ring{0, 0};\n        float sums[TILE_N / 2];\n
a stage is released before it was read:
    if (k0 > 0) release(s, before, thread); => release(s, ring.stage, thread);
nobody waits for the products: wgmma_wait<1>(); =>
sums are stored before they are made: wgmma_wait<0>(); =>
no fence before the products: wgmma_begin();\n =>
too few bytes are announced:
    barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES)
    => barrier_arrive_expecting(s.full(ring.stage), A_BYTES + B_BYTES / CLUSTER)
too many bytes are announced:
    barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES)
    => barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES + 16)
B is not shared with the neighbour:
    everyone = (1 << CLUSTER) - 1 => everyone = 1 << cluster_rank()
the next tile overwrites the panels: if (thread == 0) stores_have_read(); =>
the next tile does not wait for the thread that knows:
    // the tile before this one\n    group_sync(1 + consumer, GROUP_THREADS); =>
both blocks load the same half of B: first = cluster_rank() * share => first = 0
only one consumer is waited for: CONSUMERS * CLUSTER); => CLUSTER);
the neighbour's producer is not told: if (thread < CLUSTER) barrier => if (thread < 1) barrier
blocks leave while others write to them: cluster_sync();  // nobody leaves => // nobody leaves
barriers are used before they are made: cluster_sync();\n\n => \n
the tile of C is not fenced: tile_writes_done();\n =>
the tile of C leaves before all have written:
    tile_writes_done();\n    group_sync(1 + consumer, GROUP_THREADS); => tile_writes_done();
the last tile of C never leaves: if (thread == 0) stores_are_done(); =>
C is not swizzled: (byte % ROW_BYTES / 16 ^ r % 8) * 16 => byte % ROW_BYTES / 16 * 16
panels of C are mixed up: at.col + j * 64, => at.col + (j ^ 1) * 64,
consumers store to each other's rows:
    at.col + j * 64, at.row + consumer * ROWS => at.col + j * 64, at.row + (1 - consumer) * ROWS
both consumers multiply the same rows:
    descriptor(s.a(stage) + consumer * PANEL_BYTES, => descriptor(s.a(stage),
the descriptor of A has the wrong stride:
    PANEL_BYTES, 8 * ROW_BYTES); => PANEL_BYTES, 4 * ROW_BYTES);
the descriptor of B has the wrong leading offset:
    TILE_K * ROW_BYTES, 8 * ROW_BYTES); => ROW_BYTES, 8 * ROW_BYTES);
steps of k are taken twice: i * (A_TURNED ? 16 * ROW_BYTES : 32) => 0
turned steps of k go the straight way: i * (A_TURNED ? 16 * ROW_BYTES : 32) => i * 32
turned halves of A are mixed up: row + half * ROWS, k0, => row + (1 - half) * ROWS, k0,
the first step adds to what the registers held: add || i > 0 => true
a step of k is lost:
    k0 < k; k0 += TILE_K) {\n            barrier_wait(s.empty
    => k0 + TILE_K < k; k0 += TILE_K) {\n            barrier_wait(s.empty
tiles of the last band are mixed up: within % rows => within % RASTER
registers are taken that nobody gave: registers_down_to<40>(); =>
the lower row lies 4 rows on: Share<OUT, 2, 8, AT => Share<OUT, 2, 4, AT
pairs lie 4 columns apart: AT_ONCE / 8, 8> => AT_ONCE / 8, 4>
a row of the panel is another's: row + q % 2 * 8, => row + (1 - q % 2) * 8,
sums that come next do not move up: part.store(y);\n        move_up(sums); => part.store(y);
more rows of C are fetched than there are:
    fetch_into_l2_if(i < m && => fetch_into_l2_if(i <= m &&
more columns of C are fetched than there are: at.col + j < n, c.data => true, c.data
C is read after it was written:
    part.finish(e, y);\n        part.store(y); => part.store(y); part.finish(e, y); part.store(y);
""")
SHOWN_BY = {
    "turned steps of k go the straight way": TURNED,
    "turned halves of A are mixed up": TURNED,
    "tiles of the last band are mixed up": CASES["more rows of clusters than a band"],
    "the lower row lies 4 rows on": DIRECT,
    "pairs lie 4 columns apart": DIRECT,
    "sums that come next do not move up": APART,
    "more rows of C are fetched than there are": DIRECT,
    "more columns of C are fetched than there are": DIRECT,
    "C is read after it was written": DIRECT,
}
"""The others by `MANY`."""
WAYS = {"by pairs": EVERYTHING, "one by one": replace(EVERYTHING, layouts="CCS")}
MUTATIONS = {
    **{fault: (*texts, SHOWN_BY.get(fault, MANY)) for fault, texts in OF_THE_KERNEL.items()},
    **{
        f"{fault}, {how}": (*texts, case)
        for fault, texts in OF_THE_EPILOGUE.items()
        for how, case in WAYS.items()
    },
}


def is_caught(folder, faults, case):
    with host_gpu(folder, faults) as built:
        try:
            return not all(right(case, NARROW, built, [seed]) for seed in range(1, 5))
        except HostFault:
            return True


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", MUTATIONS)
def test_planted_fault_is_caught(tmp_path, fault):
    before, after, case = MUTATIONS[fault]
    assert is_caught(tmp_path, [(before, after)], case)


@pytest.mark.parametrize("case", [MANY, TURNED, DIRECT], ids=["many", "turned", "direct"])
def test_an_untouched_kernel_is_not_caught(tmp_path, case):
    assert not is_caught(tmp_path, [], case)
