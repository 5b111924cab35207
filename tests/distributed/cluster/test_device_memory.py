"""Everything on a worker's GPU comes from one pool: counted, capped, and given back once."""

import ctypes
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tiledask.distributed.cluster import device_memory, host_memory, room
from tiledask.distributed.cluster.cluster import BlockKeys, slot_on
from tiledask.tile import backend
from tiledask.tile.memory.pool import Refused

MB = 10**6
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(find_spec("cupy")), reason="CuPy is installed, and the stand-in would take its place"
    ),
]

_modules = {}
"""The stand-in's, for all tests: Dask keeps what it once learnt of a class."""


@pytest.fixture
def cupy(monkeypatch, tmp_path_factory):
    """The stand-in's CuPy, on a GPU of 100 MB, as a worker process has it."""
    gc.freeze()  # what others made is not looked through
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "twins" / "standin"))
    for name in ("CUDA_VISIBLE_DEVICES", "STANDIN_GPUS", "STANDIN_GPU_INTEGRATED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STANDIN_GPU_MEMORY", str(100 * MB))
    monkeypatch.setenv("STANDIN_GPU_FOLDER", str(tmp_path_factory.mktemp("gpu")))
    fresh = {"_pool": None, "_rules": None, "_problem": "", "_peak": 0, "_lent": {}}
    for name, value in fresh.items():
        monkeypatch.setattr(device_memory, name, value)
    monkeypatch.setattr(ctypes, "CDLL", ctypes.CDLL)  # it finds the driver's library for a while
    monkeypatch.setattr(ctypes.cdll, "_dlltype", ctypes.CDLL)
    sys.modules.update(_modules)
    backend.probe.cache_clear()
    import cupy

    cupy.cuda.tensor_maps.install()
    yield cupy
    gc.collect()
    pool = cupy.get_default_memory_pool()
    cupy.cuda.set_allocator(pool.malloc)
    pool.set_limit(size=0)
    pool.free_all_blocks()
    for name in [n for n in sys.modules if n.partition(".")[0] in ("cupy", "cupyx", "rmm")]:
        _modules[name] = sys.modules.pop(name)
    backend.probe.cache_clear()


def share(**rules):
    device_memory.OnePool(**rules).setup()
    assert device_memory.problem() == ""


def message(nbytes, **options):
    """Memory for what comes in, as Dask takes it where RMM is installed."""
    import rmm

    return rmm.DeviceBuffer(size=nbytes, **options)


def test_arrays_and_messages_are_counted_together(cupy):
    share()
    held = host_memory.reset_peak("cupy")
    array = cupy.empty(8 * MB, "u1")
    buffer = message(4 * MB)
    assert device_memory.held() - held == pytest.approx(12 * MB, abs=1024)
    view = cupy.asarray(buffer)[MB:].view("f4")
    view[:] = 7
    del buffer, array  # the view has it still
    gc.collect()
    more = [message(2 * MB) for _ in range(3)]
    assert float(view.min()) == 7
    assert host_memory.peak_bytes("cupy") - held == pytest.approx(12 * MB, abs=1024)
    del view, more
    gc.collect()
    assert device_memory.held() == held


def test_nothing_else_is_asked_for_where_rmm_is_not_installed(cupy, monkeypatch):
    monkeypatch.setattr(device_memory, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "rmm", raising=False)
    share(cap=20 * MB)
    assert "rmm" not in sys.modules
    with pytest.raises(Refused, match="memory_cap=20 MB"):
        cupy.empty(21 * MB, "u1")


@pytest.mark.parametrize("taken", [lambda n: sys.modules["cupy"].empty(n, "u1"), message])
def test_a_cap_refuses_arrays_and_messages_in_the_same_words(cupy, taken):
    share(cap=20 * MB)
    first = message(6 * MB), cupy.empty(6 * MB, "u1")
    held = device_memory.held()
    said = r"9 MB .* beside 12 MB .* make 21 MB, 1\.001 MB more than memory_cap=20 MB; ask start_cl"
    with pytest.raises(MemoryError, match=said):
        taken(9 * MB)
    assert device_memory.held() == held
    del first
    gc.collect()
    taken(9 * MB)


def test_two_threads_do_not_both_take_what_is_left(cupy, monkeypatch):
    share(cap=20 * MB)
    pool = device_memory._pool

    def slowly(nbytes):
        time.sleep(0.02)
        return pool.malloc(nbytes)

    slow = SimpleNamespace(malloc=slowly, used_bytes=pool.used_bytes)
    monkeypatch.setattr(device_memory, "_pool", slow)
    with ThreadPoolExecutor(2) as threads:
        taken = [threads.submit(cupy.empty, 12 * MB, "u1") for _ in range(2)]
        errors = [future.exception(30) for future in taken]
    assert sorted(isinstance(error, MemoryError) for error in errors) == [False, True]


def test_a_full_gpu_says_what_is_free_and_of_how_much(cupy):
    share()
    theirs = cupy.cuda.runtime.malloc(60 * MB)  # of another program
    said = r"50 MB .*make 50 MB, which the GPU refused: 40 MB of its 100 MB are free; close"
    with pytest.raises(Refused, match=said) as caught:
        cupy.empty(50 * MB, "u1")
    assert caught.value.asked == 50 * MB
    cupy.cuda.runtime.free(theirs)
    cupy.empty(50 * MB, "u1")


def test_a_peak_is_of_what_was_held_at_once_whatever_the_streams(cupy):
    share()
    before = device_memory.reset_peak()
    for _ in range(3):  # a pool keeps what a stream freed for that stream
        with cupy.cuda.Stream(non_blocking=True):
            cupy.empty(8 * MB, "u1")
    assert device_memory.peak_bytes() - before == 8 * MB
    assert device_memory._pool.total_bytes() > 16 * MB
    array = cupy.empty(8 * MB, "u1")
    assert device_memory.reset_peak() == device_memory.peak_bytes() == before + array.nbytes


def test_a_new_peak_costs_no_memory_that_is_kept(cupy):
    share()
    for size in (8, 3):
        cupy.empty(size * MB, "u1")
    asked = sys.modules["cupy"]._machine.device().mallocs
    device_memory.reset_peak()
    cupy.empty(8 * MB, "u1")
    message(8 * MB)
    assert sys.modules["cupy"]._machine.device().mallocs == asked


def test_a_message_gets_memory_in_the_order_of_its_own_stream(cupy):
    share()
    address = cupy.empty(8 * MB, "u1").data.ptr  # free again, for this stream
    other = cupy.cuda.Stream(non_blocking=True)
    other.__cuda_stream__ = lambda: (0, other.ptr)
    assert message(8 * MB, stream=other).ptr != address
    assert message(8 * MB).ptr == address


def test_a_gpu_that_several_share_is_left_to_the_others(cupy):
    share(most=40 * MB, sharers=2)
    with pytest.raises(MemoryError, match="limit set to: 40,000,000"):
        cupy.empty(41 * MB, "u1")
    held = cupy.empty(20 * MB, "u1")
    assert device_memory.reachable() == pytest.approx(20 * MB + 80 * MB / 2, abs=4096)
    del held


def test_a_worker_without_its_gpu_says_why(cupy, monkeypatch):
    monkeypatch.setattr(device_memory.OnePool, "_share_pool", lambda self: 1 / 0)
    device_memory.OnePool().setup()
    assert device_memory.problem() == "ZeroDivisionError: division by zero"


def worker_with(data):
    shares = {f"memory_{name}_fraction": 0.8 for name in ("pause", "spill", "target")}
    manager = SimpleNamespace(memory_limit=10**12, **shares)
    state = SimpleNamespace(total_resources={"slot0": 1})
    return SimpleNamespace(data=data, memory_manager=manager, state=state)


def test_blocks_of_the_plan_are_part_of_its_room_on_a_gpu(cupy, tmp_path):
    share()
    found = pytest.importorskip("dask_cuda.device_host_file", reason="dask-cuda is for Linux")
    data = found.DeviceHostFile(str(tmp_path), device_memory_limit=90 * MB, memory_limit=10**12)
    data["a"], data["b"] = cupy.empty(20 * MB, "u1"), cupy.empty(10 * MB, "u1")
    mine, others = (
        room._bounds([BlockKeys("", keys)], "cupy", 90 * MB, False, worker)
        for worker in [worker_with(data)]
        for keys in ({slot_on(worker): "a"}, {})
    )
    assert [other.held - own.held for own, other in zip(mine, others, strict=True)] == [20 * MB] * 3
    assert mine[0].room == pytest.approx(80 * MB, abs=1024)
    assert [bound.rule.partition(" MB")[0][-2:] for bound in mine] == ["90", "95", "90"]
    assert "Dask-CUDA moves blocks, by their sum, to the host from 90 MB on" in mine[2].rule


def test_what_others_took_of_the_gpu_is_no_room(cupy, tmp_path):
    share()
    theirs = cupy.cuda.runtime.malloc(60 * MB)
    found = room.Room(tuple(room._bounds([], "cupy", 90 * MB, False, worker_with({}))))
    assert found.bytes == pytest.approx(0.95 * 40 * MB, rel=1e-3)
    assert "38 MB of its GPU are a worker's or free for it now" in str(found)
    assert found.raised(50 * MB) == ""  # no option brings more
    cupy.cuda.runtime.free(theirs)


def test_under_a_cap_the_cap_is_what_binds_and_what_is_raised(cupy):
    share(cap=20 * MB)
    block = cupy.empty(5 * MB, "u1")
    found = room.Room(tuple(room._bounds([], "cupy", 20 * MB, False, worker_with({}))))
    assert found.bytes == pytest.approx(15 * MB, abs=1024)
    assert found.raised(18 * MB).startswith("workers of td.start_cluster(memory_cap='39.7")
    del block


def test_memory_that_a_gpu_shares_with_the_host_is_under_the_hosts_rules(cupy, monkeypatch):
    share(cap=None, most=90 * MB)
    shared = SimpleNamespace(devices=(backend.GpuInfo(0, "GB10", "12.1", 10**9, True),))
    monkeypatch.setattr(room, "probe", lambda: shared)
    data = SimpleNamespace(fast={"a": cupy.empty(20 * MB, "u1")})
    worker = worker_with(data)
    mine = [BlockKeys("", {slot_on(worker): "a"})]
    found = room._bounds(mine, "cupy", 90 * MB, False, worker)
    assert [bound.option for bound in found] == ["GPU"] + ["memory_limit"] * 2
    assert found[1].held - host_memory.held() == pytest.approx(0, abs=8 * MB)
    others = room._bounds([], "cupy", 90 * MB, False, worker_with(data))
    assert others[1].held - found[1].held == pytest.approx(20 * MB, abs=8 * MB)
