"""mma_multistage on the host: right for each type, layout, boundary, edge; planted faults are seen.

The kernel's own text runs, thread by thread (twins/cuda_host). What that cannot show is speed, and
what the GPU's compiler makes of the text: its registers are counted in test_cuda_offline.py.
"""

import pytest
from twins.cuda_host import why_not
from twins.cuda_host.products import GemmCase
from twins.cuda_host.tiles import COPY, LDMATRIX, READ, WRITE, TileKernels, lies, runs, shapes

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

SMALL = {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32, "STAGES": 4}
LARGE = {"TILE_M": 128, "TILE_N": 128, "TILE_K": 32, "STAGES": 3}
SMALL_TF32, LARGE_TF32 = {**SMALL, "TILE_K": 16}, {**LARGE, "TILE_K": 16}


def kernels(name, macros):
    @pytest.fixture(scope="module", name=name)
    def built(tmp_path_factory):
        return TileKernels(tmp_path_factory.mktemp(name), "mma_multistage", **macros)

    return built


small, large = kernels("small", SMALL), kernels("large", LARGE)
small_tf32, large_tf32 = kernels("small_tf32", SMALL_TF32), kernels("large_tf32", LARGE_TF32)


# (type, layouts of a and b, boundary of their lines, type of C)
HALVES = [
    ("bfloat16", "CC", 16, ""),
    ("bfloat16", "FF", 16, "float32"),
    ("bfloat16", "FC", 4, ""),
    ("bfloat16", "CF", 2, ""),
    ("bfloat16", "FC", 2, ""),
    ("float16", "CF", 16, ""),
]


@pytest.mark.long
@pytest.mark.few(15)
@pytest.mark.parametrize(("dtype", "layouts", "boundary", "out"), HALVES)
@pytest.mark.parametrize("shape", shapes(k=32), ids=str)
def test_halves_agree_with_float64_and_touch_nothing_outside(
    small, shape, dtype, layouts, boundary, out
):
    for seed in (1, 2):
        case = GemmCase(*shape, **lies(layouts, boundary, dtype), out_dtype=out, seed=seed)
        assert small.is_right(case, seed)


@pytest.mark.long
@pytest.mark.few(9)
@pytest.mark.parametrize(("layouts", "boundary"), [("CC", 16), ("FF", 4)])
@pytest.mark.parametrize("shape", shapes(k=32), ids=str)
def test_tf32_agrees_with_the_product_of_rounded_operands(small_tf32, shape, layouts, boundary):
    for seed in (1, 2):
        case = GemmCase(*shape, **lies(layouts, boundary, "float32"), tf32=True, seed=seed)
        assert small_tf32.is_right(case, seed)


def test_tf32_is_not_float32(small_tf32):
    assert not small_tf32.is_right(GemmCase(64, 64, 32, **lies("CC", 16, "float32")))


RUNS = runs("bfloat16", k=32)


@pytest.mark.long
@pytest.mark.few(10)
@pytest.mark.parametrize("run", RUNS)
def test_endings_batches_bands_and_orders(small, run):
    assert small.is_right(*RUNS[run])


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("layouts", ["CC", "FF"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_large_tile_in_which_no_two_words_of_one_bank_are_wanted_at_a_time(
    large, large_tf32, layouts, dtype
):
    """Of every instruction on shared memory: counted as they ran."""
    tf32 = dtype == "float32"
    kernels = large_tf32 if tf32 else large
    for shape in ((129, 127, 70), (128, 128, 96)):
        assert kernels.is_right(GemmCase(*shape, **lies(layouts, 16, dtype), tf32=tf32))
    assert kernels.turns(LDMATRIX, 16) == 1
    assert kernels.turns(READ, 4) == int(tf32)  # of turned float32, which ldmatrix cannot turn
    assert kernels.turns(COPY, 16) == 1
    assert kernels.turns(WRITE, 8) == 1  # of sums on their way out
    assert kernels.turns(READ, 8) == 1


FAULTS = {
    "nobody waits for the first stage": (
        "copies_wait<STAGES - 2>();\n    __syncthreads();  // the first",
        "__syncthreads();  //",
    ),
    "nobody waits for the next stage": (
        "copies_wait<STAGES - 2>();\n                __",
        "__",
    ),
    "one group too many stays under way": (
        "copies_wait<STAGES - 2>();\n                __",
        "copies_wait<STAGES - 1>();\n   __",
    ),
    "a stage is refilled while others read it": ("__syncthreads();  // the next", "// the next"),
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
    "the same fragments again": ("(sums, fragments[i % 2])", "(sums, fragments[0])"),
    "fragments of the wrong step along k": ("(i + 1) % STEPS * STEP_K", "i % STEPS * STEP_K"),
    "no edge is looked for along k": ("&& left >= TILE_K", ""),
    "no edge is looked for along m and n": ("extent >= EXTENT && ", ""),
    "a turned operand is read as if it were not": ("B_TURNED ? b_row : b_col", "b_col"),
    "a turned operand is not transposed": ("ldmatrix_transposed(r,", "ldmatrix(r,"),
    "chunks are not where they were put": (
        "panel + Layout::at(start + e, p + d + lane % 8)",
        "panel + Layout::at(start + e, p + d) + lane % 8 * Layout::PITCH",
    ),
    "quarters of a fragment in the wrong order": ("load<LayoutB, 1>", "load<LayoutB, 0>"),
    "B's halves change places": ("[j % 2 * 2], f.b", "[j % 2 * 2 + 1], f.b"),
    "rows 8 apart are put in one": ("to + 8 * ROW_PITCH", "to + ROW_PITCH"),
    "lanes read rows before they are put": ("__syncwarp();  // all lanes have put", "//"),
    "rows are overwritten before they are read": (
        "__syncwarp();  // all lanes have read",
        "// all have read",
    ),
    "the batch is forgotten": ("b + z * b_batch", "b"),
}
SHOWING = [
    GemmCase(60, 60, 300, **lies("CC", 16)),
    GemmCase(70, 20, 70, **lies("CC", 16), bias=True),
    GemmCase(20, 70, 75, **lies("CC", 16), batch=2),
]


def tries(seeds=range(1, 5)):
    return [(case, seed) for seed in seeds for case in SHOWING]


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(tmp_path, fault):
    faulty = TileKernels(tmp_path, "mma_multistage", [FAULTS[fault]], **SMALL)
    assert faulty.catches(tries())


@pytest.mark.long
def test_an_untouched_kernel_is_not_caught(small):
    assert not small.catches(tries())


@pytest.mark.long
def test_elements_put_too_late_are_caught(tmp_path):
    """The copy through registers, for lines that start anywhere."""
    late = (
        "int n = 0;\n#pragma unroll\n            for",
        "int n = 1;\n#pragma unroll\n            for",
    )
    faulty = TileKernels(tmp_path, "mma_multistage", [late], **SMALL)
    assert faulty.catches([(GemmCase(60, 60, 40, **lies("CF", 2)), 1)])


CONFLICTS = {
    "chunks that stay where they are": (": CHUNKS == 4 ? line / 2 % 4 : line % 8", ": 0"),
    "lines that start in the same bank": ("LENGTH + (ONE_BY_ONE ? 8 : 0)", "LENGTH"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "dtype"), [*zip(CONFLICTS, ("bfloat16", "float32"), strict=True)]
)
def test_a_planted_conflict_is_seen(tmp_path, fault, dtype):
    tf32 = dtype == "float32"
    macros = SMALL_TF32 if tf32 else SMALL
    slow = TileKernels(tmp_path, "mma_multistage", [CONFLICTS[fault]], **macros)
    assert slow.is_right(GemmCase(64, 64, 64, **lies("CC", 16, dtype), tf32=tf32))
    assert slow.turns(*((READ, 4) if tf32 else (LDMATRIX, 16))) > 1
