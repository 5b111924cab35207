"""How arrays of a GPU travel and are spilled: their bytes, and the name of their element type.

    worker   array --seen in the order it lies--> bytes --pinned memory--> message or file
    worker   message or file --> bytes of CuPy's --> array
    client   message --> NumPy's array: nothing is ever allocated on the client's GPU

Dask sends the ``typestr`` of CUDA's array interface instead, which is "<V2" for bfloat16: 2
nameless bytes come back. It also receives into memory that CuPy's limit and peak don't know.
"""

import copyreg
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from tiledask.tile.backend import as_dtype, cupy_module

__all__ = ["pinned", "register", "to_host"]

SLAB = 2**25
"""Bytes of pinned memory through which an array comes to the host; there are two of them."""

_DISPATCHES = (cuda_serialize, cuda_deserialize, dask_serialize, dask_deserialize)
_on_host = False
"""Whether arrays that come to this process stay in host memory."""


def register(*, on_host: bool) -> None:
    """None, once Dask sends, receives and spills CuPy's arrays in this process as it is done here.

    ``on_host``: what is received becomes NumPy's, which is for the client. CuPy is not imported
    before there is an array of it.
    """
    global _on_host
    _on_host = on_host
    if "distributed.protocol.cupy" in sys.modules:  # Dask's own are in place already
        _register()
    for dispatch in _DISPATCHES:
        dispatch.register_lazy("cupy", _register)


def _register() -> None:
    cupy = cupy_module()

    # whoever imports it later would put Dask's own in place of ours; it needs RMM or Numba
    with suppress(Exception):
        import distributed.protocol.cupy  # noqa: F401
    cuda_serialize.register(cupy.ndarray, _to_device_frame)
    cuda_deserialize.register(cupy.ndarray, _of_device_frame)
    dask_serialize.register(cupy.ndarray, _to_frame)
    dask_deserialize.register(cupy.ndarray, _of_frame)
    if not _on_host:  # within other objects, which are pickled
        copyreg.pickle(cupy.ndarray, _pickled)


def to_host(x: Any) -> np.ndarray:
    """A copy of the CuPy array ``x`` in host memory, its axes in the same order there."""
    header, frames = _to_frame(x)
    return _host_array(header, frames)


# -- what is sent --------------------------------------------------------------------------------


def _to_device_frame(x: Any) -> tuple[dict[str, Any], list[Any]]:
    """(what is needed to see the array again, its bytes on the device: none make no frame).

    They are copied only if they don't lie together.
    """
    cupy = cupy_module()

    axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))  # stable: C order stays
    with x.device:
        dense = cupy.ascontiguousarray(x.transpose(axes))
        # not dense.shape, which has one dimension for an array of none
        header = {"shape": [x.shape[a] for a in axes], "dtype": x.dtype.name, "axes": axes}
        frames = [cupy.ndarray((dense.nbytes,), np.uint8, dense.data)] if x.size else []
    return header, frames


def _to_frame(x: Any) -> tuple[dict[str, Any], list[Any]]:
    header, frames = _to_device_frame(x)
    return header, [_host_bytes(frame).data for frame in frames]


def _pickled(x: Any) -> tuple[Any, ...]:
    return _unpickled, (to_host(x),)


def _host_bytes(frame: Any) -> np.ndarray:
    """The bytes of ``frame`` in host memory.

    stream       [slab 0 -> pinned a][slab 1 -> pinned b]     [slab 2 -> pinned a]
    this thread                      [a -> result]       [b -> result]
    """
    cupy = cupy_module()

    made = np.empty(frame.nbytes, np.uint8)
    parts = [slice(at, min(at + SLAB, made.size)) for at in range(0, made.size, SLAB)]
    with frame.device:
        rooms = [pinned(min(SLAB, made.size)) for _ in parts[:2]]
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        copied = []
        for i, part in enumerate(parts):
            room = rooms[i % 2][: part.stop - part.start]
            frame[part].get(stream=stream, out=room, blocking=False)
            copied.append((stream.record(), room, part))
            if i:
                _take(made, *copied[i - 1])
        _take(made, *copied[-1])
    return made


def _take(made: np.ndarray, copied: Any, room: np.ndarray, part: slice) -> None:
    copied.synchronize()
    made[part] = room


def pinned(nbytes: int) -> np.ndarray:
    """Room that the GPU copies into by itself; CuPy keeps it for the next."""
    cupy = cupy_module()

    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


# -- what is received ----------------------------------------------------------------------------


def _of_device_frame(header: dict[str, Any], frames: list[Any]) -> Any:
    cupy = cupy_module()

    dtype = as_dtype(header["dtype"])
    if frames:
        x = cupy.ndarray(header["shape"], dtype, cupy.asarray(frames[0]).data)
    else:
        x = cupy.empty(header["shape"], dtype)
    x = x.transpose(np.argsort(header["axes"]).tolist())
    return to_host(x) if _on_host else x


def _of_frame(header: dict[str, Any], frames: list[Any]) -> Any:
    if _on_host:
        return _host_array(header, frames)
    cupy = cupy_module()

    received = [np.frombuffer(frame, np.uint8) for frame in frames]
    rooms = [cupy.empty(each.nbytes, np.uint8) for each in received]
    for room, each in zip(rooms, received, strict=True):
        room.set(each)
    return _of_device_frame(header, rooms)


def _host_array(header: dict[str, Any], frames: list[Any]) -> np.ndarray:
    dtype, shape = as_dtype(header["dtype"]), header["shape"]
    if not frames:
        x = np.empty(shape, dtype)
    else:
        x = np.frombuffer(frames[0], np.uint8).view(dtype).reshape(shape)
        x = np.require(x, requirements=["A", "W"])
    return x.transpose(np.argsort(header["axes"]).tolist())


def _unpickled(host: np.ndarray) -> Any:
    if _on_host:
        return host
    cupy = cupy_module()

    return cupy.asarray(host)
