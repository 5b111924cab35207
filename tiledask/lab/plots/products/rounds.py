"""A collective round by round: which chunks a rank has, and how many ranks' numbers are in them."""

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, RED, canvas, lighter, styled
from tiledask.plan.collectives.algorithms import Move, Rounds, rounds

__all__ = ["collective_rounds"]

_MOST = 8
"""Ranks that are drawn."""


@styled
def collective_rounds(
    kind: str = "all_reduce", algorithm: str = "ring", ranks: int = 4
) -> "Figure":
    """A figure with a panel for each round of a reduction: a row per rank, a column per chunk. A
    number says how many ranks' numbers are added up in the chunk; what came in the round is
    framed, on a ring with an arrow from the neighbour it came from."""
    if kind not in ("all_reduce", "reduce_scatter") or not 2 <= ranks <= _MOST:
        raise ConfigError(
            f"collective_rounds draws an all_reduce or reduce_scatter of 2 to {_MOST} ranks, got "
            f"{kind} of {ranks}"
        )
    every = rounds(kind, algorithm, ranks)
    many = 1 + len(every)
    word = kind.replace("_", "-")
    figure = canvas(1.5 + 7.2 / many, f"A {algorithm} {word} of {ranks} ranks")
    panels = figure.subplots(1, many, squeeze=False)[0]
    for axes in panels:
        draw.cells(axes, range(ranks), range(ranks))
        axes.set(aspect="equal", xlabel="chunk")
    panels[0].set_ylabel("rank")
    figure.lay_out()
    held, came = [[1] * ranks for _ in range(ranks)], set()
    for number, axes in enumerate(panels):
        axes.set_title(_name(number, every), fontsize=8.5)
        if number:
            held, came = _after(held, every[number - 1])
        for rank, chunks in enumerate(held):
            for chunk, terms in enumerate(chunks):
                colour = lighter(BLUE, 0.92 * (1 - (terms - 1) / (ranks - 1)))
                at = (chunk - 0.5, rank - 0.5, 1, 1)
                draw.box(axes, at, colour)
                draw.text_in(axes, at, str(terms), colour, 7.5)
                if (rank, chunk) in came:
                    frame = (chunk - 0.45, rank - 0.45, 0.9, 0.9)
                    draw.box(axes, frame, "none", edgecolor=RED, linewidth=1.6, gid="came")
        if number and algorithm == "ring":
            for move in every[number - 1]:
                _arrow(axes, move, ranks)
    entries = [
        draw.patch_entry("all ranks' numbers are in it", BLUE),
        draw.patch_entry("came in this round", "none", edgecolor=RED, linewidth=1.6),
        draw.number_entry("how many ranks' numbers are added up in the chunk"),
    ]
    draw.legend(figure, entries)
    return figure


def _name(number: int, every: Rounds) -> str:
    """Of a panel: which round, and whether what comes is added or kept."""
    if not number:
        return "before"
    return f"round {number}: {'add' if every[number - 1][0].adds else 'keep'}"


def _arrow(axes: "Axes", move: Move, ranks: int) -> None:
    """From the neighbour's chunk to the receiver's, over the edge between them or from outside."""
    up = (move.source - move.destination) % ranks == 1  # from the row below
    outside = abs(move.source - move.destination) > 1  # round the ring: short of the title
    begin, end = 0.85 if outside else 1.05, 0.05
    look = {"connectionstyle": "arc3", "mutation_scale": 7, "linewidth": 1.4, "zorder": 5}
    for chunk in move.chunks:
        x, y, below = chunk + 0.27, move.destination, 1 if up else -1
        at = (x, y + below * begin), (x, y + below * end)
        draw.arrow(axes, *at, RED, gid="from", clip_on=False, **look)


def _after(held: list[list[int]], moves) -> tuple[list[list[int]], set[tuple[int, int]]]:
    """(what each rank has of each chunk after the moves of a round, what came)."""
    new, came = [list(chunks) for chunks in held], set()
    for move in moves:
        for chunk in move.chunks:
            sent = held[move.source][chunk]
            mine = new[move.destination][chunk]
            new[move.destination][chunk] = mine + sent if move.adds else sent
            came.add((move.destination, chunk))
    return new, came
