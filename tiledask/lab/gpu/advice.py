"""Advice for a failing line: the first one names the layer in which to look."""

from typing import Any

__all__ = ["meaning", "shared"]

_WORDS = {
    "probe": {
        "": "CuPy and the driver do not agree, and none of our kernels has run: `tiledask doctor` "
        "says which version does not fit"
    },
    "arrays": {
        "": "CuPy's own arrays of this type, not a kernel: go through integers of the same "
        "width, .view('u2')"
    },
    "map": {
        "": "the driver refuses a tensor map: its 128 bytes lie on multiples of 64, its strides "
        "are multiples of 16"
    },
    "one tile": {
        "raised": "a launch is refused: parameters, or tensor maps; try STAGED=0, which has none "
        "for C",
        "hung": "a barrier waits for bytes that never come: the expected bytes, or the box of a "
        "tensor map",
        "": "one tile in one stage: the descriptors, the swizzle or the fragments of the result",
    },
    "ring": {"": "the ring of stages wraps here for the first time: the phases of its barriers"},
    "cluster": {
        "": "two blocks share what they load: the multicast mask, or how many arrivals empty a "
        "stage; go on with cluster 1"
    },
    "many tiles": {
        "": "a block computes its second tile here: phases from tile to tile, or panels of C "
        "that are used again too early"
    },
    "ragged": {"": "boxes hang over the edge here: padding, or which rows and columns are stored"},
    "edges": {"": "only with margins: padding, or which rows and columns are stored"},
    "layouts": {
        "": "an operand by columns: leading and stride offsets of its descriptor exchanged, or "
        "its transposition bit"
    },
    "batches": {"": "the third dimension: strides from product to product"},
    "epilogue": {"": "alpha, beta, bias and GELU are applied here, when a tile is done"},
    "repeat": {
        "": "the same product differs from run to run: a race; repeat it with cluster 1, then "
        "with STAGED=0"
    },
    "sanitizer": {"": "compute-sanitizer names the address and the line of the kernel above"},
}
"""Step -> how it failed -> what to look at; "" is for every other way to fail."""

_FACTS = ("kernel", "step", "precision", "orders", "epilogue", "cluster", "stages", "workers")


def meaning(row: dict[str, Any]) -> str:
    """Where to look after this line failed; empty if nothing is known of its step."""
    words = _WORDS.get(row.get("step", ""), {})
    return words.get(row.get("how", ""), words.get("", ""))


def shared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Fact -> value that the failing rows of ``rows`` agree in, and not all of the others.

    >>> rows = [{"state": "wrong", "orders": "CF"}, {"state": "right", "orders": "CC"}]
    >>> shared(rows)
    {'orders': 'CF'}
    """
    bad = [row for row in rows if row["state"] in ("wrong", "failed")]
    good = [row for row in rows if row["state"] in ("right", "timed")]
    found = {}
    for name in _FACTS:
        values, others = ({str(row[name]) for row in of if name in row} for of in (bad, good))
        if len(values) == 1 and others - values:
            found[name] = values.pop()
    return found
