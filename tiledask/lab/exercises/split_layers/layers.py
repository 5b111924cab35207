"""Split layers over ranks: attention by heads, a feed-forward layer, a loss by classes; all run."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError, RuleError
from tiledask.lab.exercises.on_ranks import run_on_ranks
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREEN, PALE, RED, YELLOW, canvas, styled
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as tile
from tiledask.tile.layers import cross_entropy

__all__ = ["balanced_heads", "f_and_g", "head_flops", "smoothed_loss"]

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

    return Exercise(
        name="balanced heads",
        form=(
            f"a list of query heads for each of {ranks} ranks, every head of 0..{query - 1} once, "
            f"for example {[list(map(int, p)) for p in np.array_split(range(query), ranks)]}"
        ),
        hints=(
            f"Query heads 0 to {task.share - 1} look at kv head 0, the next {task.share} at the "
            f"next. Which rank in a row of ten looks at two?",
            "A rank with heads of two kv heads computes both: give every rank heads of one only.",
            "Then share the query heads of each kv head out over ranks of its own, as evenly as "
            "can be.",
        ),
        measured=measure,
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


Layer = Callable[..., Any]
TOKENS, HIDDEN, INNER, RANKS = (2, 12), 32, 127, (1, 3, 4)
AXES = {"y": None, "dx": None, "dW1": 1, "dW2": 0}
"""What a layer returns, and the axis along which ranks have parts of it; None: all of it."""
MOST = 2 * 2 * 3 * TOKENS[0] * TOKENS[1] * HIDDEN * 8 // 4
"""Bytes that each of 4 ranks sends in two all-reduces of an array such as x, in float64."""
RIGHT, PARTIAL, UNKNOWN = "right", "a partial sum", "?"


def f_and_g() -> Exercise:
    """Write a function (group, x, dy, w1, w2) -> (y, dx, dW1, dW2) of a rank's columns of w1 and
    rows of w2: a feed-forward layer there and back.

    It is run on 1, 3 and 4 ranks, which do not divide the middle; its results are compared with
    those of one device, and what a rank sends is counted.
    """

    def measure(answer: Layer) -> list[Target]:
        wrong, sent = [], 0
        for ranks in RANKS:
            states, sent = _run(answer, ranks)
            wrong += [f"{n} is {s} on {ranks} ranks" for n, s in states.items() if s != RIGHT]
        return [
            Target("wrong results", 0, len(wrong), 0, remarks=wrong[:1]),
            Target("bytes that each of 4 ranks sends", MOST, sent, None),
        ]

    def figure(answer: Any) -> draw.Figure:
        if answer is None:
            return _table({ranks: dict.fromkeys(AXES, UNKNOWN) for ranks in RANKS}, "not attempted")
        return _table({ranks: _run(answer, ranks)[0] for ranks in RANKS}, "of your layer")

    return Exercise(
        name="f and g",
        form=(
            "a function such as def layer(group, x, dy, w1, w2): ..., which returns four arrays, "
            "for example answer = layer"
        ),
        hints=(
            "Ask of each value which of three it is: the same on every rank, this rank's columns, "
            "or a partial sum. draw says it of the four results of any function, so of bare too.",
            "What a rank makes of its own rows of w2 has the terms of these rows alone. And all "
            "ranks used x whole, each for columns of its own: what does that say of dx?",
            "group.all_reduce(value) is the sum of what all ranks bring. One belongs into the way "
            "there, one into the way back; dy needs none, for every rank has all of it.",
        ),
        measured=measure,
        drawn=figure,
        read=function,
    )


@lru_cache(maxsize=1)
def _given() -> tuple[np.ndarray, ...]:
    """(x, dy, w1, w2, and of one device y, dx, dW1, dW2)."""
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=(2, *TOKENS, HIDDEN))
    w1, w2 = rng.normal(size=(HIDDEN, INNER)), rng.normal(size=(INNER, HIDDEN))
    y, kept = tile.mlp(x, weights := {"w_1": w1, "w_2": w2})
    dx, grads = tile.mlp_grad(dy, kept, weights)
    return x, dy, w1, w2, y, dx, grads["w_1"], grads["w_2"]


def _run(answer: Layer, ranks: int) -> tuple[dict[str, str], int]:
    """(what each result is, the bytes that the busiest rank sends)."""
    x, dy, w1, w2, *right = _given()
    cut1, cut2 = np.array_split(w1, ranks, 1), np.array_split(w2, ranks, 0)

    def program(rank: Any) -> list[np.ndarray]:
        mine = cut1[rank.index].copy(), cut2[rank.index].copy()
        return [np.asarray(r, float) for r in answer(rank.group(), x.copy(), dy.copy(), *mine)]

    done = run_on_ranks(answer, program, ranks, takes="(group, x, dy, w1, w2)")
    sent = max(sum(r.sent for r in done.records.where(rank=rank)) for rank in range(ranks))
    if any(len(results) != len(AXES) for results in done.results):
        raise RuleError(f"a layer returns y, dx, dW1 and dW2; got {len(done.results[0])} back")
    states = {}
    for i, (what, axis) in enumerate(AXES.items()):
        blocks, whole = [results[i] for results in done.results], right[i]
        wanted = [whole] * ranks if axis is None else np.array_split(whole, ranks, axis)
        for block, other in zip(blocks, wanted, strict=True):
            if block.shape != other.shape:
                raise RuleError(f"{what} has {[*other.shape]} numbers, got {[*block.shape]} back")
        states[what] = _state(blocks, wanted, axis is None)
    return states, sent


def _state(blocks: list[np.ndarray], wanted: list[np.ndarray], alike: bool) -> str:
    """RIGHT, PARTIAL, how many times too large, or neither."""

    def close(found: list[np.ndarray], right: list[np.ndarray], times: float = 1.0) -> bool:
        return all(np.allclose(f, times * r, 1e-9, 1e-9) for f, r in zip(found, right, strict=True))

    if close(blocks, wanted):
        return RIGHT
    if alike and close([np.sum(blocks, axis=0)], wanted[:1]):
        return PARTIAL
    times = float(np.vdot(wanted[0], blocks[0]) / np.vdot(wanted[0], wanted[0]))
    return f"{times:.4g} x right" if close(blocks, wanted, times) else "no multiple of it"


@styled
def _table(states: dict[int, dict[str, str]], note: str) -> draw.Figure:
    """A box for each result on so many ranks, by what it is there; what is wrong is framed."""
    figure = canvas(0.9 + 0.4 * len(states), f"What the ranks have ({note})")
    axes = figure.subplots()
    for y, (ranks, found) in enumerate(states.items()):
        for x, (what, state) in enumerate(found.items()):
            box = (x - 0.46, y - 0.36, 0.92, 0.72)
            colour = {RIGHT: GREEN, PARTIAL: YELLOW, UNKNOWN: PALE}.get(state, RED)
            draw.box(axes, box, colour)
            draw.text_in(axes, box, state, colour, 8.5)
            if state not in (RIGHT, UNKNOWN):
                draw.mark_box(axes, box, f"{what}, {ranks}")
    draw.cells(axes, [*AXES], [f"{ranks} rank{'s' * (ranks > 1)}" for ranks in states])
    axes.xaxis.tick_top()
    return figure


Loss = Callable[..., Any]
TOKENS_loss, CLASSES, MOST_loss, EPS = (2, 12), 1001, 600, 0.1
CASES = tuple((ranks, eps, size) for ranks in (1, 3, 4) for eps in (0, EPS) for size in (1, 1000))
"""(ranks, smoothing, how large logits are)."""


def smoothed_loss() -> Exercise:
    """Write a function (group, z, mine, targets, eps) -> loss of a rank's logits ``z`` of the
    classes ``mine``: the mean over tokens, the same on every rank.

    It is run on 1, 3 and 4 ranks whose classes don't divide, with small logits and with such as
    overflow in an exponential; its losses are those of one device, and what it sends is counted.
    """

    def measure(answer: Loss) -> list[Target]:
        wrong, remarks, sent = 0, [], 0
        for ranks, eps, size in CASES:
            losses, moved, right = _run_loss(answer, ranks, eps, size)
            off = [r for r, wrong_here in enumerate(map(_off(right), losses)) if wrong_here]
            wrong += len(off)
            if off:
                remarks.append(
                    f"rank {off[0]} of {ranks} has {losses[off[0]]:.6g} where one device has "
                    f"{right:.6g}, with eps={eps} and logits up to about {size}"
                )
            sent = max(sent, moved)
        return [
            Target("wrong losses", 0, wrong, 0, remarks=remarks[:1]),
            Target("elements sent by all ranks", MOST_loss, sent, None),
        ]

    return Exercise(
        name="smoothed loss",
        form=(
            "a function such as def mine(group, z, mine, targets, eps): ..., which returns a "
            "number, for example answer = mine"
        ),
        hints=(
            "What of each token has to be known of all classes? The largest logit, the sum of "
            "exponentials, the target's own logit, and one more sum.",
            "How many classes there are is a sum over the ranks, too: of len(mine).",
            "Take the largest logit over all ranks off before np.exp: group.all_reduce(z.max(-1), "
            'op="max").',
        ),
        measured=measure,
        read=function,
    )


def _run_loss(answer: Loss, ranks: int, eps: float, size: float) -> tuple[list[float], int, float]:
    """(the loss on each rank, elements that all send, the loss on one device)."""
    rng = np.random.default_rng(7)
    logits, targets = (
        size * rng.normal(size=(*TOKENS_loss, CLASSES)),
        rng.integers(0, CLASSES, TOKENS_loss),
    )
    classes = np.array_split(np.arange(CLASSES), ranks)

    def program(rank: Any) -> float:
        mine = classes[rank.index]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return float(answer(rank.group(), logits[..., mine], mine, targets.copy(), eps))

    done = run_on_ranks(answer, program, ranks)
    sent = sum(record.sent for record in done.records) // logits.itemsize
    return done.results, sent, float(cross_entropy(logits, targets, smoothing=eps)[0])


def _off(right: float) -> Callable[[float], bool]:
    """Whether a loss is not ``right``; nan is not."""
    return lambda loss: not abs(loss - right) <= 1e-9 * abs(right)
