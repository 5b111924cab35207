"""sgemm_warptiled on the host: right for every layout, boundary and edge; planted faults are seen.

The kernel's own text runs, thread by thread (twins/cuda_host). What that cannot show is speed, and
what the GPU's compiler makes of the text: its registers are counted in test_cuda_offline.py.
"""

from functools import partial

import pytest
from twins.cuda_host import why_not
from twins.cuda_host.products import GemmCase
from twins.cuda_host.tiles import COPY, READ, WRITE, TileKernels, runs, shapes
from twins.cuda_host.tiles import lies as lies_for

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

SMALL = {"TILE_M": 64, "TILE_N": 64, "TILE_K": 16, "STAGES": 3}
LARGE = {"TILE_M": 128, "TILE_N": 128, "TILE_K": 16, "STAGES": 2}

# (layouts of a and b, boundary of their lines): each operand both ways, in pieces of 16 and 4 bytes
VARIANTS = [("CC", 16), ("FF", 16), ("FC", 4), ("CF", 4)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return TileKernels(tmp_path_factory.mktemp("small"), "sgemm_warptiled", **SMALL)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return TileKernels(tmp_path_factory.mktemp("large"), "sgemm_warptiled", **LARGE)


lies = partial(lies_for, dtype="float32")


@pytest.mark.long
@pytest.mark.few(18)
@pytest.mark.parametrize(("layouts", "boundary"), VARIANTS)
@pytest.mark.parametrize("shape", shapes(k=16), ids=str)
def test_agrees_with_float64_inside_and_touches_nothing_outside(small, shape, layouts, boundary):
    for seed in (1, 2):
        assert small.is_right(GemmCase(*shape, **lies(layouts, boundary), seed=seed), seed)


RUNS = runs("float32", k=16)


@pytest.mark.few(10)
@pytest.mark.parametrize("run", RUNS)
def test_endings_batches_bands_and_orders(small, run):
    assert small.is_right(*RUNS[run])


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("layouts", ["CC", "FF"])
@pytest.mark.parametrize("shape", [(129, 127, 40), (1, 128, 16), (128, 130, 33)], ids=str)
def test_the_large_tile(large, shape, layouts):
    assert large.is_right(GemmCase(*shape, **lies(layouts, 16)))


@pytest.mark.few(2)
@pytest.mark.parametrize("tile", ["small", "large"])
@pytest.mark.parametrize("layouts", ["CC", "FF"])
def test_no_two_words_of_one_bank_at_a_time(request, tile, layouts):
    """Of every instruction on shared memory that the walk along k has: counted as they ran."""
    kernels = request.getfixturevalue(tile)
    assert kernels.is_right(GemmCase(128, 128, 32, **lies(layouts, 16)))
    assert kernels.turns(READ, 16) == 1  # of a panel, by the lanes
    assert kernels.turns(COPY, 16) == 1  # of whole pieces of a line
    assert kernels.turns(COPY, 4) == 1  # of elements that are transposed on the way
    assert kernels.turns(WRITE, 16) == 1  # of sums on their way out
    assert kernels.unpaired(READ, 16) == 0


FAULTS = {
    "nobody waits for the copies": ("copies_wait<STAGES - 2>();", ""),
    "one group too many stays under way": ("copies_wait<STAGES - 2>", "copies_wait<STAGES - 1>"),
    "a stage is refilled while others read it": ("__syncthreads();  // this", "// this"),
    "the stage that is read is refilled": ("STAGES - 1; ++s) copy_next", "STAGES; ++s) copy_next"),
    "steps without copies are not counted": (
        "copies_commit();  // with",
        "if (copied < steps) copies_commit();  // with",
    ),
    "the next stage is not the next": (
        "from = from + 1 < STAGES ? from + 1 : 0",
        "from = from > 0 ? from - 1 : STAGES - 1",
    ),
    "the last step is lost": ("(k + TILE_K - 1) / TILE_K", "k / TILE_K"),
    "sums are put where others still read": (
        "__syncthreads();  // everyone has read the last",
        "// everyone has read the last",
    ),
    "a row too many is copied": ("lines ? max(", "lines + 1 ? max("),
    "an element too many is copied": ("length - element - j", "length - element - j + 1"),
    "a turned operand is read as if it were not": ("A_TURNED ? a_col : a_row", "a_row"),
    "k does not advance in a turned operand": ("TURNED ? TILE_K * line : TILE_K", "TILE_K"),
    "two lanes own the same row": ("lane >> 1 & 1 | lane >> 2 & 6", "lane >> 2 & 7"),
    "rows and columns of a patch change places": (
        "f.a[i].x[q / 4] * f.b[j].x[q % 4]",
        "f.a[i].x[q % 4] * f.b[j].x[q / 4]",
    ),
    "the same fragments again": ("(sums, fragments[p % 2])", "(sums, fragments[0])"),
    "a row too many is stored": ("r * ROW_STEP < down &&", "r * ROW_STEP <= down &&"),
    "rows that come next do not move up": ("x[q / 4][q % 4] = x[q / 4 + 1][q % 4]", ""),
    "a lane has other rows": ("first * STEP, corner.col", "first, corner.col"),
    "a ragged band is walked as if it were whole": ("min(RASTER, down - band * RASTER)", "RASTER"),
    "the bias is another's": ("bias[2 * p + q % 2]", "bias[2 * p]"),
    "a bias beyond C is read": ("global_read_if(column < right, ", "global_read_if(true, "),
    "the batch is forgotten": ("a + z * a_batch", "a"),
}
SHOWING = [
    GemmCase(60, 60, 120, **lies("FF", 16)),
    GemmCase(70, 20, 40, **lies("FF", 16), bias=True),
    GemmCase(20, 70, 37, **lies("FF", 16), batch=2),
    GemmCase(64 * 9, 65, 3, **lies("FF", 16)),
]


def tries(seeds=range(1, 5)):
    return [(case, seed) for seed in seeds for case in SHOWING]


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(tmp_path, fault):
    faulty = TileKernels(tmp_path, "sgemm_warptiled", [FAULTS[fault]], **SMALL)
    assert faulty.catches(tries())


@pytest.mark.long
def test_an_untouched_kernel_is_not_caught(small):
    assert not small.catches(tries())


CONFLICTS = {
    "lines that start in the same bank": ("PITCH = EXTENT + 4", "PITCH = EXTENT"),
    "16 of k at a time, and so few lines": ("? 32 : 8;", "? 32 : 16;"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", CONFLICTS)
def test_a_planted_conflict_is_seen(tmp_path, fault):
    slow = TileKernels(tmp_path, "sgemm_warptiled", [CONFLICTS[fault]], **SMALL)
    assert slow.is_right(GemmCase(64, 64, 16, **lies("CC", 16)))
    assert slow.turns(COPY, 4) > 1


@pytest.mark.long
def test_lanes_row_by_row_are_seen(tmp_path):
    by_rows = [
        ("lane >> 1 & 1 | lane >> 2 & 6", "lane / 4"),
        ("lane & 1 | lane >> 1 & 2", "lane % 4"),
    ]
    slow = TileKernels(tmp_path, "sgemm_warptiled", by_rows, **SMALL)
    assert slow.is_right(GemmCase(64, 64, 16, **lies("CC", 16)))
    assert slow.unpaired(READ, 16) > 0
