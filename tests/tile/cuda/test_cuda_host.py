"""The CUDA kernels on the host, thread by thread: right at every edge, nothing touched outside,
what they say they load, no bank asked twice; and planted faults are seen.

tiledask/tile/README.md says what this shows and what only a GPU can. What the GPU's compiler makes
of the text is counted in test_cuda_offline.py.

Holds `tiledask.tile.cuda`.
"""

import re
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from gpu.gemm_cases import GemmCase, drawn_case
from twins.cuda_host import COPY, LDMATRIX, READ, WRITE, host_gpu, why_not

from tiledask.errors import KernelError
from tiledask.tile.backend import as_dtype
from tiledask.tile.choice.config import configs, hopper
from tiledask.tile.cuda import launch
from tiledask.tile.cuda.operands import MatrixLayout, layout, padded
from tiledask.tile.levels import traffic

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

SMEM, SGEMM, MMA, WGMMA = configs
TILES = {kernel: [each.block for each in configs[kernel]] for kernel in (SGEMM, MMA, WGMMA)}
TILES = {SMEM: [(extent,) * 3 for extent in (8, 16, 32)]} | TILES
SMALL = {kernel: tiles[0 if kernel == SMEM else -1] for kernel, tiles in TILES.items()}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with host_gpu(tmp_path_factory.mktemp("gpu")) as found:
        yield found


# -- any product -----------------------------------------------------------------------------------


def usual(kernel, m, n, k, layouts="CCC", **more):
    """A case of the kernel's first type."""
    dtype = "bfloat16" if kernel in (MMA, WGMMA) else "float32"
    return GemmCase(m, n, k, layouts, **{"dtype": dtype} | more)


def drawn(kernel, number):
    """(the kernel, a product, its tile, blocks of a cluster): extents around tiles, none whole,
    one, more."""
    draw = Random(f"{kernel} {number}")
    tile = draw.choice(TILES[kernel])
    times = ((0, 1, 1, 2, 3),) * 2 + ((0, 1, 2, 3, 5),)
    near = [t * draw.choice(of) for t, of in zip(tile, times, strict=True)]
    extents = [max(1, extent + draw.choice((-1, 0, 0, 1, 4, 7))) for extent in near]
    types = {}
    if kernel in (MMA, WGMMA):
        types["dtype"] = "bfloat16"
        types["out_dtype"] = draw.choice(("", "", "float32"))
    return kernel, drawn_case(draw, *extents, **types), tile, draw.choice((1, 2))


BASE = usual(WGMMA, 200, 152, 150)
"""Rows and columns of C end on boundaries of 16 bytes, so that it leaves through shared memory."""
ADDED = replace(BASE, out_dtype="float32", beta=-1.0)
BY_HAND = [
    *((WGMMA, replace(BASE, layouts="".join(x)), SMALL[WGMMA], 2) for x in product("CF", repeat=3)),
    *((WGMMA, usual(WGMMA, 300, 296, 420, seed=n), SMALL[WGMMA], 2) for n in range(6)),
    # more rows of tiles than a band: of clusters, of blocks
    (WGMMA, usual(WGMMA, 2500, 200, 10), SMALL[WGMMA], 2),
    *((kernel, usual(kernel, 64 * 8 + 3, 130, 40), SMALL[kernel], 1) for kernel in (SGEMM, MMA)),
]


@pytest.mark.few(60)
@pytest.mark.parametrize(
    ("kernel", "case", "tile", "cluster"),
    [*BY_HAND, *(drawn(kernel, number) for number in range(60) for kernel in TILES)],
    ids=str,
)
def test_it_agrees_with_float64_and_loads_what_it_says(
    gpu, monkeypatch, kernel, case, tile, cluster
):
    """The copy engine takes a tile of B once for the blocks of a cluster, to the byte, edges and
    all."""
    monkeypatch.setattr(
        launch, "hopper_tile", lambda *given: hopper(tile[1], cluster, staged=given[4])
    )
    launch._plan.cache_clear()
    before = gpu.taken
    said = gpu.loads(case, kernel, tile)
    launch._plan.cache_clear()
    rows = tile[0] * (cluster if kernel == WGMMA else 1)
    assert kernel != WGMMA or said.loaded == gpu.taken - before
    size = 2 if case.dtype.endswith("16") else 4
    rest = case.k, (rows, *tile[1:]), size, case.beta != 0
    out = 4 if case.out_dtype else size
    as_it_is, turned = (case.m, case.n), (case.n, case.m)
    assert said in [traffic(*extents, *rest, out) for extents in (as_it_is, turned)]


NO_CONFLICT = {
    SGEMM: {(READ, 16): 1, (COPY, 16): 1, (COPY, 4): 1, (WRITE, 16): 1},
    MMA: {(READ, 8): 1, (COPY, 16): 1, (READ, 4): 0, (WRITE, 8): 1, (LDMATRIX, 16): 1},
}
"""How often shared memory is asked, by kind and bytes a lane."""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kernel", "tile"), [(kernel, tile) for kernel in NO_CONFLICT for tile in TILES[kernel]]
)
def test_no_two_words_of_one_bank_are_wanted_at_a_time(tmp_path, kernel, tile):
    """Of every instruction on shared memory, counted as they ran."""
    shapes = [(128, 128, 32)] if kernel == SGEMM else [(129, 127, 70), (128, 128, 96)]
    with host_gpu(tmp_path) as fresh:
        for shape, layouts in product(shapes, ("CCC", "FFC")):
            fresh.loads(usual(kernel, *shape, layouts), kernel, tile)
        assert {key: fresh.turns(*key) for key in NO_CONFLICT[kernel]} == NO_CONFLICT[kernel]
        assert kernel != SGEMM or fresh.unpaired(READ, 16) == 0


def test_c_goes_through_shared_memory_if_it_is_not_read_and_of_the_operands_type(tmp_path):
    """Beside where its rows do not start and end on boundaries: then too."""
    staged = [replace(BASE, **how) for how in ({}, {"layouts": "CCF"}, {"margin": 1}, {"n": 150})]
    direct = [replace(BASE, **how) for how in ({"beta": 1.0}, {"out_dtype": "float32"})]
    with host_gpu(tmp_path) as gpu:
        for case in (*staged, *direct):
            ran = {key: len(kernel.launched) for key, kernel in gpu.built.items()}
            gpu.loads(case, WGMMA, SMALL[WGMMA])
            (key,) = [k for k, kernel in gpu.built.items() if len(kernel.launched) > ran.get(k, 0)]
            assert dict(key[1:])["STAGED"] == (case in staged), case


# -- what a launch is made of ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("step", [1, 2])
def test_a_copy_holds_the_same_numbers_nan_too(dtype, step):
    """Off its boundary or without neighbours; halves are copied as integers."""
    numbers = (np.arange(1400).reshape(20, 70) % 97).astype(as_dtype(dtype))
    numbers[3, 5] = np.nan
    x = numbers[:, 1:61:step]
    copied = padded(x)
    assert layout(copied).boundary == 16
    np.testing.assert_array_equal(copied.astype("f4"), x.astype("f4"))


@pytest.mark.parametrize(
    ("kernel", "rows", "words"),
    [(SGEMM, 2**31, "up to 2147483136"), (SMEM, 2**21, "up to 1048576")],
)
def test_what_a_launch_cannot_count_is_refused(kernel, rows, words):
    a, b = (MatrixLayout("float32", 4, many, 8, 8, 1, 16) for many in (rows, 8))
    with pytest.raises(KernelError, match=words):
        launch._plan(kernel, a, b, a, (32, 32, 32), False, 0)


# -- planted faults ------------------------------------------------------------------------------

# kernel: fault: before => after; what is indented goes on
FAULTS = r"""
smem_tiled: tiles read before they are complete: __syncthreads();  // both => // both
smem_tiled: one row too many is loaded: row < rows - row0 => row <= rows - row0
smem_tiled: a barrier only some threads reach:
    __syncthreads();  // both => if (x) __syncthreads();  // both
smem_tiled: beta = 0 reads C: HAS_BETA ? sum + => true ? sum +
sgemm_warptiled: nobody waits for the copies: copies_wait<STAGES - 2>(); =>
sgemm_warptiled: a stage is refilled while others read it: __syncthreads();  // this => // this
sgemm_warptiled: a ragged band is walked as if it were whole:
    min(RASTER, down - band * RASTER) => RASTER
mma_multistage: the stage that is read is refilled:
    STAGES - 1; ++s) copy_next => STAGES; ++s) copy_next
mma_multistage: no edge is looked for along k: && left >= TILE_K =>
mma_multistage: lanes read rows before they are put: __syncwarp();  // all lanes have put => //
wgmma_ws_persistent: one row too many: r * ROW_STEP < down && => r * ROW_STEP <= down &&
wgmma_ws_persistent: what is in C is not added: part.finish(beta, sums + j / 2); =>
wgmma_ws_persistent: a stage is read before its bytes are there:
    barrier_wait(s.full(ring.stage), ring.parity); => ;
wgmma_ws_persistent: a stage is released before it was read:
    if (k0 > 0) release(s, before, thread); => release(s, ring.stage, thread);
wgmma_ws_persistent: nobody waits for the products: wgmma_wait<1>(); =>
wgmma_ws_persistent: no fence before the products: wgmma_begin();\n =>
wgmma_ws_persistent: too many bytes are announced:
    barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES)
    => barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES + 16)
wgmma_ws_persistent: blocks leave while others write to them:
    cluster_sync();  // nobody leaves => // nobody leaves
wgmma_ws_persistent: barriers are used before they are made: cluster_sync();\n\n => \n
wgmma_ws_persistent: the tile of C is not fenced: tile_writes_done();\n =>
wgmma_ws_persistent: the last tile of C never leaves: if (thread == 0) stores_are_done(); =>
wgmma_ws_persistent: registers are taken that nobody gave: registers_down_to<40>(); =>
"""
SHOWING = {
    SMEM: [
        usual(SMEM, *shape, how, margin=1, beta=beta)
        for shape in ((8, 8, 8), (9, 7, 17), (33, 34, 31))
        for how, beta in product(("CCC", "FCF", "SSS"), (0.0, -1.0))
    ],
    SGEMM: [usual(SGEMM, *of, "FFC") for of in ((60, 60, 120), (20, 70, 37), (64 * 9, 65, 3))],
    MMA: [usual(MMA, *of) for of in ((60, 60, 300), (20, 70, 75))],
    WGMMA: [replace(BASE, m=400, n=304, k=420), ADDED],
}


@pytest.mark.parametrize("fault", re.split(r"\n(?=\S)", FAULTS.strip()))
def test_a_planted_fault_is_caught(tmp_path, fault):
    kernel, _, texts = re.split(r":\s", fault, maxsplit=2)
    texts = tuple(x.strip().replace(r"\n", "\n") for x in texts.split("=>"))
    seeds = range(1 if kernel == SMEM else 4)
    orders = [replace(case, seed=case.seed + n) for n in seeds for case in SHOWING[kernel]]
    with host_gpu(tmp_path, [texts]) as gpu:
        assert gpu.catches(orders, kernel, SMALL[kernel])


LANES = ("lane >> 1 & 1 | lane >> 2 & 6", "lane / 4"), ("lane & 1 | lane >> 1 & 2", "lane % 4")
CONFLICTS = {
    "lines that start in the same bank": (SGEMM, [("PITCH = EXTENT + 4", "PITCH = EXTENT")]),
    "lanes row by row": (SGEMM, LANES),
    "chunks that stay where they are": (MMA, [("CHUNKS == 4 ? line / 2 % 4 : line % 8", "0")]),
}


@pytest.mark.parametrize("fault", CONFLICTS)
def test_a_planted_conflict_is_seen(tmp_path, fault):
    kernel, texts = CONFLICTS[fault]
    with host_gpu(tmp_path, texts) as slow:
        slow.loads(usual(kernel, 64, 64, 16 if kernel == SGEMM else 64), kernel, SMALL[kernel])
        turns = [slow.turns(*key) > most for key, most in NO_CONFLICT[kernel].items() if most]
        assert any(turns) or slow.unpaired(READ, 16) > 0
