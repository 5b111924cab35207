"""sgemm_warptiled and mma_multistage on the host: right at every edge; planted faults are seen.

The kernels' own text runs, thread by thread (twins/cuda_host). What that cannot show is speed, and
what the GPU's compiler makes of the text: its registers are counted in test_cuda_offline.py.
"""

from functools import cache

import pytest
from oracles.planted import faults
from twins.cuda_host import why_not
from twins.cuda_host.products import GemmCase
from twins.cuda_host.tiles import COPY, LDMATRIX, READ, WRITE, TileKernels, lies, runs, shapes

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

TILES = {
    ("sgemm", "small"): ("sgemm_warptiled", 64, 64, 16, 3),
    ("sgemm", "large"): ("sgemm_warptiled", 128, 128, 32, 2),
    ("mma", "small"): ("mma_multistage", 64, 64, 32, 4),
    ("mma", "large"): ("mma_multistage", 128, 128, 32, 3),
    ("tf32", "small"): ("mma_multistage", 64, 64, 16, 4),
    ("tf32", "large"): ("mma_multistage", 128, 128, 16, 3),
}
"""Kernel, TILE_M, TILE_N, TILE_K and STAGES."""


def kernels(folder, kernel, size="small", planted=()):
    name, *values = TILES[kernel, size]
    macros = dict(zip(("TILE_M", "TILE_N", "TILE_K", "STAGES"), values, strict=True))
    return TileKernels(folder, name, planted, **macros)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return cache(lambda *which: kernels(tmp_path_factory.mktemp("-".join(which)), *which))


def case(kernel, shape, layouts="CC", boundary=16, dtype="", **more):
    dtype = dtype or ("bfloat16" if kernel == "mma" else "float32")
    return GemmCase(*shape, **lies(layouts, boundary, dtype), tf32=kernel == "tf32", **more)


# (kernel, layouts of a and b, boundary of their lines, type, type of C)
VARIANTS = [
    ("sgemm", "CC", 16, "", ""),
    ("sgemm", "FF", 16, "", ""),
    ("sgemm", "FC", 4, "", ""),
    ("sgemm", "CF", 4, "", ""),
    ("tf32", "CC", 16, "", ""),
    ("tf32", "FF", 4, "", ""),
    ("mma", "CC", 16, "", ""),
    ("mma", "FF", 16, "", "float32"),
    ("mma", "FC", 4, "", ""),
    ("mma", "CF", 2, "", ""),
    ("mma", "FC", 2, "", ""),
    ("mma", "CF", 16, "float16", ""),
]


@pytest.mark.few(6)
@pytest.mark.parametrize("i", range(len(shapes(k=32))))
@pytest.mark.parametrize(("kernel", "layouts", "boundary", "dtype", "out"), VARIANTS)
def test_agrees_with_float64_inside_and_touches_nothing_outside(
    built, i, kernel, layouts, boundary, dtype, out
):
    """Of tf32, with the product of rounded operands."""
    shape = shapes(k=16 if kernel == "sgemm" else 32)[i]
    for seed in (1, 2):
        one = case(kernel, shape, layouts, boundary, dtype, out_dtype=out, seed=seed)
        assert built(kernel, "small").is_right(one, seed)


def test_tf32_is_not_float32(built):
    assert not built("tf32", "small").is_right(case("sgemm", (64, 64, 32)))


RUNS = {"sgemm": runs("float32", k=16), "mma": runs("bfloat16", k=32)}
MMA, TF32 = (pytest.param(kernel) for kernel in ("mma", "tf32"))


@pytest.mark.few(20)
@pytest.mark.parametrize("run", RUNS["mma"])
@pytest.mark.parametrize("kernel", ["sgemm", MMA])
def test_endings_bands_and_orders(built, kernel, run):
    assert built(kernel, "small").is_right(*RUNS[kernel][run])


@pytest.mark.few(3)
@pytest.mark.parametrize("layouts", ["CC", "FF"])
@pytest.mark.parametrize("shape", [(129, 127, 40), (1, 128, 16), (128, 130, 33)], ids=str)
def test_the_large_tile(built, shape, layouts):
    assert built("sgemm", "large").is_right(case("sgemm", shape, layouts))


NO_CONFLICT = {
    "sgemm": {(READ, 16): 1, (COPY, 16): 1, (COPY, 4): 1, (WRITE, 16): 1},
    "mma": {(READ, 8): 1, (COPY, 16): 1, (READ, 4): 0, (WRITE, 8): 1, (LDMATRIX, 16): 1},
    "tf32": {(READ, 8): 1, (COPY, 16): 1, (READ, 4): 1, (WRITE, 8): 1, (LDMATRIX, 16): 1},
}
"""How often shared memory is asked, by kind and bytes a lane. mma_multistage reads 4 bytes where
float32 is turned, which ldmatrix cannot do."""


@pytest.mark.few(4)
@pytest.mark.parametrize("layouts", ["CC", "FF"])
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("kernel", ["sgemm", MMA, TF32])
def test_no_two_words_of_one_bank_are_wanted_at_a_time(built, kernel, size, layouts):
    """Of every instruction on shared memory, counted as they ran."""
    kernels = built(kernel, size)
    for shape in [(128, 128, 32)] if kernel == "sgemm" else [(129, 127, 70), (128, 128, 96)]:
        assert kernels.is_right(case(kernel, shape, layouts))
    assert {key: kernels.turns(*key) for key in NO_CONFLICT[kernel]} == NO_CONFLICT[kernel]
    assert kernel != "sgemm" or kernels.unpaired(READ, 16) == 0


# -- planted faults ------------------------------------------------------------------------------

OF_BOTH = faults(r"""
the stage that is read is refilled: STAGES - 1; ++s) copy_next => STAGES; ++s) copy_next
steps without copies are not counted:
    copies_commit();  // with => if (copied < steps) copies_commit();  // with
the next stage is not the next:
    from = from + 1 < STAGES ? from + 1 : 0 => from = from > 0 ? from - 1 : STAGES - 1
the last step is lost: (k + TILE_K - 1) / TILE_K => k / TILE_K
""")
FAULTS = {
    "sgemm": OF_BOTH
    | faults(r"""
nobody waits for the copies: copies_wait<STAGES - 2>(); =>
one group too many stays under way: copies_wait<STAGES - 2> => copies_wait<STAGES - 1>
a stage is refilled while others read it: __syncthreads();  // this => // this
sums are put where others still read:
    __syncthreads();  // everyone has read the last => // everyone has read the last
a row too many is copied: lines ? max( => lines + 1 ? max(
an element too many is copied: length - element - j => length - element - j + 1
a turned operand is read as if it were not: A_TURNED ? a_col : a_row => a_row
k does not advance in a turned operand: TURNED ? TILE_K * line : TILE_K => TILE_K
two lanes own the same row: lane >> 1 & 1 | lane >> 2 & 6 => lane >> 2 & 7
rows and columns of a patch change places:
    f.a[i].x[q / 4] * f.b[j].x[q % 4] => f.a[i].x[q % 4] * f.b[j].x[q / 4]
the same fragments again: (sums, fragments[p % 2]) => (sums, fragments[0])
a row too many is stored: r * ROW_STEP < down && => r * ROW_STEP <= down &&
rows that come next do not move up: x[q / 4][q % 4] = x[q / 4 + 1][q % 4] =>
a lane has other rows: first * STEP, corner.col => first, corner.col
a ragged band is walked as if it were whole: min(RASTER, down - band * RASTER) => RASTER
the bias is another's: bias[2 * p + q % 2] => bias[2 * p]
a bias beyond C is read: global_read_if(column < right,  => global_read_if(true,
"""),
    "mma": OF_BOTH
    | faults(r"""
nobody waits for the first stage:
    copies_wait<STAGES - 2>();
    __syncthreads();  // the first => __syncthreads();  //
nobody waits for the next stage: copies_wait<STAGES - 2>();
                __ => __
one group too many stays under way:
    copies_wait<STAGES - 2>();
                __ => copies_wait<STAGES - 1>();
   __
a stage is refilled while others read it: __syncthreads();  // the next => // the next
the same fragments again: (sums, fragments[i % 2]) => (sums, fragments[0])
fragments of the wrong step along k: (i + 1) % STEPS * STEP_K => i % STEPS * STEP_K
no edge is looked for along k: && left >= TILE_K =>
no edge is looked for along m and n: extent >= EXTENT &&  =>
a turned operand is read as if it were not: B_TURNED ? b_row : b_col => b_col
a turned operand is not transposed: ldmatrix_transposed(r, => ldmatrix(r,
chunks are not where they were put:
    panel + Layout::at(start + e, p + d + lane % 8)
    => panel + Layout::at(start + e, p + d) + lane % 8 * Layout::PITCH
quarters of a fragment in the wrong order: load<LayoutB, 1> => load<LayoutB, 0>
B's halves change places: [j % 2 * 2], f.b => [j % 2 * 2 + 1], f.b
rows 8 apart are put in one: to + 8 * ROW_PITCH => to + ROW_PITCH
lanes read rows before they are put: __syncwarp();  // all lanes have put => //
rows are overwritten before they are read:
    __syncwarp();  // all lanes have read => // all have read
"""),
}
SHOWING = {
    "sgemm": [
        case("sgemm", (60, 60, 120), "FF"),
        case("sgemm", (70, 20, 40), "FF", bias=True),
        case("sgemm", (20, 70, 37), "FF"),
        case("sgemm", (64 * 9, 65, 3), "FF"),
    ],
    "mma": [
        case("mma", (60, 60, 300)),
        case("mma", (70, 20, 70), bias=True),
        case("mma", (20, 70, 75)),
    ],
}


def is_caught(kernels, kernel):
    return kernels.catches([(one, seed) for seed in range(1, 5) for one in SHOWING[kernel]])


@pytest.mark.few(3)
@pytest.mark.parametrize(("kernel", "fault"), [(k, fault) for k in FAULTS for fault in FAULTS[k]])
def test_a_planted_fault_is_caught(tmp_path, kernel, fault):
    assert is_caught(kernels(tmp_path, kernel, planted=[FAULTS[kernel][fault]]), kernel)


@pytest.mark.parametrize("kernel", FAULTS)
def test_an_untouched_kernel_is_not_caught(built, kernel):
    assert not is_caught(built(kernel, "small"), kernel)


def test_elements_put_too_late_are_caught(tmp_path):
    """The copy through registers, for lines that start anywhere."""
    before = "int n = 0;\n#pragma unroll\n            for"
    faulty = kernels(tmp_path, "mma", planted=[(before, before.replace("0", "1"))])
    assert faulty.catches([(case("mma", (60, 60, 40), "CF", 2), 1)])


CONFLICTS = {
    "lines that start in the same bank": ("sgemm", ("PITCH = EXTENT + 4", "PITCH = EXTENT")),
    "16 of k at a time, and so few lines": ("sgemm", ("? 32 : 8;", "? 32 : 16;")),
    "chunks that stay where they are": (
        "mma",
        (": CHUNKS == 4 ? line / 2 % 4 : line % 8", ": 0"),
    ),
    "lines that start in one bank": ("tf32", ("LENGTH + (ONE_BY_ONE ? 8 : 0)", "LENGTH")),
}


@pytest.mark.parametrize("fault", CONFLICTS)
def test_a_planted_conflict_is_seen(tmp_path, fault):
    kernel, planted = CONFLICTS[fault]
    slow = kernels(tmp_path, kernel, planted=[planted])
    assert slow.is_right(case(kernel, (64, 64, 16 if kernel == "sgemm" else 64)))
    assert slow.turns(*{"sgemm": (COPY, 4), "mma": (LDMATRIX, 16), "tf32": (READ, 4)}[kernel]) > 1


def test_lanes_row_by_row_are_seen(tmp_path):
    by_rows = [
        ("lane >> 1 & 1 | lane >> 2 & 6", "lane / 4"),
        ("lane & 1 | lane >> 1 & 2", "lane % 4"),
    ]
    slow = kernels(tmp_path, "sgemm", planted=by_rows)
    assert slow.is_right(case("sgemm", (64, 64, 16)))
    assert slow.unpaired(READ, 16) > 0
