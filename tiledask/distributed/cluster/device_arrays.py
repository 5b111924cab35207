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

__all__ = ["register"]

SLAB = 2**25
"""Bytes of pinned memory through which an array comes to the host; CuPy keeps it for the next."""

_on_host = False
"""Whether arrays that come to this process stay in host memory."""


def register(*, on_host: bool) -> None:
    """Have Dask send, receive and spill CuPy's arrays in this process as it is done here.

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
    dask_serialize.register(cupy.ndarray, _sent)
    arrived = lambda header, frames: _arrived(_on_the_host(header, frames))  # noqa: E731
    dask_deserialize.register(cupy.ndarray, arrived)
    if not _on_host:  # within other objects, which are pickled
        copyreg.pickle(cupy.ndarray, lambda x: (_arrived, (_on_the_host(*_sent(x)),)))


def _axes(x: Any) -> list[int]:
    """Its axes in the order in which they lie in memory."""
    return sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))  # stable: C order stays


def _sent(x: Any) -> tuple[dict[str, Any], list[Any]]:
    """(what is needed to see the array again, its bytes: none make no frame).

    They are copied on the device only if they don't lie together, and come by pinned memory, which
    the GPU copies into by itself.
    """
    cupy, axes = cupy_module(), _axes(x)
    header = {"shape": [x.shape[a] for a in axes], "dtype": x.dtype.name, "axes": axes}
    if not x.size:
        return header, []
    with x.device:
        dense = cupy.ascontiguousarray(x.transpose(axes))
        flat = cupy.ndarray((dense.nbytes,), np.uint8, dense.data)
        made, size = np.empty(flat.nbytes, np.uint8), min(SLAB, flat.nbytes)
        slab = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
        for at in range(0, made.size, SLAB):
            part = flat[at : at + SLAB]
            part.get(out=slab[: part.size])
            made[at : at + SLAB] = slab[: part.size]
    return header, [made.data]


def _on_the_host(header: dict[str, Any], frames: list[Any]) -> np.ndarray:
    """The array that was sent, in host memory, its axes in the same order there."""
    dtype, shape = as_dtype(header["dtype"]), header["shape"]
    if not frames:
        x = np.empty(shape, dtype)
    else:
        x = np.frombuffer(frames[0], np.uint8).view(dtype).reshape(shape)
        x = np.require(x, requirements=["A", "W"])
    return x.transpose(np.argsort(header["axes"]).tolist())


def _arrived(host: np.ndarray) -> Any:
    """``host``, or the same on the GPU, its axes in the same order there."""
    if _on_host:
        return host
    cupy, axes = cupy_module(), _axes(host)
    made = cupy.empty([host.shape[a] for a in axes], host.dtype)
    if host.size:
        dense = np.ascontiguousarray(host.transpose(axes)).reshape(-1).view(np.uint8)
        cupy.ndarray((host.nbytes,), np.uint8, made.data).set(dense)
    return made.transpose(np.argsort(axes).tolist())
