"""How arrays of a GPU travel and are spilled: their bytes, and the name of their element type.

    worker   array --seen in the order it lies--> bytes --pinned memory--> message or file
    worker   message or file --> bytes of CuPy's --> array
    client   message --> NumPy's array: nothing is ever allocated on the client's GPU

Dask sends the ``typestr`` of CUDA's array interface instead, which is "<V2" for bfloat16: 2
nameless bytes come back.
"""

import copyreg
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from tiledask.tile.backend import as_dtype, cupy_module

__all__ = ["pinned", "register", "to_host"]

SLAB = 2**25
"""Bytes of pinned memory through which an array comes to the host."""

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
    for dispatch in (dask_serialize, dask_deserialize):
        dispatch.register_lazy("cupy", _register)


def _register() -> None:
    cupy = cupy_module()

    # whoever imports it later would put Dask's own in place of ours; it needs RMM or Numba
    with suppress(Exception):
        import distributed.protocol.cupy  # noqa: F401
    dask_serialize.register(cupy.ndarray, _to_frame)
    dask_deserialize.register(cupy.ndarray, _of_frame)
    if not _on_host:  # within other objects, which are pickled
        copyreg.pickle(cupy.ndarray, _pickled)


def to_host(x: Any) -> np.ndarray:
    """A copy of the CuPy array ``x`` in host memory, its axes in the same order there."""
    header, frames = _to_frame(x)
    return _host_array(header, frames)


# -- what is sent --------------------------------------------------------------------------------


def _to_frame(x: Any) -> tuple[dict[str, Any], list[Any]]:
    """(what is needed to see the array again, its bytes: none make no frame).

    They are copied on the device only if they don't lie together.
    """
    cupy = cupy_module()
    axes = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))  # stable: C order stays
    # not dense.shape, which has one dimension for an array of none
    header = {"shape": [x.shape[a] for a in axes], "dtype": x.dtype.name, "axes": axes}
    if not x.size:
        return header, []
    with x.device:
        dense = cupy.ascontiguousarray(x.transpose(axes))
        frame = cupy.ndarray((dense.nbytes,), np.uint8, dense.data)
    return header, [_host_bytes(frame).data]


def _pickled(x: Any) -> tuple[Any, ...]:
    return _unpickled, (to_host(x),)


def _host_bytes(frame: Any) -> np.ndarray:
    """The bytes of ``frame`` in host memory, by way of pinned memory in slabs."""
    made = np.empty(frame.nbytes, np.uint8)
    with frame.device:
        slab = pinned(min(SLAB, made.size))
        for at in range(0, made.size, SLAB):
            part = frame[at : at + SLAB]
            part.get(out=slab[: part.size])
            made[at : at + SLAB] = slab[: part.size]
    return made


def pinned(nbytes: int) -> np.ndarray:
    """Room that the GPU copies into by itself; CuPy keeps it for the next."""
    cupy = cupy_module()

    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


# -- what is received ----------------------------------------------------------------------------


def _of_frame(header: dict[str, Any], frames: list[Any]) -> Any:
    host = _host_array(header, frames)
    return host if _on_host else _on_device(host)


def _host_array(header: dict[str, Any], frames: list[Any]) -> np.ndarray:
    dtype, shape = as_dtype(header["dtype"]), header["shape"]
    if not frames:
        x = np.empty(shape, dtype)
    else:
        x = np.frombuffer(frames[0], np.uint8).view(dtype).reshape(shape)
        x = np.require(x, requirements=["A", "W"])
    return x.transpose(np.argsort(header["axes"]).tolist())


def _unpickled(host: np.ndarray) -> Any:
    return host if _on_host else _on_device(host)


def _on_device(host: np.ndarray) -> Any:
    """``host`` on the GPU, its axes in the same order there."""
    cupy = cupy_module()
    axes = sorted(range(host.ndim), key=lambda axis: -abs(host.strides[axis]))
    made = cupy.empty([host.shape[a] for a in axes], host.dtype)
    if host.size:
        dense = np.ascontiguousarray(host.transpose(axes)).reshape(-1).view(np.uint8)
        cupy.ndarray((host.nbytes,), np.uint8, made.data).set(dense)
    return made.transpose(np.argsort(axes).tolist())
