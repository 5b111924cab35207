"""4: Y = X A with an A too large for one GPU. Five methods; those that cut A are the answer."""

from collections.abc import Sequence
from math import prod
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import size
from tiledask.lab.puzzles.fields import whole as whole_number
from tiledask.lab.questions.products.split_linear import METHODS, grid_of, whole_of
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives import expected, layers
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.panels import panels
from tiledask.plan.products.placement import split
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

ITEM = 4
"""Bytes of a float32."""


def _sent(rows: int, inner: int, columns: int, gpus: int) -> dict[str, tuple[int, int]]:
    """Method -> (forward, backward): bytes that all GPUs send together, by formula.

    Rings: an all-reduce of s bytes over n sends 2 (n - 1) s, a broadcast or a sum (n - 1) s.
    """
    x, a, y = (ITEM * m * n for m, n in ((rows, inner), (inner, columns), (rows, columns)))
    p, q = grid_of(gpus)
    panels = (q - 1) * x + (p - 1) * a
    ring = 2 * (gpus - 1)
    sent = [(0, ring * x), (ring * y, 0), (0, ring * a), (y, y), (panels, 2 * panels)]
    return dict(zip(METHODS, sent, strict=True))


def _planned(rows: int, inner: int, columns: int, gpus: int) -> list[tuple[int, int]]:
    """The same, summed over the messages of the collectives that the package plans."""

    def of_calls(calls: Any) -> int:
        return sum(layers.bytes_by_rank(calls, gpus, ITEM)[0])

    def of_costs(costs: Any) -> int:
        return sum(sum(each.cost.sent) for each in costs)

    def of_panels(kinds: Sequence[str]) -> int:
        """Of all panels: along each row of the grid of X's, along each column of A's."""
        p, q = grid_of(gpus)
        total = 0
        for panel in panels(inner, p, q):
            along = [(rows, p, q, panel.column), (columns, q, p, panel.row)]
            for kind in kinds:
                for extent, groups, n, root in along:
                    for start, stop in split(0, extent, groups):
                        counts = even((stop - start) * panel.extent, n)
                        each = cost(kind, default(kind, n), counts, ITEM, root)
                        total += sum(each.sent)
        return total

    by_columns = layers.column_linear(layers.Stream(1, rows, inner, ranks=gpus))
    by_rows = layers.row_linear(layers.Stream(1, rows, columns, ranks=gpus))
    on = of_costs(expected.transfer("Y", 0, 1, ITEM * rows * columns, gpus))
    copies = of_costs(expected.all_reduced("dA", inner * columns, gpus, ITEM))
    return [
        (of_calls(by_columns.forward), of_calls(by_columns.backward)),
        (of_calls(by_rows.forward), of_calls(by_rows.backward)),
        (0, copies),
        (on, on),
        (of_panels(["broadcast"]), of_panels(["broadcast", "reduce"])),
    ]


def work(rows: int, inner: int, columns: int, gpus: int, room: int) -> WorkedAnswer:
    """What each method holds of A and sends, and which of them bring A below the room."""
    if min(rows, inner, columns) < gpus:
        raise ConfigError(
            f"rows, inner and columns are cut over {gpus} GPUs, and the smallest is "
            f"{min(rows, inner, columns)}; give each of them {gpus} or more"
        )
    whole_a = ITEM * inner * columns
    lines = [
        f"A is {inner} x {columns} x {ITEM} B = {format_bytes(whole_a)}; a GPU has "
        f"{format_bytes(room)} for it"
    ]
    held, sent = {}, _sent(rows, inner, columns, gpus)
    for name, method in METHODS.items():
        block = method.cut(inner, columns, gpus)
        held[name] = ITEM * prod(block)
        forward, backward = sent[name]
        lines.append(
            f"{name}: {block[0]} x {block[1]} x {ITEM} B = {format_bytes(held[name])} of A on the "
            f"fullest GPU; forward {method.forward}, {format_bytes(forward)}; backward "
            f"{method.backward}, {format_bytes(backward)}"
        )
    fitting = [name for name, nbytes in held.items() if nbytes <= room]
    cut = [name for name, nbytes in held.items() if nbytes < whole_a]
    lines.append(
        f"bytes are those of all {gpus} GPUs together: an all-reduce of s bytes sends "
        f"2 ({gpus} - 1) s, a broadcast or a sum ({gpus} - 1) s"
    )
    verdict = f"{', '.join(fitting)} fit {format_bytes(room)}" if fitting else "none fits"
    if len(fitting) == len(METHODS):
        verdict = f"all fit {format_bytes(room)}: A is not too large"
    return WorkedAnswer(
        f"Those that cut A itself: {', '.join(cut)}. Splitting X, or giving each GPU layers of its "
        f"own, leaves all {format_bytes(whole_a)} of A on a GPU. Of {len(METHODS)}, {verdict}.",
        lines,
        {"bytes of A": held, "fit": fitting, "sent": {k: list(v) for k, v in sent.items()}},
    )


def run(cluster: Cluster, rows: int, inner: int, columns: int, gpus: int, room: int) -> Comparison:
    """Every method on ranks, forward and backward, with whole numbers: the bits must agree."""
    sizes = (rows, inner, columns, gpus)
    whole, mesh = whole_of(rows, inner, columns), td.Mesh(cluster, grid_of(gpus))
    claims = []
    for (name, method), said, planned in zip(
        METHODS.items(), _sent(*sizes).values(), _planned(*sizes), strict=True
    ):
        ranks = td.run_ranks(method.program, mesh, whole)
        held = ITEM * prod(method.cut(inner, columns, gpus))
        fullest = max(nbytes for nbytes, _ in ranks.results)
        counted = [sum(r.sent for r in ranks.records.where(way)) for way in ("forward", "backward")]
        claims += [
            Claim(f"{name}: A on the fullest GPU", held, None, fullest, "bytes", "equal"),
            Claim(f"{name}: A fits", held <= room, None, fullest <= room, rule="equal"),
            Claim(f"{name}: sent forward", said[0], planned[0], counted[0], "bytes", "equal"),
            Claim(f"{name}: sent backward", said[1], planned[1], counted[1], "bytes", "equal"),
            Claim(
                f"{name}: Y, dX, dA have one device's bits",
                measured=all(same for _, same in ranks.results),
                rule="true",
            ),
        ]
    return Comparison(f"Five methods for Y = X A on {gpus} workers", claims)


QUESTION = CourseQuestion(
    number=4,
    title="Analyzing Distributed Matrix Multiplication Strategies",
    asked="Y = X A, {rows} x {inner} by {inner} x {columns}, is to be computed on {gpus} GPUs with "
    "{room} each for A. Which methods make it possible, and what do they send?",
    inputs={
        "rows": Input(64, 128, whole_number(1, 10**6), "rows of X, the tokens"),
        "inner": Input(512, 256, whole_number(1, 10**6), "columns of X, and rows of A"),
        "columns": Input(384, 768, whole_number(1, 10**6), "columns of A"),
        "gpus": Input(2, 4, whole_number(2, 64), "GPUs"),
        "room": Input(500_000, 300_000, size, "bytes for A on a GPU"),
    },
    work=work,
    run=run,
    workers=lambda gpus, **_: gpus,
    largest_run={"rows": 4096, "inner": 4096, "columns": 4096},
)
