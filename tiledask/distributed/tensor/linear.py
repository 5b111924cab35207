"""Linear layers by columns and by rows: one after the other, they need a single sum.

column   x [.., in] --w[:, mine]--> y [.., mine]                   dx is a sum over ranks
row      x [.., mine] --w[mine, :]--> partial sum of y [.., out]   y is a sum over ranks
"""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.elementwise import ONCE
from tiledask.distributed.tensor.f_g import entering, leaving
from tiledask.distributed.tensor.layer_programs import KeptLayer, LayerRule, backward, forward
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, Weights
from tiledask.distributed.tensor.propagate import propagate, refuse
from tiledask.plan.products.placement import Partial, Placement, Shard
from tiledask.plan.products.shards import Shards

__all__ = [
    "OF_A_SUM",
    "by_columns",
    "by_rows",
    "column_linear",
    "column_linear_grad",
    "row_linear",
    "row_linear_grad",
]

AS_Y = "it is placed as y is"
OF_A_SUM = (
    f"{AS_Y}. The gradient of a partial sum is that of the sum itself: an all_reduce of it would "
    "make dw t times too large"
)
"""Why dy must be placed as y is, where rows of a matrix made a sum."""
COLUMNS = (
    "w and b are sharded along their columns, shard(group, w, 1) and shard(group, b, 0), and take "
    "all of x: sum a Partial first, by g(group, x); where x is sharded along its columns use "
    "row_linear, or gathered(group, x)"
)
ROWS = (
    "every rank has its own rows of w, shard(group, w, 0), which multiply its own columns of x: "
    "take shard(group, x, -1), or column_linear; b is on every rank, added once, after the sum"
)


def column_linear(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    *,
    regather: bool = False,
    name: str = "column_linear",
) -> tuple[Placed, KeptLayer]:
    """(y [..., out] sharded along its columns, kept) for w [in, out] and b [out], sharded so.

    x [..., in] is on every rank, or sharded along its tokens: then it is gathered, and with
    ``regather`` only this rank's tokens are kept and they are gathered again in the backward. An
    x that is sharded along its columns is refused. ``name`` labels the collectives.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import replicate, shard
    >>> def program(rank):
    ...     group = rank.group()
    ...     w = shard(group, np.arange(6.0).reshape(2, 3), 1)
    ...     return column_linear(group, replicate(np.ones((1, 2))), w)[0].local.tolist()
    >>> run_threads(program, 2).results
    [[[3.0, 5.0]], [[7.0]]]
    """
    return forward(_columns, group, (x,), {"w": w, "b": b}, regather, name)


def column_linear_grad(
    group: Group, dy: Placed, kept: KeptLayer, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, placed as x was, dw and db, placed as w and b are); so of `row_linear`."""
    dx, grads = backward(group, dy, kept, {"w": w, "b": b})
    return dx, grads["w"], grads["b"]


def row_linear(
    group: Group,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    *,
    to: Placement = EVERYWHERE,
    shards: Shards | None = None,
    name: str = "row_linear",
) -> tuple[Placed, KeptLayer]:
    """(y [..., out], kept) for x sharded along its columns as w [in, out] is along its rows.

    ``to``: Replicate(), or Shard(dim) of the tokens (evenly, unless ``shards`` says). b [out] is on
    every rank, and is added once, after the sum. An x that every rank has in full is refused.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> from tiledask.distributed.tensor.placed import shard
    >>> def program(rank):
    ...     group = rank.group()
    ...     x, w = shard(group, np.ones((1, 3)), 1), shard(group, np.ones((3, 2)), 0)
    ...     return row_linear(group, x, w)[0].local.tolist()
    >>> run_threads(program, 2).results
    [[[3.0, 3.0]], [[3.0, 3.0]]]
    """
    return forward(_rows, group, (x,), {"w": w, "b": b}, to, shards, name)


row_linear_grad = column_linear_grad


# -- what goes together ----------------------------------------------------------------------------


def _columns(
    group: Group, given: tuple[Placed], of: Weights, regather: bool, name: str
) -> LayerRule:
    (x,) = given
    y = by_columns(group, name, x, of["w"], of["b"])
    told: dict[str, Any] = {"unit": "", "names": ("w",), "labels": (name,)}
    return LayerRule("column_linear", y, told, name, AS_Y, x, regather=regather)


def _rows(
    group: Group,
    given: tuple[Placed],
    of: Weights,
    to: Placement,
    shards: Shards | None,
    name: str,
) -> LayerRule:
    y = by_rows(group, name, *given, of["w"], of["b"], to, shards)
    return LayerRule("row_linear", y, {"unit": "", "w": "w", "label": name}, name, OF_A_SUM, y)


def by_columns(group: Group, name: str, x: Placed, w: Placed, b: Placed | None = None) -> Placed:
    """The placement of `column_linear`'s y; PlacementError for what does not go together."""
    propagate(group, name, "*K Kn! n!", COLUMNS, x=x, w=w, b=b)
    entering(group, x)
    return Placed.of(None, Shard(x.ndim - 1), (*x.shape[:-1], w.shape[1]), w.shards)


def by_rows(
    group: Group,
    name: str,
    x: Placed,
    w: Placed,
    b: Placed | None = None,
    to: Placement = EVERYWHERE,
    shards: Shards | None = None,
) -> Placed:
    """The placement of `row_linear`'s y; PlacementError for what does not go together."""
    propagate(group, name, "*k! k!N N", ROWS, x=x, w=w, b=b)
    _, rows = w.split
    if sum(rows.counts) != w.shape[0]:
        refuse(
            name,
            f"w's {w.shape[0]} rows are sharded as {rows}, together {sum(rows.counts)}: "
            f"what several ranks hold would be in the sum several times; give each row one rank",
        )
    y = Placed.of(None, Partial(), (*x.shape[:-1], w.shape[1]))
    y = leaving(group, y, to, shards)
    propagate(group, "add_bias", "*n n", ONCE.format(group.size), x=y, b=b)
    return y
