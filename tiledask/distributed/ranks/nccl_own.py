"""NCCL's own collectives: algorithm="nccl" of arrays on GPUs.

NCCL chooses the way itself, so nobody here counts the bytes. A record of such a call has what
NVIDIA's nccl-tests reckon with (doc/PERFORMANCE.md): those of a ring, and it says that they are
computed. `Ranks.traffic`, who sent to whom, is without them. Sums are added in NCCL's order: to the
last bit they need not be those of the other algorithms.
"""

from collections.abc import Sequence
from typing import Any

from tiledask.distributed.ranks.collectives import check_operation, sum_dtype
from tiledask.distributed.ranks.exchange import Exchange
from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import algorithms
from tiledask.plan.collectives.cost import even
from tiledask.tile import nccl
from tiledask.tile.backend import as_dtype, name_of

__all__ = ["KINDS", "all_gather", "all_reduce", "broadcast", "check", "reduce", "reduce_scatter"]

KINDS = "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"


def check(kind: str, array: Any, devices: Any, ranks: int) -> None:
    """Raise ConfigError if NCCL itself has no ``kind`` for ``array`` among ``ranks``; one rank
    alone needs none."""
    others = ", ".join(algorithms)
    if kind not in KINDS:
        raise ConfigError(
            f"NCCL itself has no {kind}, only {', '.join(KINDS)}; for {kind} there are {others}"
        )
    if ranks == 1:
        return
    if devices is None:
        raise ConfigError(
            f"algorithm='nccl' needs a run over NCCL, and this is none: with transport='nccl' "
            f"run_ranks says why; {others} go without"
        )
    if array is not None and not nccl.on_gpu(array):
        raise ConfigError(
            f"algorithm='nccl' takes arrays of GPUs, got one in host memory; rank.on_device(x) "
            f"moves it there, and {others} go without"
        )


def all_reduce(exchange: Exchange, x: Any, op: str, wide: bool) -> Any:
    """The sum on every rank, as `Group.all_reduce`."""
    given = _partial(exchange, x, op, wide)
    out = nccl.empty(given.shape, given.dtype)
    exchange.devices.collective(exchange, given, out, op)
    return out.astype(x.dtype, copy=False)


def reduce(exchange: Exchange, x: Any, op: str, wide: bool, root: int) -> Any:
    """The sum on ``root``, as `Group.reduce`; what other ranks than ``root`` get means nothing."""
    given = _partial(exchange, x, op, wide, root)
    out = nccl.empty(given.shape, given.dtype)
    exchange.devices.collective(exchange, given, out, op, root)
    return out.astype(x.dtype, copy=False)


def reduce_scatter(
    exchange: Exchange, x: Any, dim: int, extents: Sequence[int], op: str, wide: bool
) -> Any:
    """This rank's part of the sum, as `Group.reduce_scatter`, for equal ``extents``."""
    if len(set(extents)) > 1:
        raise ConfigError(
            f"NCCL's own reduce_scatter gives every rank as much, and here they get "
            f"{tuple(extents)} along dim {dim}; algorithm='ring' takes any extents"
        )
    given = nccl.contiguous(_partial(exchange, x, op, wide).swapaxes(0, dim))
    out = nccl.empty((extents[0], *given.shape[1:]), given.dtype)
    exchange.devices.collective(exchange, given, out, op)
    return nccl.contiguous(out.swapaxes(0, dim)).astype(x.dtype, copy=False)


def all_gather(exchange: Exchange, x: Any, dim: int) -> Any:
    """All ranks' arrays joined, as `Group.all_gather`, of arrays of one shape."""
    n = len(exchange.members)
    exchange.terms = (x.size,) * n, x.dtype.itemsize
    given = nccl.contiguous(x.swapaxes(0, dim))
    out = nccl.empty((n * given.shape[0], *given.shape[1:]), x.dtype)
    exchange.devices.collective(exchange, given, out)
    return nccl.contiguous(out.swapaxes(0, dim))


def broadcast(exchange: Exchange, x: Any, root: int) -> Any:
    """The root's array on every rank, as `Group.broadcast`."""
    facts = None if x is None else (name_of(x.dtype), x.shape)
    name, shape = exchange.devices.meet(exchange, lambda: facts, root)
    out = nccl.empty(shape, as_dtype(name))
    exchange.dtype, exchange.payload = out.dtype, out.nbytes
    exchange.terms = even(out.size, len(exchange.members)), out.dtype.itemsize, root
    exchange.devices.collective(exchange, out if x is None else nccl.contiguous(x), out, root=root)
    return out


def _partial(exchange: Exchange, x: Any, op: str, wide: bool, root: int = 0) -> Any:
    """``x`` as NCCL adds it; ``wide`` halves travel as float32."""
    check_operation(op)
    sums = sum_dtype(x.dtype, wide)
    nccl.check_dtype(sums)
    exchange.terms = even(x.size, len(exchange.members)), sums.itemsize, root
    return nccl.contiguous(x.astype(sums, copy=False))
