"""How arrays of a GPU travel and are spilled: as NumPy's, which know the name of their type.

    worker   array --copied to host memory--> Dask's message or file --> array
    client   message --> NumPy's array: nothing is ever allocated on the client's GPU

Dask sends the ``typestr`` of CUDA's array interface instead, which is "<V2" for bfloat16: 2
nameless bytes come back.
"""

import copyreg
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from distributed.protocol.numpy import deserialize_numpy_ndarray, serialize_numpy_ndarray
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from tiledask.tile.backend import cupy_module

__all__ = ["register"]

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
    array = cupy_module().ndarray

    # whoever imports it later would put Dask's own in place of ours; it needs RMM or Numba
    with suppress(Exception):
        import distributed.protocol.cupy  # noqa: F401
    # in host memory contiguous in C or Fortran order, as it is on the GPU
    dask_serialize.register(array, lambda x: serialize_numpy_ndarray(x.get(order="A")))
    arrived = lambda header, frames: _arrived(deserialize_numpy_ndarray(header, frames))  # noqa: E731
    dask_deserialize.register(array, arrived)
    # within others, which are pickled
    copyreg.pickle(array, lambda x: (_arrived, (x.get(order="A"),)))


def _arrived(host: np.ndarray) -> Any:
    """``host``, or the same on the GPU."""
    return host if _on_host else cupy_module().asarray(host)
