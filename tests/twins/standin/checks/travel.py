"""Arrays of a device through Dask's own serializers: what comes back is what was sent."""

import pickle

import cupy as cp
import numpy as np
import pytest
from distributed.protocol import deserialize, serialize
from distributed.protocol.serialize import dask_serialize

from tiledask.distributed.cluster import device_arrays
from tiledask.tile import as_dtype

device_arrays.register(on_host=False)

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int64"]
VIEWS = {
    "rows": lambda x: x,
    "columns": lambda x: x.T,
    "every second": lambda x: x[::2, 1::2],
    "backwards": lambda x: x[::-1],
    "one for all": lambda x: cp.broadcast_to(x[0], (3, *x[0].shape)),
    "a batch turned": lambda x: x.reshape(2, 3, 7).swapaxes(0, 2),
    "a number": lambda x: x[1, 2],
    "nothing": lambda x: x[3:3],
    "one row": lambda x: x[:1],
    "one column": lambda x: x[:, :1],
}


def through(x, family):
    header, frames = serialize(x, serializers=(family,), on_error="raise")
    if family == "dask":  # as a message or a file brings them
        header, frames = pickle.loads(pickle.dumps((header, [bytes(f) for f in frames])))
        assert all(isinstance(frame, bytes) for frame in frames)
    return deserialize(header, frames)


@pytest.mark.parametrize("family", ["dask", "cuda"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_comes_back_is_what_was_sent(dtype, view, family):
    made = np.random.default_rng(0).integers(-99, 99, (6, 7)).astype(as_dtype(dtype))
    x = VIEWS[view](cp.asarray(made))
    sent = x.get(order="A")
    y = through(x, family)
    assert type(y) is cp.ndarray
    assert y.dtype == as_dtype(dtype)
    assert y.shape == x.shape
    assert y.get(order="A").tobytes() == sent.tobytes()
    if x.size:  # densely, the axes in the order in which they lay
        assert not x.flags.forc or y.strides == x.strides
        assert order(y) == order(x)


def order(x):
    """The axes that have more than one index, by how far apart their elements lie."""
    return sorted((i for i in range(x.ndim) if x.shape[i] > 1), key=lambda i: -abs(x.strides[i]))


def test_dense_arrays_are_not_copied_to_be_sent():
    x = cp.ones((64, 64), as_dtype("bfloat16")).T
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    _, (frame,) = serialize(x, serializers=("cuda",), on_error="raise")
    assert frame.data.ptr == x.data.ptr
    assert pool.used_bytes() == before


@pytest.mark.parametrize("nbytes", [1, 99, 100, 101, 200, 201, 1000])
def test_slabs_of_pinned_memory_come_in_order(monkeypatch, nbytes):
    monkeypatch.setattr(device_arrays, "SLAB", 100)
    x = np.arange(nbytes).astype(np.uint8)
    with cp.cuda.Stream(non_blocking=True):  # whichever stream it was made on
        there = cp.asarray(x)
        there.set(x[::-1].copy(), stream=cp.cuda.get_current_stream())
        assert np.array_equal(device_arrays.to_host(there), x[::-1])


def test_what_the_client_receives_is_numpys(monkeypatch):
    x = cp.asarray(np.arange(12).reshape(3, 4).astype(as_dtype("bfloat16"))).T
    header, frames = serialize(x, serializers=("dask",), on_error="raise")
    nested = pickle.dumps({"x": [x]})
    monkeypatch.setattr(device_arrays, "_on_host", True)
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    for y in (deserialize(header, [bytes(f) for f in frames]), pickle.loads(nested)["x"][0]):
        assert type(y) is np.ndarray
        assert y.dtype == x.dtype
        assert y.strides == x.strides
        assert y.flags.writeable
        assert np.array_equal(y, x.get())
    assert pool.used_bytes() == before


def test_what_is_received_is_of_cupys_pool():
    x = cp.ones(1 << 16, np.float32)
    header, frames = serialize(x, serializers=("dask",), on_error="raise")
    pool = cp.get_default_memory_pool()
    before = pool.used_bytes()
    y = deserialize(header, [bytes(f) for f in frames])
    assert pool.used_bytes() - before == y.nbytes


def test_a_spilled_array_comes_back_from_host_and_disk(tmp_path):
    from dask_cuda.device_host_file import DeviceHostFile

    pool = cp.get_default_memory_pool()
    x = {i: cp.full((100, 100), i, as_dtype("bfloat16")).T for i in range(8)}
    kept = {i: array.get() for i, array in x.items()}
    file = DeviceHostFile(
        worker_local_directory=str(tmp_path), device_memory_limit=50_000, memory_limit=50_000
    )
    before = pool.used_bytes()
    for i in list(x):
        file[i] = x.pop(i)
    assert file.host.keys(), "none went to the host"
    assert file.disk.keys(), "none went to the disk"
    assert pool.used_bytes() < before
    for i, array in kept.items():
        found = file[i]
        assert found.dtype == array.dtype
        assert found.flags.f_contiguous
        assert np.array_equal(found.get(), array)


def test_dasks_own_do_not_come_back():
    """Whoever imports Dask's module later changes nothing."""
    import contextlib

    with contextlib.suppress(ImportError):
        import distributed.protocol.cupy  # noqa: F401
    assert dask_serialize.dispatch(cp.ndarray).__module__ == device_arrays.__name__
    for lazily in ("cupyx",):
        with contextlib.suppress(Exception):
            dask_serialize._lazy[lazily]()
    assert dask_serialize.dispatch(cp.ndarray).__module__ == device_arrays.__name__
