"""Layers split over ranks: a feed-forward layer's two sums, a loss, attention by heads; all run."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError, RuleError
from tiledask.lab.exercises.exercise import a_function, exercise, none_wrong, on_ranks
from tiledask.lab.judging import Target
from tiledask.plan.whole import is_whole
from tiledask.tile import layers as tile

__all__ = ["balanced_heads", "f_and_g", "smoothed_loss"]

# -- a feed-forward layer --------------------------------------------------------------------------

TOKENS, HIDDEN, INNER = (2, 12), 32, 127
"""The middle is divided by none of 3 and 4 ranks."""
RESULTS = {"y": None, "dx": None, "dW1": 1, "dW2": 0}
"""What a layer returns, and the axis along which ranks have parts of it; None: all of it."""


@lru_cache(maxsize=1)
def _layer() -> tuple[np.ndarray, ...]:
    """(x, dy, w1, w2, and of one device y, dx, dW1, dW2)."""
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=(2, *TOKENS, HIDDEN))
    w1, w2 = rng.normal(size=(HIDDEN, INNER)), rng.normal(size=(INNER, HIDDEN))
    y, kept = tile.mlp(x, weights := {"w_1": w1, "w_2": w2})
    dx, grads = tile.mlp_grad(dy, kept, weights)
    return x, dy, w1, w2, y, dx, grads["w_1"], grads["w_2"]


@exercise("f-and-g", read=a_function)
def f_and_g(answer: Callable[..., Any]) -> list[Target]:
    """Write a function (group, x, dy, w1, w2) -> (y, dx, dW1, dW2) of a rank's columns of w1 and
    rows of w2: a feed-forward layer there and back, on 1, 3 and 4 ranks."""
    x, dy, w1, w2, *right = _layer()
    wrong, sent = [], 0
    for ranks in (1, 3, 4):
        cut = [np.array_split(w1, ranks, 1), np.array_split(w2, ranks, 0)]

        def program(rank: Any, cut: list[list[np.ndarray]] = cut) -> list[np.ndarray]:
            mine = (part[rank.index].copy() for part in cut)
            return [np.asarray(r, float) for r in answer(rank.group(), x.copy(), dy.copy(), *mine)]

        done = on_ranks(answer, program, ranks)
        sent = max(sum(r.sent for r in done.records.where(rank=rank)) for rank in range(ranks))
        if any(len(results) != len(RESULTS) for results in done.results):
            raise RuleError(f"a layer returns y, dx, dW1 and dW2; got {len(done.results[0])} back")
        for i, (what, axis) in enumerate(RESULTS.items()):
            blocks = [results[i] for results in done.results]
            all_of_it = [right[i]] * ranks
            wanted = all_of_it if axis is None else np.array_split(right[i], ranks, axis)
            for block, other in zip(blocks, wanted, strict=True):
                if block.shape != other.shape:
                    shapes = f"{[*other.shape]} numbers, got {[*block.shape]} back"
                    raise RuleError(f"{what} has {shapes}")
            if said := _off(blocks, wanted, axis is None):
                wrong.append(f"{what} is {said} on {ranks} ranks")
    most = 2 * 2 * 3 * x.nbytes // 4  # each of 4 ranks, in two all-reduces of an array such as x
    return [
        none_wrong("wrong results", ["; ".join(wrong)] * bool(wrong), len(wrong)),
        Target("bytes that each of 4 ranks sends", most, sent),
    ]


def _off(blocks: list[np.ndarray], wanted: list[np.ndarray], whole: bool) -> str:
    """What is wrong with the ranks' blocks, in words; empty if nothing is."""

    def close(found: list[np.ndarray], times: float = 1.0) -> bool:
        pairs = zip(found, wanted, strict=False)
        return all(np.allclose(f, times * right, 1e-9, 1e-9) for f, right in pairs)

    if close(blocks):
        return ""
    if whole and close([np.sum(blocks, axis=0)]):
        return "a partial sum"
    times = float(np.vdot(wanted[0], blocks[0]) / np.vdot(wanted[0], wanted[0]))
    return f"{times:.4g} x right" if close(blocks, times) else "no multiple of it"


# -- a loss ----------------------------------------------------------------------------------------

CLASSES, MOST_ELEMENTS = 1001, 600
CASES = tuple(product((1, 3, 4), (0, 0.1), (1, 1000)))
"""(ranks, smoothing, how large logits are)."""


@exercise("smoothed-loss", read=a_function)
def smoothed_loss(answer: Callable[..., Any]) -> list[Target]:
    """Write a function (group, z, mine, targets, eps) -> loss of a rank's logits ``z`` of the
    classes ``mine``: the mean over tokens, the same on every rank. It is run on 1, 3 and 4 ranks
    whose classes don't divide, with small logits and with such as overflow in an exponential."""
    wrong, count, sent = [], 0, 0
    for ranks, eps, size in CASES:
        rng = np.random.default_rng(7)
        logits = size * rng.normal(size=(*TOKENS, CLASSES))
        targets = rng.integers(0, CLASSES, TOKENS)
        classes = np.array_split(np.arange(CLASSES), ranks)

        def program(rank: Any, case: tuple[Any, ...] = (logits, targets, classes, eps)) -> float:
            z, labels, split, smoothing = case
            mine = split[rank.index]
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                return float(answer(rank.group(), z[..., mine], mine, labels.copy(), smoothing))

        done = on_ranks(answer, program, ranks)
        right = float(tile.cross_entropy(logits, targets, smoothing=eps)[0])
        off = [loss for loss in done.results if not abs(loss - right) <= 1e-9 * abs(right)]
        count += len(off)
        wrong += [
            f"a rank of {ranks} has {loss:.6g} where one device has {right:.6g}, with eps={eps} "
            f"and logits up to about {size}"
            for loss in off
        ]
        sent = max(sent, sum(record.sent for record in done.records) // logits.itemsize)
    return [
        none_wrong("wrong losses", wrong[:1], count),
        Target("elements sent by all ranks", MOST_ELEMENTS, sent),
    ]


# -- attention by heads ----------------------------------------------------------------------------

QUERY, KV, RANKS = 10, 2, 4
SHARE = QUERY // KV
"""Query heads that look at one kv head."""


def _kv_of(heads: Sequence[int]) -> list[int]:
    """The kv heads that a rank with these query heads needs."""
    return sorted({head // SHARE for head in heads})


def head_flops(hidden: int, width: int, tokens: int) -> tuple[int, int]:
    """(FLOP of a query head, of a kv head) in a forward pass over ``tokens`` without a mask.

    A query head has its columns of wq and rows of wo, and two products with all tokens; a kv head
    its columns of wk and wv.

    >>> head_flops(hidden=640, width=64, tokens=128)
    (25165824, 20971520)
    """
    projection = 2 * tokens * hidden * width
    return 2 * projection + 4 * tokens * tokens * width, 2 * projection


OF_QUERY, OF_KV = head_flops(hidden=640, width=64, tokens=128)
EVEN_SHARE = (OF_QUERY * QUERY + OF_KV * KV) / RANKS
"""FLOP of a rank, were nothing computed twice and all split in equal parts."""


@lru_cache(maxsize=1)
def least_imbalance() -> tuple[float, int]:
    """(work of the fullest rank over the even share, kv heads computed): the least of all ways. It
    matters only how many heads of each kv head a rank has."""
    shared = [n for n in product(range(SHARE + 1), repeat=RANKS) if sum(n) == SHARE]
    found = []
    for ways in product(shared, repeat=KV):
        mine = list(zip(*ways, strict=True))
        work = max(OF_QUERY * sum(each) + OF_KV * sum(n > 0 for n in each) for each in mine)
        found.append((work / EVEN_SHARE, sum(n > 0 for each in mine for n in each)))
    return min(found)


def _heads(answer: Any) -> tuple[tuple[int, ...], ...] | None:
    try:
        assigned = tuple(tuple(part) for part in answer)
    except TypeError:
        return None
    heads = [i for part in assigned for i in part]
    return assigned if len(assigned) == RANKS and all(map(is_whole, heads)) else None


@exercise("balanced-heads", read=_heads)
def balanced_heads(assigned: tuple[tuple[int, ...], ...]) -> list[Target]:
    """Assign ten query heads, which share two kv heads, to four ranks. It is run, forward and
    backward, and compared with one device."""
    for head in {*range(QUERY), *(i for part in assigned for i in part)}:
        on = [r for r, part in enumerate(assigned) for i in part if i == head]
        if head not in range(QUERY) or len(on) != 1:
            raise PlacementError(
                f"query head {head} is on {f'ranks {on}' if on else 'no rank'}; heads are 0 to "
                f"{QUERY - 1}, and every head has one place"
            )
    work = [OF_QUERY * len(heads) + OF_KV * len(_kv_of(heads)) for heads in assigned]
    full, free = work.index(max(work)), work.index(min(work))
    fullest = (
        f"rank {full} has {len(assigned[full])} query heads and {len(_kv_of(assigned[full]))} kv "
        f"heads, rank {free} has {len(assigned[free])} query heads"
    )
    holders = [[r for r, heads in enumerate(assigned) if kv in _kv_of(heads)] for kv in range(KV)]
    often = max(range(KV), key=lambda kv: len(holders[kv]))
    shared = f"kv head {often} is computed on ranks {', '.join(map(str, holders[often]))}"
    worst, (least, fewest) = round(max(work) / EVEN_SHARE, 4), least_imbalance()
    best, copies = round(least, 4), sum(map(len, holders))
    return [
        Target("fullest rank / even share", best, worst, best, where=fullest),
        Target("kv heads computed, all ranks", fewest, copies, fewest, where=shared),
        Target("wrong results", 0, _wrong_results(assigned), 0),
    ]


def _wrong_results(assigned: tuple[tuple[int, ...], ...]) -> int:
    """How many of y and dx are not those of one device, if the ranks' terms are summed; of small
    heads, for the same is true of them."""
    width, hidden, tokens = 4, 20, 6
    heads, rng = tile.Heads(QUERY, KV, width), np.random.default_rng(3)
    made = tile.self_attention_parameters(hidden, heads)
    weights = {n: rng.normal(size=p.shape) / hidden**0.5 for n, p in made.items()}
    x, dy = rng.normal(size=(2, 1, tokens, hidden))

    def there_and_back(heads: tile.Heads, weights: dict[str, np.ndarray]) -> tuple[Any, ...]:
        y, kept = tile.self_attention(x, weights, heads)
        return y, tile.self_attention_grad(dy, kept, weights)[0]

    def program(rank: Any) -> tuple[np.ndarray, ...]:
        mine = assigned[rank.index]
        terms: tuple[Any, ...] = (np.zeros_like(x), np.zeros_like(x))
        if mine:
            kv = _kv_of(mine)
            of = tuple(kv.index(head // SHARE) for head in mine)
            here = tile.Heads(len(mine), len(kv), width, of)
            terms = there_and_back(here, cut_heads(weights, mine, kv, width))
        return tuple(rank.group().all_reduce(term) for term in terms)

    done = run_threads(program, RANKS, timeout=240)
    return sum(
        not all(np.allclose(r[i], value, rtol=0, atol=1e-9) for r in done.results)
        for i, value in enumerate(there_and_back(heads, weights))
    )


def cut_heads(
    weights: dict[str, np.ndarray], query: Sequence[int], kv: Sequence[int], width: int
) -> dict[str, np.ndarray]:
    """The columns of wq, wk and wv and the rows of wo that belong to these heads."""
    of_q, of_kv = (
        np.concatenate([np.arange(width * i, width * (i + 1)) for i in heads])
        for heads in (query, kv)
    )
    into = {name: weights[name][:, at] for name, at in (("wq", of_q), ("wk", of_kv), ("wv", of_kv))}
    return into | {"wo": weights["wo"][of_q]}
