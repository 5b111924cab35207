"""What CuPy and CUDA refuse, and what a GPU would answer with nonsense: told here, all of it."""

import multiprocessing
import os
import pickle

import cupy as cp
import cupyx
import numpy as np
import pytest
from cupy import StandInFault, _machine
from cupy.cuda import runtime
from cupy.cuda.runtime import CUDARuntimeError

from tiledask.tile import as_dtype, layers, probe, to_numpy

BF16 = as_dtype("bfloat16")


def test_it_is_a_usable_gpu():
    found = probe()
    assert found.usable
    assert len(found.devices) == 2
    assert found.devices[0].compute_capability == "9.0"
    assert "stand-in" in found.devices[0].name


def test_host_and_device_do_not_mix():
    x = cp.asarray(np.ones(3))
    for mixed in (
        lambda: x + np.ones(3),
        lambda: np.ones(3) * x,
        lambda: cp.concatenate([x, np.ones(3)]),
        lambda: x.__setitem__(slice(2), np.ones(2)),
        lambda: cp.add(x, x, out=np.empty(3)),
        lambda: np.asarray(x),
        lambda: np.concatenate([np.ones(3), x]),
        lambda: x.dot(np.ones(3)),
    ):
        with pytest.raises(TypeError, match=r"Unsupported type|Implicit conversion"):
            mixed()


def test_numbers_are_arrays_without_dimensions():
    x = cp.asarray(np.arange(6.0).reshape(2, 3))
    for found in (x.sum(), x[0, 1], x.max(), np.float64(2) * x[0, 0], cp.linalg.norm(x)):
        assert type(found) is cp.ndarray
        assert found.ndim == 0
    assert float(x.sum()) == 15
    assert cp.ascontiguousarray(x[0, 0]).shape == (1,)


def test_only_what_cupy_has():
    x = cp.ones((2, 2))
    for missing in ("ctypes", "itemset", "byteswap", "newbyteorder", "setflags"):
        with pytest.raises(AttributeError):
            getattr(x, missing)
    with pytest.raises(AttributeError):
        x.flags.writeable  # noqa: B018
    with pytest.raises(AttributeError):
        cp.memmap  # noqa: B018
    with pytest.raises(TypeError, match="Wrong arguments"):
        cp.add(x, x, where=x > 0)
    with pytest.raises(NotImplementedError):
        cp.multiply.at(x, 0, 2)


def test_a_choice_of_bfloat16_is_float32_and_an_embedding_is_not():
    x = cp.ones(4, BF16)
    assert cp.where(x > 0, x, x).dtype == np.float32
    table, tokens = cp.ones((5, 3), BF16), cp.asarray([0, 4, 9])
    y, _ = layers.embedding(tokens, table)
    assert y.dtype == BF16
    assert y.astype("f4").get().tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]


def test_bfloat16_has_no_name_in_cudas_interface():
    x = cp.ones(4, BF16)
    facts = x.__cuda_array_interface__
    assert facts["typestr"] == "<V2"

    class Lent:
        __cuda_array_interface__ = facts

    assert cp.asarray(Lent()).dtype.kind == "V"


def test_views_see_the_same_memory_and_copies_do_not():
    x = cp.zeros((4, 6), BF16)
    x.T[1:3, ::2] = 1
    assert x.get().astype("f4").sum() == 4
    assert x[1:].data.ptr == x.data.ptr + x.strides[0]
    assert cp.may_share_memory(x, x.reshape(24)[::2])
    y = x.copy()
    y[...] = 7
    assert float(x.max()) == 1
    assert cp.empty_like(x.T).strides == x.T.strides


def test_fresh_memory_is_nonsense():
    assert (cp.empty(100, "u1").get() == _machine.NONSENSE).all()


def test_a_pointer_beyond_its_allocation_is_a_fault():
    x = cp.ones(100, "f4")
    with pytest.raises(StandInFault):
        cp.ndarray((200,), "f4", x.data)
    with pytest.raises(CUDARuntimeError, match="cudaErrorIllegalAddress"):
        _machine.at(8, 4)
    pointer = runtime.malloc(512)
    runtime.free(pointer)
    with pytest.raises(CUDARuntimeError, match="IllegalAddress"):
        runtime.memset(pointer, 0, 4)
    with pytest.raises(CUDARuntimeError, match="InvalidDevicePointer"):
        runtime.free(pointer)
    with pytest.raises(CUDARuntimeError, match="nobody's memory"):
        runtime.memcpy(x.data.ptr, np.ones(4).ctypes.data, 8, runtime.memcpyDeviceToDevice)


def test_lent_memory_that_was_given_back_is_a_fault():
    x = cp.ones(100, "f4")
    lent = cp.cuda.UnownedMemory(x.data.ptr, x.nbytes, None)
    y = cp.ndarray(x.shape, x.dtype, cp.cuda.MemoryPointer(lent, 0))
    assert float(y.sum()) == 100
    del x
    with pytest.raises(StandInFault, match="given back"):
        y.sum()
    with pytest.raises(CUDARuntimeError):
        cp.cuda.UnownedMemory(np.ones(4).ctypes.data, 32, None)


def test_a_device_is_full_at_its_size_and_the_pool_at_its_limit():
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    _, total = runtime.memGetInfo()
    half = cp.empty(total // 2, "u1")
    with pytest.raises(cp.cuda.memory.OutOfMemoryError, match="Out of memory allocating"):
        cp.empty(total // 2 + 2**20, "u1")
    del half
    whole = cp.empty(total // 2 + 2**20, "u1")  # what is free is given back first
    del whole
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + 2**20)
    with pytest.raises(MemoryError, match="limit set to"):
        cp.empty(2**21, "u1")
    pool.set_limit(size=0)


def test_the_pool_counts_in_blocks_of_512_and_keeps_what_is_freed():
    pool = cp.cuda.MemoryPool()
    a, b = pool.malloc(1), pool.malloc(1025)
    assert (pool.used_bytes(), pool.total_bytes()) == (512 + 1536, 512 + 1536)
    at = b.ptr
    del b
    assert (pool.used_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (512, 1536, 1)
    c, d = pool.malloc(512), pool.malloc(1024)
    assert [c.ptr, d.ptr] == [at, at + 512]
    del c
    pool.free_all_blocks()
    assert pool.total_bytes() == 2048, "a part of it is in use"
    del a, d
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_an_allocator_of_ones_own():
    asked = []
    pool = cp.cuda.MemoryPool()

    def allocate(nbytes):
        asked.append(nbytes)
        return pool.malloc(nbytes)

    with cp.cuda.using_allocator(allocate):
        x = cp.ones((10, 10), "f8") + 1
    assert asked == [800, 800]
    assert pool.used_bytes() == 1024
    assert x.get().sum() == 200


def test_copies_of_a_stream_are_done_when_it_is_waited_for():
    host, x = cupyx.empty_pinned(64, "f4"), cp.zeros(64, "f4")
    stream = cp.cuda.Stream(non_blocking=True)
    host[...] = 1
    x.set(host, stream=stream)
    assert float(x.sum()) == 0, "the default stream does not wait for it"
    event = stream.record()
    host[...] = 2  # too early: it was not read yet
    event.synchronize()
    assert float(x.sum()) == 128
    out = cupyx.empty_pinned(64, "f4")
    out[...] = 0
    x.get(stream=stream, out=out, blocking=False)
    assert out.sum() == 0
    stream.synchronize()
    assert out.sum() == 128
    blocking = cp.cuda.Stream()
    x.set(np.full(64, 3, "f4"), stream=blocking)
    assert float(x.sum()) == 192, "the default stream waits for one that blocks"
    unrecorded = cp.cuda.Event()
    with pytest.raises(StandInFault, match="never recorded"):
        stream.wait_event(unrecorded)


def test_another_devices_array():
    x = cp.ones(3)
    with cp.cuda.Device(1):
        y = cp.ones(3)
        assert y.device.id == 1
        with pytest.warns(RuntimeWarning, match="different from the current device"):
            x + x
        assert cp.asarray(x).device.id == 1
    with pytest.raises(CUDARuntimeError, match="invalid device ordinal"):
        cp.cuda.Device(2).use()


def test_a_forked_process_has_no_context():
    cp.ones(3)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            cp.ones(3)
        except CUDARuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"cudaErrorInitializationError" in os.read(read, 1000)


def test_a_pickled_array_is_a_copy():
    x = cp.full((3, 4), 2, BF16)
    y = pickle.loads(pickle.dumps(x))
    assert type(y) is cp.ndarray
    assert y.dtype == BF16
    assert y.data.ptr != x.data.ptr
    assert np.array_equal(to_numpy(x), to_numpy(y))


def _other(pipe):
    """Another process: which of the first's pointers and handles mean something here?"""
    pointer, handle = pipe.recv()
    try:
        _machine.at(pointer, 4)
        pipe.send("the pointer of another process was read")
    except CUDARuntimeError as error:
        pipe.send(str(error))
    base = runtime.ipcOpenMemHandle(handle)
    lent = cp.cuda.UnownedMemory(base, 64, None, 0)
    x = cp.ndarray((8,), "f8", cp.cuda.MemoryPointer(lent, 0))
    pipe.send(x.get().tolist())
    x[...] = 7
    _, total = runtime.memGetInfo()
    big = cp.empty(10**8, "u1")
    pipe.send(total - runtime.memGetInfo()[0])
    pipe.recv()
    runtime.ipcCloseMemHandle(base)
    del big


def test_another_process_shares_the_device_and_not_the_pointers():
    cp.get_default_memory_pool().free_all_blocks()
    pointer = runtime.malloc(512)
    lent = cp.cuda.UnownedMemory(pointer, 64, None, 0)
    x = cp.ndarray((8,), "f8", cp.cuda.MemoryPointer(lent, 0))
    x[...] = np.arange(8.0)
    handle = runtime.ipcGetMemHandle(pointer + 8)  # of the whole allocation all the same
    assert len(handle) == 64
    with pytest.raises(CUDARuntimeError):
        runtime.ipcOpenMemHandle(handle)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_other, args=(there,))
    process.start()
    here.send((pointer, handle))
    assert "cudaErrorIllegalAddress" in here.recv()
    assert here.recv() == list(range(8))
    used = here.recv()
    free, total = runtime.memGetInfo()
    assert total - free == used >= 10**8
    here.send("enough")
    process.join(240)
    assert process.exitcode == 0
    assert (x.get() == 7).all()
    assert total - runtime.memGetInfo()[0] < 10**8, "what a process had goes with it"
    runtime.free(pointer)
