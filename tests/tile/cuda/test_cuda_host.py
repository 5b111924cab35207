"""The CUDA kernels on the host, thread by thread: right at every edge, nothing touched outside,
what they say they load, no bank asked twice; and planted faults are seen.

tiledask/tile/README.md says what this shows and what only a GPU can. What the GPU's compiler makes
of the text is counted in test_cuda_offline.py.

Holds `tiledask.tile.cuda`.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from gpu.gemm_cases import GemmCase
from oracles.planted import faults
from twins import cuda_host
from twins.cuda_host import COPY, LDMATRIX, READ, WRITE, host_gpu, why_not

from tiledask.tile.choice.config import configs, hopper
from tiledask.tile.cuda import launch
from tiledask.tile.levels import traffic

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

SMEM, SGEMM, MMA, WGMMA = (kernel for kernel in configs if kernel != "tiled")
WIDE, NARROW = (each.block for each in configs[WGMMA])
LARGE, SMALL = (each.block for each in configs[SGEMM])
LARGE_16, SMALL_16 = (each.block for each in configs[MMA])
ALL = {"beta": -1.0, "bias": True, "gelu": True, "before": True}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with host_gpu(tmp_path_factory.mktemp("gpu")) as found:
        yield found


@pytest.fixture
def clusters(monkeypatch):
    """Takes the choice of how wgmma goes over C."""

    def tell(cluster):
        def chosen(m, n, k, multiprocessors, staged, tile):
            return hopper(tile[1], cluster, staged)

        launch._plan.cache_clear()
        monkeypatch.setattr(launch, "hopper_tile", chosen)

    yield tell
    launch._plan.cache_clear()


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


def run(gpu, case, kernel, large=False):
    tiles = {SGEMM: (SMALL, LARGE), MMA: (SMALL_16, LARGE_16)}
    return gpu.loads(case, kernel, tiles[kernel][large])


def around(k):
    """(m, n, k) around tiles of 64 x 64 and steps of ``k`` along k: none whole, one, more, less."""
    return [
        *((1, 1, 1), (64, 64, k), (63, 65, k + 1), (65, 63, k - 1), (64, 64, k // 8 + 3)),
        *((5, 70, 3 * k), (70, 5, 4 * k), (62, 61, 3 * k + 4), (3, 3, 3 * k - 1)),
    ]


# (kernel, layouts, margin, more); with a margin of 1 operands are copied to their boundaries
VARIANTS = [
    *((kernel, how, 8, {}) for kernel in (SGEMM, MMA) for how in ("CCC", "FFC")),
    *((kernel, how, 1, {}) for kernel in (SGEMM, MMA) for how in ("FCC", "CFC")),
    (MMA, "FFC", 8, {"out_dtype": "float32"}),
    (MMA, "CFC", 8, {"dtype": "float16"}),
]


@pytest.mark.few(6)
@pytest.mark.parametrize("i", range(9))
@pytest.mark.parametrize(("kernel", "layouts", "margin", "more"), VARIANTS)
def test_panels_agree_with_float64(gpu, i, kernel, layouts, margin, more):
    shape = around(16 if kernel == SGEMM else 32)[i]
    for seed in (0, 1):
        run(gpu, panel(kernel, shape, layouts, margin, seed=seed, **more), kernel)


ENDED = {
    "C's elements all lie apart": {"shape": (66, 65), "layouts": "CCS", "beta": 1.0, "bias": True},
    "a whole band of tiles and a ragged one": {"shape": (64 * 8 + 3, 130)},
    **{f"{how} and {end}": {"layouts": how, **end} for how in ("CCC", "FFF") for end in ENDINGS},
    **{f"threads in order {seed}": {"seed": seed} for seed in range(2, 8)},
}


@pytest.mark.few(16)
@pytest.mark.parametrize("how", ENDED)
@pytest.mark.parametrize("kernel", [SGEMM, MMA])
def test_endings_bands_and_orders(gpu, kernel, how):
    given = dict(ENDED[how])
    run(gpu, panel(kernel, (*given.pop("shape", (66, 70)), 40), **given), kernel)


@pytest.mark.few(3)
@pytest.mark.parametrize("layouts", ["CCC", "FFC"])
@pytest.mark.parametrize("shape", [(129, 127, 40), (1, 128, 16), (128, 130, 33)], ids=str)
def test_the_large_tile(gpu, shape, layouts):
    run(gpu, panel(SGEMM, shape, layouts), SGEMM, large=True)


NO_CONFLICT = {
    SGEMM: {(READ, 16): 1, (COPY, 16): 1, (COPY, 4): 1, (WRITE, 16): 1},
    MMA: {(READ, 8): 1, (COPY, 16): 1, (READ, 4): 0, (WRITE, 8): 1, (LDMATRIX, 16): 1},
}
"""How often shared memory is asked, by kind and bytes a lane."""


@pytest.mark.few(3)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kernel", NO_CONFLICT)
def test_no_two_words_of_one_bank_are_wanted_at_a_time(tmp_path, kernel, large):
    """Of every instruction on shared memory, counted as they ran."""
    shapes = [(128, 128, 32)] if kernel == SGEMM else [(129, 127, 70), (128, 128, 96)]
    with host_gpu(tmp_path) as fresh:
        for shape, layouts in product(shapes, ("CCC", "FFC")):
            run(fresh, panel(kernel, shape, layouts), kernel, large)
        assert {key: fresh.turns(*key) for key in NO_CONFLICT[kernel]} == NO_CONFLICT[kernel]
        assert kernel != SGEMM or fresh.unpaired(READ, 16) == 0


# -- Hopper's tensor cores -------------------------------------------------------------------------

BASE = GemmCase(200, 152, 150, dtype="bfloat16")
"""Rows and columns of C end on boundaries of 16 bytes, so that it leaves through shared memory."""
EVERYTHING = replace(BASE, out_dtype="float32", alpha=0.7, **ALL)
ODD = replace(BASE, m=300, n=296, k=420)  # a cluster has no rows for its second block
BANDS = replace(BASE, m=2500, n=200, k=10)  # more rows of clusters than a band
CASES = [
    *(replace(BASE, layouts="".join(x)) for x in product("CF", repeat=3)),
    replace(BASE, n=150),
    replace(BASE, m=203, layouts="CCF"),
    replace(BASE, m=1, n=1, k=1),
    replace(BASE, m=1, n=300, k=70),
    replace(BASE, m=300, n=1, k=70),
    replace(BASE, m=128, n=128, k=64),
    replace(BASE, m=256, n=128, k=128),
    replace(BASE, m=129, n=129, k=65),
    replace(BASE, m=127, n=127, k=63),
    replace(BASE, m=700, n=300, k=500),
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


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_wgmma_agrees_with_float64(gpu, case):
    gpu.loads(case, WGMMA, NARROW)


ODDLY = {"m": 500, "n": 300, "k": 420}
OVER_C = [
    *((replace(ODD, seed=seed), NARROW, 2) for seed in range(6)),  # whoever is slow
    *((replace(BASE, m=140, n=272, layouts=how), WIDE, 2) for how in ("CCC", "FFC")),
    (replace(BASE, m=100, n=272, beta=1.0), WIDE, 2),
    *((replace(BASE, **ODDLY), tile, 1) for tile in (NARROW, WIDE)),
    *((replace(EVERYTHING, **ODDLY, out_dtype=out), WIDE, 1) for out in ("bfloat16", "float32")),
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("case", "tile", "cluster"), OVER_C, ids=str)
def test_wgmma_with_either_tile_blocks_alone_and_in_pairs(gpu, clusters, case, tile, cluster):
    clusters(cluster)
    gpu.loads(case, WGMMA, tile)


COUNTED = [(BASE, 2), (BASE, 1), (ODD, 2), (replace(BASE, m=9, n=7, k=17), 1)]
COUNTED += [(replace(BASE, m=300, layouts="CCF"), 2)]


@pytest.mark.parametrize(("case", "cluster"), COUNTED, ids=str)
def test_what_it_says_it_loads_is_what_the_copy_engine_takes(gpu, clusters, case, cluster):
    """A tile of B once for the blocks of a cluster, to the byte, edges and all."""
    clusters(cluster)
    before = gpu.taken
    said = gpu.loads(case, WGMMA, NARROW)
    assert said.loaded == gpu.taken - before
    turned = case.layouts.endswith("F")  # as it is launched, the transposed product
    m, n = (case.n, case.m) if turned else (case.m, case.n)
    assert said == traffic(m, n, case.k, (128 * cluster, NARROW[1], 64), 2)


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


def test_a_map_is_as_large_as_what_a_kernel_copies_of_it():
    text = (Path(cuda_host.__file__).parent / "hopper.cuh").read_text()
    assert f"static_assert(sizeof(TensorMap) == {cuda_host.MAP.itemsize}," in text


# -- planted faults ------------------------------------------------------------------------------

OF_THE_TEXTBOOK = faults(r"""
tiles read before they are complete: __syncthreads();  // both => // both
tiles overwritten while they are read: __syncthreads();  // everyone => // everyone
one row too many is loaded: row < rows - row0 => row <= rows - row0
A is read transposed: at(a_tile, y, p) => at(a_tile, p, y)
the last steps along k are lost: step < k; => step + TILE <= k;
column-major tiles land transposed:
    col = column_major ? threadIdx.y : threadIdx.x => col = threadIdx.x
a barrier only some threads reach: __syncthreads();  // both => if (x) __syncthreads();  // both
beta = 0 reads C: if (HAS_BETA) y += e => y += e
bias by row: BIAS_BY_ROW ? i : j => BIAS_BY_ROW ? j : i
GELU has another slope: 2.302208198f => 2.3025851f
""")
OF_BOTH = faults(r"""
the stage that is read is refilled: STAGES - 1; ++s) copy_next => STAGES; ++s) copy_next
steps without copies are not counted:
    copies_commit();  // with => if (copied < steps) copies_commit();  // with
the next stage is not the next:
    from = from + 1 < STAGES ? from + 1 : 0 => from = from > 0 ? from - 1 : STAGES - 1
the last step is lost: (k + TILE_K - 1) / TILE_K => k / TILE_K
""")
OF_SGEMM = faults(r"""
nobody waits for the copies: copies_wait<STAGES - 2>(); =>
a stage is refilled while others read it: __syncthreads();  // this => // this
sums are put where others still read:
    __syncthreads();  // everyone has read the last => // everyone has read the last
a row too many is copied: lines ? max( => lines + 1 ? max(
k does not advance in a turned operand: TURNED ? TILE_K * line : TILE_K => TILE_K
the same fragments again: (sums, fragments[p % 2]) => (sums, fragments[0])
rows that come next do not move up: x[q / 4][q % 4] = x[q / 4 + 1][q % 4] =>
a ragged band is walked as if it were whole: min(RASTER, down - band * RASTER) => RASTER
""")
OF_MMA = faults(r"""
nobody waits for the first stage:
    copies_wait<STAGES - 2>();
    __syncthreads();  // the first => __syncthreads();  //
a stage is refilled while others read it: __syncthreads();  // the next => // the next
no edge is looked for along k: && left >= TILE_K =>
a turned operand is not transposed: ldmatrix_transposed(r, => ldmatrix(r,
chunks are not where they were put:
    panel + Layout::at(start + e, p + d + lane % 8)
    => panel + Layout::at(start + e, p + d) + lane % 8 * Layout::LENGTH
B's halves change places: [j % 2 * 2], f.b => [j % 2 * 2 + 1], f.b
lanes read rows before they are put: __syncwarp();  // all lanes have put => //
""")
OF_THE_EPILOGUE = faults(r"""
one row too many: r * ROW_STEP < down && => r * ROW_STEP <= down &&
one column too many: COL_STEP + q < right; => COL_STEP + q <= right;
the bias of a column too many: column < right => column <= right
the bias of another pair: bias[2 * p + q % 2] => bias[2 * r + q % 2]
beta is forgotten: y[q] += e.beta * => y[q] +=
alpha is forgotten: y[q] *= e.alpha; =>
what goes to C goes beside it: write(c.before, y); => write(c.data, y);
""")
"""In what all kernels but the first do with their sums (epilogue.cuh)."""
OF_WGMMA = faults(r"""
a stage is read before its bytes are there: barrier_wait(s.full(ring.stage), ring.parity); => ;
a stage is filled while it is read: barrier_wait(s.empty(ring.stage), ring.parity ^ 1); => ;
the phase never changes: parity ^= 1; => ;
the ring starts over at every tile:
    float sums[TILE_N / 2];\n => ring = Ring{0, 0};\n        float sums[TILE_N / 2];\n
a stage is released before it was read:
    if (k0 > 0) release(s, before, thread); => release(s, ring.stage, thread);
nobody waits for the products: wgmma_wait<1>(); =>
no fence before the products: wgmma_begin();\n =>
too many bytes are announced:
    barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES)
    => barrier_arrive_expecting(s.full(ring.stage), STAGE_BYTES + 16)
the next tile overwrites the panels: if (thread == 0) stores_have_read(); =>
only one consumer is waited for: CONSUMERS * CLUSTER); => CLUSTER);
the neighbour's producer is not told: if (thread < CLUSTER) barrier => if (thread < 1) barrier
blocks leave while others write to them: cluster_sync();  // nobody leaves => // nobody leaves
barriers are used before they are made: cluster_sync();\n\n => \n
the tile of C is not fenced: tile_writes_done();\n =>
the last tile of C never leaves: if (thread == 0) stores_are_done(); =>
C is not swizzled: (byte % ROW_BYTES / 16 ^ r % 8) * 16 => byte % ROW_BYTES / 16 * 16
the descriptor of A has the wrong stride:
    PANEL_BYTES, 8 * ROW_BYTES); => PANEL_BYTES, 4 * ROW_BYTES);
turned halves of A are mixed up: row + half * ROWS, k0, => row + (1 - half) * ROWS, k0,
the first step adds to what the registers held: add || i > 0 => true
a step of k is lost:
    k0 < k; k0 += TILE_K) {\n            barrier_wait(s.empty
    => k0 + TILE_K < k; k0 += TILE_K) {\n            barrier_wait(s.empty
tiles of the last band are mixed up: within % rows => within % RASTER
registers are taken that nobody gave: registers_down_to<40>(); =>
sums that come next do not move up: part.store(y);\n        move_up(sums); => part.store(y);
more rows of C are fetched than there are:
    fetch_into_l2_if(i < m && => fetch_into_l2_if(i <= m &&
C is read after it was written:
    part.finish(e, y);\n        part.store(y); => part.store(y); part.finish(e, y); part.store(y);
""")

MANY = replace(BASE, m=400, n=304, k=420)
DIRECT = replace(MANY, out_dtype="float32", beta=1.0)
SHOWN_BY = {
    "turned halves of A are mixed up": replace(MANY, layouts="FFC"),
    "tiles of the last band are mixed up": BANDS,
    "sums that come next do not move up": replace(DIRECT, layouts="CCS"),
    "more rows of C are fetched than there are": DIRECT,
    "C is read after it was written": DIRECT,
}
"""The others by `MANY`."""
WAYS = {"by pairs": EVERYTHING, "one by one": replace(EVERYTHING, layouts="CCS")}
SHOWING = {
    SMEM: [*textbook(SHAPES)],
    SGEMM: [
        *(panel(SGEMM, shape, "FFC") for shape in ((60, 60, 120), (20, 70, 37), (64 * 9, 65, 3))),
        panel(SGEMM, (70, 20, 40), "FFC", bias=True),
    ],
    MMA: [
        *(panel(MMA, shape) for shape in ((60, 60, 300), (20, 70, 75))),
        panel(MMA, (70, 20, 70), bias=True),
    ],
}
TILES = {SMEM: (8, 8, 8), SGEMM: SMALL, MMA: SMALL_16, WGMMA: NARROW}
PLANTED = [
    *((SMEM, fault, SHOWING[SMEM]) for fault in OF_THE_TEXTBOOK.items()),
    *((kernel, fault, SHOWING[kernel]) for kernel in (SGEMM, MMA) for fault in OF_BOTH.items()),
    *((SGEMM, fault, SHOWING[SGEMM]) for fault in OF_SGEMM.items()),
    *((MMA, fault, SHOWING[MMA]) for fault in OF_MMA.items()),
    *((WGMMA, fault, [case]) for fault in OF_THE_EPILOGUE.items() for case in WAYS.values()),
    *((WGMMA, fault, [SHOWN_BY.get(fault[0], MANY)]) for fault in OF_WGMMA.items()),
]


def caught(folder, kernel, texts, cases):
    orders = [
        replace(case, seed=case.seed + n) for n in range(4 - 3 * (kernel == SMEM)) for case in cases
    ]
    with host_gpu(folder, texts) as gpu:
        return gpu.catches(orders, kernel, TILES[kernel])


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("kernel", "fault", "cases"), [pytest.param(*p, id=f"{p[0]}: {p[1][0]}") for p in PLANTED]
)
def test_a_planted_fault_is_caught(tmp_path, kernel, fault, cases):
    assert caught(tmp_path, kernel, [fault[1]], cases)


@pytest.mark.few(2)
@pytest.mark.parametrize("kernel", TILES)
def test_an_untouched_kernel_is_not_caught(tmp_path, kernel):
    cases = SHOWING.get(kernel) or [MANY, *SHOWN_BY.values(), *WAYS.values()]
    assert not caught(tmp_path, kernel, [], cases)


CONFLICTS = {
    "lines that start in the same bank": (SGEMM, (COPY, 4), "PITCH = EXTENT + 4", "PITCH = EXTENT"),
    "16 of k at a time, and so few lines": (SGEMM, (COPY, 4), "? 32 : 8;", "? 32 : 16;"),
    "chunks that stay where they are": (
        *(MMA, (LDMATRIX, 16)),
        *("CHUNKS == 4 ? line / 2 % 4 : line % 8", "0"),
    ),
}


@pytest.mark.parametrize("fault", CONFLICTS)
def test_a_planted_conflict_is_seen(tmp_path, fault):
    kernel, kind, *texts = CONFLICTS[fault]
    with host_gpu(tmp_path, [texts]) as slow:
        run(slow, panel(kernel, (64, 64, 16 if kernel == SGEMM else 64)), kernel)
        assert slow.turns(*kind) > 1


def test_lanes_row_by_row_are_seen(tmp_path):
    rows = ("lane >> 1 & 1 | lane >> 2 & 6", "lane / 4")
    with host_gpu(tmp_path, [rows, ("lane & 1 | lane >> 1 & 2", "lane % 4")]) as slow:
        run(slow, panel(SGEMM, (64, 64, 16)), SGEMM)
        assert slow.unpaired(READ, 16) > 0
