"""Assign attention heads to ranks so that the fullest has the least to do; by arithmetic, and run.

A rank computes k and v of every kv head that its query heads look at. A kv head whose query heads
are on two ranks is computed twice.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, GREY, ORANGE, canvas, styled
from tiledask.plan.collectives.shards import deal_heads
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as tile

__all__ = ["balanced_heads", "head_flops"]

Assignment = tuple[tuple[int, ...], ...]
"""Query heads of each rank."""


class _Task(NamedTuple):
    query: int
    kv: int
    ranks: int
    width: int
    """Columns of a head."""
    hidden: int
    tokens: int

    @property
    def share(self) -> int:
        """Query heads that look at one kv head."""
        return self.query // self.kv

    def kv_of(self, heads: Sequence[int]) -> list[int]:
        """The kv heads that a rank with these query heads needs."""
        return sorted({head // self.share for head in heads})

    def flops(self, heads: Sequence[int]) -> int:
        query, kv = head_flops(self.hidden, self.width, self.tokens)
        return query * len(heads) + kv * len(self.kv_of(heads))

    @property
    def even_share(self) -> float:
        """FLOP of a rank, were nothing computed twice and all split in equal parts."""
        return self.flops(range(self.query)) / self.ranks


def head_flops(hidden: int, width: int, tokens: int) -> tuple[int, int]:
    """(FLOP of a query head, of a kv head) in a forward pass over ``tokens`` without a mask.

    A query head has its columns of wq and rows of wo, and two products with all tokens; a kv head
    its columns of wk and wv.

    >>> head_flops(hidden=640, width=64, tokens=128)
    (25165824, 20971520)
    """
    projection = 2 * tokens * hidden * width
    return 2 * projection + 4 * tokens * tokens * width, 2 * projection


def balanced_heads(
    query: int = 10,
    kv: int = 2,
    ranks: int = 4,
    *,
    width: int = 64,
    hidden: int = 640,
    tokens: int = 128,
) -> Exercise:
    """Assign ``query`` heads, which share ``kv`` kv heads, to ``ranks`` ranks.

    The answer is a list of query heads for each rank. It is run, forward and backward, and
    compared with one device; the least imbalance is found by trying every assignment.
    """
    task, kv_heads = _Task(query, kv, ranks, width, hidden, tokens), kv
    least = _least(task)
    one, shared_one = (f"{flops / 1e6:.1f}" for flops in head_flops(hidden, width, tokens))

    def measure(assigned: Assignment) -> list[Target]:
        worst, copies = _worth(assigned, task)
        best = round(least[0], 4)
        work = list(map(task.flops, assigned))
        full, free = work.index(max(work)), work.index(min(work))
        fullest = (
            f"rank {full} has {_count(len(assigned[full]), 'query head')} and "
            f"{_count(len(task.kv_of(assigned[full])), 'kv head')}, rank {free} has "
            f"{_count(len(assigned[free]), 'query head')}"
        )
        holders = {
            kv: [r for r, heads in enumerate(assigned) if kv in task.kv_of(heads)]
            for kv in range(kv_heads)
        }
        often = max(holders, key=lambda kv: len(holders[kv]))
        shared = f"kv head {often} is computed on ranks {', '.join(map(str, holders[often]))}"
        return [
            Target("fullest rank / even share", best, round(worst, 4), best, where=fullest),
            Target("kv heads computed, all ranks", least[1], copies, least[1], where=shared),
            Target("wrong results", 0, _wrong(assigned, task), 0),
        ]

    def figure(answer: Any) -> draw.Figure:
        if answer is None:
            split, _ = deal_heads(query, kv, ranks)
            assigned = tuple(tuple(i for at in part for i in range(*at)) for part in split.parts)
            return _bars(assigned, task, " (not attempted: in a row, as even as can be)")
        return _bars(answer, task, "", least[0])

    return Exercise(
        name="balanced heads",
        question=(
            f"Assign {query} query heads, which share {kv} kv heads, to {ranks} ranks. With h = "
            f"{hidden}, heads of {width} columns and {tokens} tokens a query head takes {one} "
            f"MFLOP and a kv head {shared_one}; a rank computes each kv head that its query heads "
            f"look at. The fullest rank may have at most {least[0]:.4f} times an even share, with "
            f"at most {least[1]} kv heads computed in all, and 0 wrong results."
        ),
        form=(
            f"a list of query heads for each of {ranks} ranks, every head of 0..{query - 1} once, "
            f"for example {[list(map(int, p)) for p in np.array_split(range(query), ranks)]}"
        ),
        hints=(
            f"Query heads 0 to {task.share - 1} look at kv head 0, the next {task.share} at the "
            f"next. Which rank in the drawing looks at two?",
            "A rank with heads of two kv heads computes both: give every rank heads of one only.",
            "Then share the query heads of each kv head out over ranks of its own, as evenly as "
            "can be.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: _assigned(answer, task),
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _assigned(answer: Any, task: _Task) -> Assignment | None:
    try:
        assigned = tuple(tuple(part) for part in answer)
    except TypeError:
        assigned = ()
    heads = [i for part in assigned for i in part]
    if len(assigned) != task.ranks or not all(map(is_whole, heads)):
        return None
    for head in sorted({*range(task.query), *heads}):
        on = [str(r) for r, part in enumerate(assigned) if head in part]
        if head not in range(task.query):
            raise PlacementError(
                f"rank {on[0]} is given head {head}; the heads are 0 to {task.query - 1}"
            )
        if heads.count(head) != 1:
            where = f"ranks {' and '.join(on)}" if len(on) > 1 else f"rank {''.join(on)} twice"
            raise PlacementError(
                f"query head {head} is on {where if on else 'no rank'}; every head has one place"
            )
    return assigned


def _worth(assigned: Assignment, task: _Task) -> tuple[float, int]:
    """(work of the fullest rank over the even share, kv heads that are computed)."""
    copies = sum(len(task.kv_of(heads)) for heads in assigned)
    return max(map(task.flops, assigned)) / task.even_share, copies


@lru_cache(maxsize=8)
def _least(task: _Task) -> tuple[float, int]:
    """The best worth there is: it matters only how many heads of each kv head a rank has."""
    query, kv = head_flops(task.hidden, task.width, task.tokens)

    def worth(counts: Sequence[Sequence[int]]) -> tuple[float, int]:
        """The worth of ``counts``: for each kv head, how many of its query heads every rank has."""
        of_ranks = list(zip(*counts, strict=True))
        most = max(query * sum(mine) + kv * sum(n > 0 for n in mine) for mine in of_ranks)
        return most / task.even_share, sum(n > 0 for mine in of_ranks for n in mine)

    return min(map(worth, product(_shared_out(task.share, task.ranks), repeat=task.kv)))


def _shared_out(count: int, ranks: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``count`` as a sum of ``ranks`` numbers."""
    if ranks == 1:
        yield (count,)
        return
    for first in range(count + 1):
        for rest in _shared_out(count - first, ranks - 1):
            yield (first, *rest)


# -- run ------------------------------------------------------------------------------------------


def _wrong(assigned: Assignment, task: _Task) -> int:
    """How many of y and dx are not those of one device, if the ranks' terms are summed."""
    task = task._replace(width=4, hidden=20, tokens=6)  # of small heads the same is true
    heads = tile.Heads(task.query, task.kv, task.width)
    made, rng = tile.self_attention_parameters(task.hidden, heads), np.random.default_rng(3)
    weights = {n: rng.normal(size=p.shape) / task.hidden**0.5 for n, p in made.items()}
    x, dy = rng.normal(size=(2, 1, task.tokens, task.hidden))
    y, kept = tile.self_attention(x, weights, heads)
    expected = y, tile.self_attention_grad(dy, kept, weights)[0]

    def program(rank: Any) -> tuple[np.ndarray, np.ndarray]:
        mine = assigned[rank.index]
        terms = (np.zeros_like(x), np.zeros_like(x))
        if mine:
            kv = task.kv_of(mine)
            of = tuple(kv.index(head // task.share) for head in mine)
            here = tile.Heads(len(mine), len(kv), task.width, of)
            cut = _cut(weights, mine, kv, task.width)
            y, kept = tile.self_attention(x, cut, here)
            terms = y, tile.self_attention_grad(dy, kept, cut)[0]
        return tuple(rank.group().all_reduce(term) for term in terms)

    done = run_threads(program, task.ranks, timeout=240)
    return sum(
        not all(np.allclose(r[i], value, rtol=0, atol=1e-9) for r in done.results)
        for i, value in enumerate(expected)
    )


def _cut(weights: dict, query: Sequence[int], kv: Sequence[int], width: int) -> dict:
    """The columns of wq, wk and wv and the rows of wo that belong to these heads."""
    of_q, of_kv = (
        np.concatenate([np.arange(width * i, width * (i + 1)) for i in heads])
        for heads in (query, kv)
    )
    into = {name: weights[name][:, at] for name, at in (("wq", of_q), ("wk", of_kv), ("wv", of_kv))}
    return into | {"wo": weights["wo"][of_q]}


@styled
def _bars(assigned: Assignment, task: _Task, note: str, most: float = float("inf")) -> draw.Figure:
    """FLOP of each rank; what is above ``most`` times an even share is hatched, and a kv head
    beside another on its rank is framed."""
    worst, copies = _worth(assigned, task)
    title = (
        f"{task.query} query heads, {task.kv} kv heads on {task.ranks} ranks{note}\n"
        f"the fullest has {worst:.2f} times an even share; {copies} kv heads are computed"
    )
    figure = canvas(1.3 + 0.42 * task.ranks, title)
    axes, (query, kv) = figure.subplots(), head_flops(task.hidden, task.width, task.tokens)
    for rank, heads in enumerate(assigned):
        asked = query * len(heads) / 1e6
        shared = kv * len(task.kv_of(heads)) / 1e6
        parts = [(f"rank {rank} query", asked, BLUE), (f"rank {rank} kv", shared, ORANGE)]
        draw.stack(axes, rank, parts, 0.7, linewidth=0)
        count = len(task.kv_of(heads))
        draw.mark_excess(axes, rank, most * task.even_share / 1e6, asked + shared, 0.7)
        if count > 1 and most < float("inf"):
            draw.mark_box(axes, (asked, rank - 0.35, shared, 0.7), f"rank {rank} kv")
        words = f"query {', '.join(map(str, heads))}; kv {', '.join(map(str, task.kv_of(heads)))}"
        end = (max(asked + shared, task.even_share / 1e6), rank)  # right of the dashed line
        draw.note(axes, end, words if heads else "nothing", (4, 0), 8, **draw.BEHIND)
    even = {"color": GREY, "linestyle": "--", "linewidth": 1}
    draw.limit_line(axes, task.even_share / 1e6, **even)
    axes.set_yticks(range(task.ranks), [f"rank {rank}" for rank in range(task.ranks)])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max(max(map(task.flops, assigned)), task.even_share) / 1e6)
    axes.set_xlabel("MFLOP, forward")
    kinds = [draw.patch_entry("query heads", BLUE), draw.patch_entry("kv heads", ORANGE)]
    draw.legend(figure, [*kinds, draw.line_entry("even share", GREY, linestyle="--", linewidth=1)])
    return figure
