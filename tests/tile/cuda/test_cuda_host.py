"""The CUDA kernels on the host, thread by thread: right at every edge, nothing touched outside,
what they say they load, no bank asked twice; and planted faults are seen.

tiledask/tile/README.md says what this shows and what only a GPU can. What the GPU's compiler makes
of the text is counted in test_cuda_offline.py.

Holds `tiledask.tile.cuda`.
"""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from gpu.gemm_cases import GemmCase
from twins.cuda_host import COPY, LDMATRIX, READ, WRITE, host_gpu, why_not

from tiledask.errors import KernelError
from tiledask.tile.backend import as_dtype
from tiledask.tile.choice.config import configs, hopper
from tiledask.tile.cuda import launch
from tiledask.tile.cuda.operands import MatrixLayout, layout, padded
from tiledask.tile.levels import traffic

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

SMEM, SGEMM, MMA, WGMMA = (kernel for kernel in configs if kernel != "tiled")
WIDE, NARROW = (each.block for each in configs[WGMMA])
LARGE, SMALL = (each.block for each in configs[SGEMM])
LARGE_16, SMALL_16 = (each.block for each in configs[MMA])
TILES = {SMEM: (8, 8, 8), SGEMM: SMALL, MMA: SMALL_16, WGMMA: NARROW}
ALL = {"beta": -1.0, "bias": True, "gelu": True, "before": True}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with host_gpu(tmp_path_factory.mktemp("gpu")) as found:
        yield found


# -- the textbook kernel ---------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (8, 8, 8), (16, 8, 24), (9, 7, 17), (5, 19, 33), (33, 34, 31), (1, 40, 8)]
LAYOUTS = ["".join(x) for x in product("CF", repeat=3)] + ["SSS"]
ENDINGS = [
    {},
    {"beta": 1.0},
    {"alpha": -0.5, "beta": 2.0},
    {"bias": True},
    {"alpha": 0.5, **ALL},
]


def textbook(shapes):
    for seed, (shape, layouts, ending) in enumerate(product(shapes, LAYOUTS, ENDINGS)):
        yield GemmCase(*shape, layouts, margin=1, seed=seed, **ending)


@pytest.mark.few(5)
@pytest.mark.parametrize("extent", [8, 16, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_smem_agrees_with_float64(gpu, extent, shape):
    m, n, k = shape
    for case in textbook([shape]):
        said = gpu.loads(case, SMEM, (extent,) * 3)
        assert said == traffic(m, n, k, extent, 4, accumulate=case.beta != 0)


# -- panels by cp.async ----------------------------------------------------------------------------


def panel(kernel, shape, layouts="CCC", margin=8, **more):
    """A case of sgemm, or of mma in bf16."""
    dtype = "bfloat16" if kernel == MMA else "float32"
    return GemmCase(*shape, layouts, **{"dtype": dtype} | more, margin=margin)


def around(k):
    """(m, n, k) around tiles of 64 x 64 and steps of ``k`` along k: none whole, one, more, less."""
    return [
        *((1, 1, 1), (64, 64, k), (63, 65, k + 1), (65, 63, k - 1), (64, 64, k // 8 + 3)),
        *((5, 70, 3 * k), (70, 5, 4 * k), (62, 61, 3 * k + 4), (3, 3, 3 * k - 1)),
    ]


ENDED = [
    {"shape": (66, 65, 40), "layouts": "CCS", "beta": 1.0, "bias": True},
    {"shape": (64 * 8 + 3, 130, 40)},  # a whole band of tiles and a ragged one
    *({"shape": (66, 70, 40), "layouts": how, **end} for how in ("CCC", "FFF") for end in ENDINGS),
    *({"shape": (66, 70, 40), "seed": seed} for seed in range(2, 8)),
]
# (kernel, layouts, margin, more); with a margin of 1 operands are copied to their boundaries
VARIANTS = [
    *((kernel, how, 8, {}) for kernel in (SGEMM, MMA) for how in ("CCC", "FFC")),
    *((kernel, how, 1, {}) for kernel in (SGEMM, MMA) for how in ("FCC", "CFC")),
    (MMA, "FFC", 8, {"out_dtype": "float32"}),
    (MMA, "CFC", 8, {"dtype": "float16"}),
]
LARGE_SHAPES = [(129, 127, 40), (1, 128, 16), (128, 130, 33)]
PANELS = [
    *(
        (kernel, panel(kernel, shape, layouts, margin, seed=seed, **more), TILES[kernel])
        for kernel, layouts, margin, more in VARIANTS
        for shape in around(16 if kernel == SGEMM else 32)
        for seed in (0, 1)  # of numbers, and of the order of threads
    ),
    *((kernel, panel(kernel, **how), TILES[kernel]) for kernel in (SGEMM, MMA) for how in ENDED),
    *((SGEMM, panel(SGEMM, s, how), LARGE) for s in LARGE_SHAPES for how in ("CCC", "FFC")),
]


@pytest.mark.few(32)
@pytest.mark.parametrize(("kernel", "case", "tile"), PANELS, ids=str)
def test_panels_agree_with_float64(gpu, kernel, case, tile):
    gpu.loads(case, kernel, tile)


NO_CONFLICT = {
    SGEMM: {(READ, 16): 1, (COPY, 16): 1, (COPY, 4): 1, (WRITE, 16): 1},
    MMA: {(READ, 8): 1, (COPY, 16): 1, (READ, 4): 0, (WRITE, 8): 1, (LDMATRIX, 16): 1},
}
"""How often shared memory is asked, by kind and bytes a lane."""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kernel", "tile"), [(SGEMM, SMALL), (SGEMM, LARGE), (MMA, SMALL_16), (MMA, LARGE_16)]
)
def test_no_two_words_of_one_bank_are_wanted_at_a_time(tmp_path, kernel, tile):
    """Of every instruction on shared memory, counted as they ran."""
    shapes = [(128, 128, 32)] if kernel == SGEMM else [(129, 127, 70), (128, 128, 96)]
    with host_gpu(tmp_path) as fresh:
        for shape, layouts in product(shapes, ("CCC", "FFC")):
            fresh.loads(panel(kernel, shape, layouts), kernel, tile)
        assert {key: fresh.turns(*key) for key in NO_CONFLICT[kernel]} == NO_CONFLICT[kernel]
        assert kernel != SGEMM or fresh.unpaired(READ, 16) == 0


# -- Hopper's tensor cores -------------------------------------------------------------------------

BASE = GemmCase(200, 152, 150, dtype="bfloat16")
"""Rows and columns of C end on boundaries of 16 bytes, so that it leaves through shared memory."""
EVERYTHING = replace(BASE, out_dtype="float32", alpha=0.7, **ALL)
ODD = replace(BASE, m=300, n=296, k=420)  # a cluster has no rows for its second block
BANDS = replace(BASE, m=2500, n=200, k=10)  # more rows of clusters than a band
ODDLY = {"m": 500, "n": 300, "k": 420}
AROUND = [(1, 1, 1), (1, 300, 70), (300, 1, 70), (128, 128, 64), (256, 128, 128)]
AROUND += [(129, 129, 65), (127, 127, 63), (700, 300, 500)]
CHOSEN = [
    *(replace(BASE, layouts="".join(x)) for x in product("CF", repeat=3)),
    replace(BASE, n=150),
    replace(BASE, m=203, layouts="CCF"),
    *(replace(BASE, m=m, n=n, k=k) for m, n, k in AROUND),
    BANDS,
    replace(BASE, margin=1),
    replace(BASE, layouts="SSS"),
    replace(BASE, dtype="float16"),
    replace(BASE, out_dtype="float32"),
    replace(BASE, alpha=2.0, beta=0.5),
    replace(BASE, beta=1.0, out_dtype="float32", layouts="CCF"),
    replace(BASE, bias=True, gelu=True),
    replace(BASE, bias=True, layouts="CCF"),
    replace(EVERYTHING, out_dtype=""),
    replace(EVERYTHING, layouts="FCF"),
]
# (case, tile, blocks of a cluster: as many as it chooses if None)
OVER_C = [
    *((case, NARROW, None) for case in CHOSEN),
    *((replace(ODD, seed=seed), NARROW, 2) for seed in range(6)),  # whoever is slow
    *((replace(BASE, m=140, n=272, layouts=how), WIDE, 2) for how in ("CCC", "FFC")),
    (replace(BASE, m=100, n=272, beta=1.0), WIDE, 2),
    *((replace(BASE, **ODDLY), tile, 1) for tile in (NARROW, WIDE)),
    *((replace(EVERYTHING, **ODDLY, out_dtype=out), WIDE, 1) for out in ("bfloat16", "float32")),
    *((BASE, NARROW, cluster) for cluster in (1, 2)),
    (replace(BASE, m=9, n=7, k=17), NARROW, 1),
    (replace(BASE, m=300, layouts="CCF"), NARROW, 2),
]


@pytest.mark.few(10)
@pytest.mark.parametrize(("case", "tile", "cluster"), OVER_C, ids=str)
def test_wgmma_agrees_with_float64_and_loads_what_it_says(gpu, monkeypatch, case, tile, cluster):
    """The copy engine takes a tile of B once for the blocks of a cluster, to the byte, edges and
    all."""
    if cluster:
        monkeypatch.setattr(
            launch, "hopper_tile", lambda *given: hopper(tile[1], cluster, staged=given[4])
        )
    launch._plan.cache_clear()
    before = gpu.taken
    said = gpu.loads(case, WGMMA, tile)
    launch._plan.cache_clear()
    assert said.loaded == gpu.taken - before
    turned = case.layouts.endswith("F")  # as it is launched, the transposed product
    m, n = (case.n, case.m) if turned else (case.m, case.n)
    size = 4 if case.out_dtype == "float32" else 2
    heights = [128 * blocks for blocks in ((cluster,) if cluster else (1, 2))]
    loads = [(m, n, case.k, (rows, *tile[1:]), 2, case.beta != 0, size) for rows in heights]
    assert said in [traffic(*each) for each in loads]


def test_a_variant_for_each_epilogue(tmp_path):
    """Built as a GPU builds it: without the parts of the epilogue that are not asked for. C goes
    through shared memory only by rows from boundary to boundary, not read, and nothing wanted
    before the activation."""
    staged = [BASE, replace(BASE, bias=True, gelu=True), replace(BASE, layouts="CCF")]
    direct = [
        *(replace(BASE, margin=1), replace(BASE, n=150), replace(BASE, m=203, layouts="CCF")),
        *(replace(BASE, beta=1.0), replace(BASE, out_dtype="float32")),
        *(replace(BASE, layouts="CCS"), replace(BASE, gelu=True, before=True)),
    ]
    with host_gpu(tmp_path) as gpu:
        for case in (*staged, *direct):
            ran = {key: len(kernel.launched) for key, kernel in gpu.built.items()}
            gpu.loads(case, WGMMA, NARROW)
            (key,) = [k for k, kernel in gpu.built.items() if len(kernel.launched) > ran.get(k, 0)]
            assert dict(key[1:])["STAGED"] == (case in staged), case
    with host_gpu(tmp_path / "own", plain=False) as gpu:
        for case in (BASE, replace(BASE, bias=True), replace(BASE, beta=0.5, gelu=True)):
            gpu.loads(case, WGMMA, NARROW)
        used = [dict(key[1:]) for key in gpu.built]
    parts = [(m["HAS_BIAS"], m["HAS_BETA"], m["HAS_GELU"]) for m in used]
    assert parts == [(0, 0, 0), (1, 0, 0), (0, 1, 1)]


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
    [(SGEMM, 2**31, "up to 2147483136 rows"), (SMEM, 2**21, "2097120 rows")],
)
def test_what_a_launch_cannot_count_is_refused(kernel, rows, words):
    a, b = (MatrixLayout("float32", 4, many, 8, 8, 1, 16) for many in (rows, 8))
    ending = tuple(dict.fromkeys(("PAIRS", "HAS_BETA"), 0).items())
    with pytest.raises(KernelError, match=words):
        launch._plan(kernel, a, b, a, (32, 32, 32), ending, 0)


# -- planted faults ------------------------------------------------------------------------------

# kernel: fault: before => after; what is indented goes on
FAULTS = r"""
smem_tiled: tiles read before they are complete: __syncthreads();  // both => // both
smem_tiled: one row too many is loaded: row < rows - row0 => row <= rows - row0
smem_tiled: a barrier only some threads reach:
    __syncthreads();  // both => if (x) __syncthreads();  // both
smem_tiled: beta = 0 reads C: if (HAS_BETA) y += e => y += e
sgemm_warptiled: nobody waits for the copies: copies_wait<STAGES - 2>(); =>
sgemm_warptiled: a stage is refilled while others read it: __syncthreads();  // this => // this
sgemm_warptiled: a ragged band is walked as if it were whole:
    min(RASTER, down - band * RASTER) => RASTER
mma_multistage: the stage that is read is refilled:
    STAGES - 1; ++s) copy_next => STAGES; ++s) copy_next
mma_multistage: no edge is looked for along k: && left >= TILE_K =>
mma_multistage: lanes read rows before they are put: __syncwarp();  // all lanes have put => //
wgmma_ws_persistent: one row too many: r * ROW_STEP < down && => r * ROW_STEP <= down &&
wgmma_ws_persistent: what goes to C goes beside it: write(c.before, y); => write(c.data, y);
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
    SMEM: [*textbook(SHAPES)],
    SGEMM: [panel(SGEMM, of, "FFC") for of in ((60, 60, 120), (20, 70, 37), (64 * 9, 65, 3))],
    MMA: [panel(MMA, shape) for shape in ((60, 60, 300), (20, 70, 75))],
    WGMMA: [replace(BASE, m=400, n=304, k=420), EVERYTHING],
}


@pytest.mark.parametrize("fault", re.split(r"\n(?=\S)", FAULTS.strip()))
def test_a_planted_fault_is_caught(tmp_path, fault):
    kernel, _, texts = re.split(r":\s", fault, maxsplit=2)
    texts = tuple(x.strip().replace(r"\n", "\n") for x in texts.split("=>"))
    seeds = range(1 if kernel == SMEM else 4)
    orders = [replace(case, seed=case.seed + n) for n in seeds for case in SHOWING[kernel]]
    with host_gpu(tmp_path, [texts]) as gpu:
        assert gpu.catches(orders, kernel, TILES[kernel])


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
        slow.loads(panel(kernel, (64, 64, 16 if kernel == SGEMM else 64)), kernel, TILES[kernel])
        turns = [slow.turns(*key) > most for key, most in NO_CONFLICT[kernel].items() if most]
        assert any(turns) or slow.unpaired(READ, 16) > 0
