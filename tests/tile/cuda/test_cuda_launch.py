"""What the host does for a launch: the driver's rules kept, little asked, nothing asked twice.

On a stand-in for CuPy and the driver (launch_twin.py). That kernels compute what they should is
shown elsewhere: test_cuda_{smem,panels,wgmma}.py on the host, test_cuda_gpu.py on a GPU.

Holds `tiledask.tile.cuda.build`, `tiledask.tile.cuda.hopper_tile`, `tiledask.tile.cuda.prebuilt`
and `tiledask.tile.cuda.tensor_map`.
"""

import ctypes
import os
import sys
import threading

import numpy as np
import pytest
from twins.cuda_host import host_tensor_map, why_not
from twins.launch_twin import Machine, driver_library

import tiledask as td
from tiledask.errors import KernelError
from tiledask.tile import backend, table
from tiledask.tile.cuda import build, hopper_tile, launch, prebuilt, tensor_map
from tiledask.tile.cuda import operands as operands_of
from tiledask.tile.cuda.hopper_tile import (
    PARTIAL_BYTES,
    WGMMA_TILES,
    HopperTile,
    chosen,
    hopper_tiles,
    most_partials,
    named,
    slices,
)
from tiledask.tile.epilogue import Epilogue

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

HALF = td.tile.as_dtype("bfloat16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("driver")


@pytest.fixture
def driver(folder, monkeypatch):
    """The stand-in for the driver's library, with no map kept."""
    monkeypatch.setattr(tensor_map, "_LIBRARY", str(driver_library(folder)))
    forget()
    yield ctypes.c_int.in_dll(tensor_map._driver(), "made")
    forget()


def forget():
    tensor_map._driver.cache_clear()
    tensor_map.encode.cache_clear()


# -- tensor maps ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_map_lies_on_a_boundary_of_64_bytes_wherever_memory_is_given_out(driver):
    rows = range(1, 200)
    made = [
        tensor_map.encode("float16", 4096, (64, n, 1), (128, 128 * n), (64, 64, 1)) for n in rows
    ]
    assert driver.value == len(made)  # the driver takes it nowhere else
    for map in made:
        # where CuPy takes an argument from that a kernel gets by value
        assert map.__array_interface__["data"][0] % 64 == 0
        assert (map.size, map.nbytes) == (1, 128)


def test_a_map_is_what_was_asked_for(driver):
    sizes, strides, box = (1000, 2**32, 7), (2016, 2**39), (64, 256, 1)
    map = tensor_map.encode("bfloat16", 2**40 + 16, sizes, strides, box)
    words = map.view(np.uint64).tolist()
    assert words[:3] == [2**40 + 16, 9, 3]
    assert (*words[3:6], *words[8:11], *words[12:14]) == (*sizes, *box, *strides)
    assert tensor_map.encode("float16", 16, (8, 8, 1), (16, 128), (8, 8, 1)).view("u8")[1] == 6


REFUSED = {
    "address": (8, (64, 64, 1), (128, 8192), (64, 64, 1)),
    "stride": (16, (64, 64, 1), (130, 8192), (64, 64, 1)),
    "stride of a batch": (16, (64, 64, 1), (128, 2**40), (64, 64, 1)),
    "wide box": (16, (64, 64, 1), (128, 8192), (128, 64, 1)),
    "long box": (16, (64, 512, 1), (128, 2**16), (64, 257, 1)),
    "nothing": (16, (64, 0, 1), (128, 8192), (64, 64, 1)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_driver_refuses_is_said_with_its_rule(driver, why):
    with pytest.raises(KernelError, match=r"CUDA_ERROR_INVALID_VALUE \(1\); addresses and strides"):
        tensor_map.encode("float16", *REFUSED[why])
    with pytest.raises(AssertionError):  # and the kernels' tests on the host go by the same rules
        host_tensor_map("float16", *REFUSED[why])


@pytest.mark.parametrize("library", ["libcuda.so.none", "libc.so.6"])
def test_a_machine_without_the_driver_says_so(driver, monkeypatch, library):
    monkeypatch.setattr(tensor_map, "_LIBRARY", library)
    forget()
    with pytest.raises(KernelError, match=rf"{library} does not make .* a driver of CUDA 12.0"):
        tensor_map.encode("float16", 0, (64, 64, 1), (128, 8192), (64, 64, 1))


# -- how the Hopper kernel goes over C ------------------------------------------------------------


@pytest.fixture
def machine(folder, tmp_path, monkeypatch):
    """A machine of two GPUs, as CuPy and the driver would show it."""
    found = Machine(devices=2)
    found.use(monkeypatch, folder, tmp_path)
    yield found
    forget()


def multiply(machine, m, n, k, kernel="wgmma_ws_persistent", dtype=HALF, **options):
    a, b = machine.empty((m, k), dtype), machine.empty((k, n), dtype)
    td.tile.matmul(a, b, kernel, **options)
    return machine.launched[-1]


def test_each_of_the_ways_to_sweep_is_launched_as_it_is_named(machine):
    for name, how in hopper_tiles().items():
        assert named(name) == how
        launched = multiply(machine, 1024, 2048, 512, tile=how)
        macros = launched.kernel.macros
        wanted = (how.tile[1], how.stages, how.cluster, how.raster, int(how.staged))
        keys = ("TILE_N", "STAGES", "CLUSTER", "RASTER", "STAGED")
        assert tuple(macros[key] for key in keys) == wanted
        assert macros.get("C_PANELS", 0) == how.panels
        clusters = 8 // how.cluster * 2048 // how.tile[1]  # of 66 or 132 at a time
        assert macros.get("SPLIT", 0) == (how.splits > 1)
        works = clusters * how.splits
        assert launched.grid == (min(works * how.cluster, how.blocks or 132),)
        assert launched.shared <= 227 * 1024
    # 128 blocks, and the number of slices, are no variants
    assert len({x.kernel.path for x in machine.launched}) == len(hopper_tiles()) - 3


def test_a_way_whose_c_cannot_be_staged_leaves_directly(machine):
    out = machine.empty((512, 520), np.float32)
    off, out = out[:, 1:513], out[:, :512]
    assert multiply(machine, 512, 512, 64, tile=HopperTile(), out=off).kernel.macros["STAGED"] == 0
    wide = multiply(machine, 512, 512, 64, tile=HopperTile(), out=out, beta=1.0)
    assert wide.kernel.macros["STAGED"] == 1
    assert sizes_of(wide.arguments[8])[1:7] == [512, 512, 1, 32, 64, 1]  # 128 bytes of float32
    plain = multiply(machine, 512, 512, 64, tile=(128, 256, 64), out=out)
    assert plain.kernel.macros["STAGES"] == 4  # without C there is room for one more


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


def test_a_launch_that_splits_gets_memory_of_its_own(machine):
    for _ in range(2):
        multiply(machine, 1024, 1024, 16384)
    first, second = (x.arguments[-4:] for x in machine.launched)
    whole, splits, sums, counters = first
    assert (int(whole), int(splits)) == (0, 2)
    assert (sums.shape, sums.dtype) == ((2 * 64 * 128 * 128,), np.float32)
    assert (counters.shape, counters.dtype) == ((64 * 2,), np.uint32)
    assert not counters.host.any()
    assert len({x.data.ptr for x in (sums, counters, second[2], second[3])}) == 4
    unsplit = multiply(machine, 1024, 1024, 16384, tile=HopperTile())
    assert len(unsplit.arguments) == len(machine.launched[0].arguments) - 4


# -- what a launch asks for -----------------------------------------------------------------------

KERNELS = {
    "smem_tiled": (np.dtype("f4"), 0),
    "sgemm_warptiled": (np.dtype("f4"), 0),
    "mma_multistage": (HALF, 0),
    "wgmma_ws_persistent": (HALF, 3),
}
"""The elements, and how many tensor maps a launch takes."""


def operands(machine, dtype, m=256, n=384, k=512):
    return [machine.empty(shape, dtype) for shape in ((m, k), (k, n), (m, n))]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_second_launch_asks_the_driver_for_nothing(machine, kernel):
    dtype, maps = KERNELS[kernel]
    made = ctypes.c_int.in_dll(tensor_map._driver(), "made")
    made.value = 0
    a, b, out = operands(machine, dtype)
    for _ in range(3):
        td.tile.matmul(a, b, kernel, out=out)
    assert made.value == maps
    asked = dict(machine.asked)
    assert asked.pop("funcSetAttribute", 0) <= 1
    assert asked == {"compile": 1, "moduleLoad": 1}
    first, _, last = machine.launched
    assert (first.kernel, first.grid) == (last.kernel, last.grid)


def test_each_device_is_told_once_what_a_kernel_may_take(machine):
    for device in [*machine.devices, *machine.devices]:
        with device:  # the stand-in's kernel refuses a launch on a device that was not told
            multiply(machine, 512, 512, 512)
    assert machine.asked["funcSetAttribute"] == len(machine.devices)
    assert [x.device.id for x in machine.launched] == [0, 1, 0, 1]


def sizes_of(map):
    return map.view(np.uint64)[[0, *range(3, 6), *range(8, 11), 12, 13]].tolist()


def test_what_lies_at_one_address_is_described_as_it_is(machine):
    """Memory is given out again: other extents, strides, types there get maps of their own."""
    memory = machine.empty((256 * 512,), HALF)
    other, out = machine.empty((1024, 512), HALF), machine.empty((512, 512), HALF)
    seen = []
    for rows, columns, step in [(128, 512, 1), (256, 256, 1), (128, 256, 2), (128, 512, 1)]:
        a = memory.reshape(-1, columns * step)[:rows][:, :columns]
        td.tile.matmul(a, other[:columns], "wgmma_ws_persistent", out=out[:rows])
        address, *sizes = sizes_of(machine.launched[-1].arguments[4])
        assert address == memory.data.ptr
        line = 2 * columns * step
        assert sizes == [columns, rows, 1, 64, 128, 1, line, rows * line]
        seen.append(sizes)
    assert seen[0] == seen[-1]


def test_maps_are_on_their_boundary_in_every_launch(machine):
    for out_dtype in (HALF, np.float32):  # C by a map of its own, and without one
        a, b, out = *operands(machine, HALF)[:2], machine.empty((256, 384), out_dtype)
        td.tile.matmul(a, b, "wgmma_ws_persistent", out=out)
        maps = [x for x in machine.launched[-1].arguments if isinstance(x, np.ndarray)]
        assert [x.__array_interface__["data"][0] % 64 for x in maps] == [0, 0, 0]


def test_an_operand_off_its_boundary_is_another_launch(machine):
    room = machine.empty((256, 8 * 33), np.float32)
    b = machine.empty((256, 128), np.float32)
    pieces = []
    for first in (0, 1):
        td.tile.matmul(room[:, first : first + 256], b, "sgemm_warptiled")
        pieces.append(machine.launched[-1].kernel.macros["A_BYTES"])
    assert pieces == [16, 4]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("step", [1, 2])
def test_a_copy_holds_the_same_numbers_nan_too(machine, dtype, step):
    """Off its boundary or without neighbours; halves are copied as integers."""
    around = machine.empty((20, 70), td.tile.as_dtype(dtype))
    around.host[...] = np.arange(1400).reshape(20, 70) % 97
    around.host[3, 5] = np.nan
    x = around[:, 1:61:step]
    copied = operands_of.padded(operands_of.readable(x))
    assert copied.layout.boundary == 16
    assert copied.array.data.ptr != x.data.ptr
    np.testing.assert_array_equal(copied.array.host.astype("f4"), x.host.astype("f4"))


@pytest.mark.long
def test_threads_on_two_devices_launch_what_is_theirs(machine):
    wrong = []

    def work(device):
        machine.local.device = device
        for i in range(200):
            a, b, out = operands(machine, HALF, m=128 * (1 + i % 3))
            td.tile.matmul(a, b, "wgmma_ws_persistent", out=out)
            where, arguments = machine.local.last.device, machine.local.last.arguments
            addresses = [sizes_of(map)[0] for map in (arguments[4], arguments[6], arguments[8])]
            if where is not device or addresses != [a.data.ptr, b.data.ptr, out.data.ptr]:
                wrong.append((i, where.id, addresses))

    threads = [threading.Thread(target=work, args=(d,)) for d in [*machine.devices] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not wrong


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


def test_without_a_compiler_what_was_brought_still_runs(machine, brought, monkeypatch):
    without = backend.Backend(True, "", devices=backend.probe().devices, nvrtc_reason="no NVRTC")
    monkeypatch.setattr(table, "probe", lambda: without)
    assert td.tile.kernels["smem_tiled"].available
    assert td.tile.kernels["mma_multistage"].why_not == "no NVRTC"
    monkeypatch.setenv("TILEDASK_CUBINS", "")
    assert td.tile.kernels["smem_tiled"].why_not == "no NVRTC"


@pytest.mark.long
def test_the_variants_are_those_that_launches_ask_for(machine):
    """Here on arrays of the stand-in; what is listed was asked of arrays that lie alike."""
    listed = set(prebuilt.variants())
    for kernel, (dtype, _) in KERNELS.items():
        for m in (8192, 100):
            multiply(machine, m, 128, 64, kernel, dtype)
            multiply(machine, m, 128, 64, kernel, dtype, out=machine.empty((m, 128), np.float32))
    for how in hopper_tiles().values():
        multiply(machine, 8192, 128, 64, tile=how)
    for launched in machine.launched:
        found = launched.kernel.name, tuple(sorted(launched.kernel.macros.items()))
        assert found in listed
