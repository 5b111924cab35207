"""What a forward pass leaves behind for the backward pass, tensor by tensor."""

from dataclasses import dataclass
from functools import lru_cache

from tiledask.plan.layout import Layout
from tiledask.plan.model import Model

__all__ = ["Saved", "alive", "in_flight", "layer_bytes", "saved_tensors"]


@dataclass(frozen=True)
class Saved:
    """A tensor of one layer that is kept, per token of the batch."""

    name: str
    elements: int
    """Elements per token, over the whole layer or on the fullest of tp devices."""
    itemsize: int
    """Bytes per element."""
    sliced: bool
    """Tensor parallelism cuts it (its ``elements`` are one device's); otherwise every
    device holds the whole, unless the sequence is parallel too."""
    core: bool = False
    """In the attention core, which selective recomputation drops."""
    mask: bool = False
    """A dropout mask: nothing flows back into it."""


@lru_cache(maxsize=1024)
def saved_tensors(model: Model, sequence: int, tp: int, width: int) -> tuple[Saved, ...]:
    """Tensors that one layer keeps, as eager execution does.

    ``width`` is the bytes of one number; dropout masks take one byte. For a GPT with
    dropout at width 2 they sum to s*b*h*(34 + 5*a*s/h) bytes (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.1); grouped heads, gates and experts change the terms.
    Experts are taken to be visited evenly.
    """
    heads, groups = -(-model.heads // tp), -(-model.kv_heads // tp)
    h, q, kv = model.hidden, heads * model.head_dim, groups * model.head_dim
    f, k = -(-model.ffn // tp), model.top_k or 1
    tensors = [
        Saved("attention input", h, width, False),
        Saved("query", q, width, True),
        Saved("key", kv, width, True),
        Saved("value", kv, width, True),
        Saved("softmax output", heads * sequence, width, True, core=True),
        Saved("attention output input", q, width, True),
        Saved("mlp input", h * k, width, False),
    ]
    if model.norm != "none":
        tensors += [Saved(f"{at} norm input", h, width, False) for at in ("attention", "mlp")]
    if model.qk_norm:
        tensors += [Saved("query norm input", q, width, True)]
        tensors += [Saved("key norm input", kv, width, True)]
    inner = ("gate", "activated gate", "up", "product") if model.mlp == "swiglu" else (
        "activation input", "activation output")  # fmt: skip
    tensors += [Saved(f"mlp {name}", f * k, width, True) for name in inner]
    if model.experts:
        tensors += [Saved("router input", h, width, False)]
        tensors += [Saved("expert outputs", h * k, width, False)]
        tensors += [Saved("router probabilities", model.experts, 4, False)]
    if model.dropout:
        tensors += [
            Saved("softmax dropout mask", heads * sequence, 1, True, core=True, mask=True),
            Saved("softmax dropout output", heads * sequence, width, True, core=True),
            Saved("attention dropout mask", h, 1, False, mask=True),
            Saved("mlp dropout mask", h, 1, False, mask=True),
        ]
    return tuple(tensors)


def layer_bytes(
    model: Model,
    layout: Layout,
    sequence: int,
    width: int = 2,
    recompute: str | None = None,
    masks: bool = True,
) -> int:
    """Bytes that one layer keeps of one micro-batch on one device.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, Table 2.

    >>> gpt3 = Model(hidden=12288, layers=96, heads=96, ffn=49152, vocab=51200, dropout=True)
    >>> layer_bytes(gpt3, Layout(tp=8), 2048) / (2048 * 12288)  # 10 + 24/t + 5as/(ht)
    23.0
    """
    recompute = layout.recompute if recompute is None else recompute
    tokens = sequence * layout.microbatch
    cut = -(-sequence // layout.tp) * layout.microbatch if layout.sequence_parallel else tokens
    if recompute == "full":
        return width * model.hidden * cut
    kept = (
        tensor
        for tensor in saved_tensors(model, sequence, layout.tp, width)
        if not (tensor.core and recompute == "selective") and (masks or not tensor.mask)
    )
    return sum(t.itemsize * t.elements * (tokens if t.sliced else cut) for t in kept)


def in_flight(layout: Layout, stage: int) -> int:
    """Chunks of a micro-batch whose activations ``stage`` holds at its fullest.

    naive 1; gpipe m; 1f1b min(p - stage, m). Interleaved over v chunks, stage s runs
    2(p-s-1) + (v-1)p forward chunks before its first backward (Megatron-LM's schedule) and
    the first stage holds p*v + p - 1 chunks: L(1 + (p-1)/(pv)) layers (Korthikanti et al.
    2022, section 4.2.3).

    >>> [in_flight(Layout(pp=4, microbatches=8), stage) for stage in range(4)]
    [4, 3, 2, 1]
    >>> in_flight(Layout(pp=4, microbatches=8, interleave=2), 0)
    11
    """
    return max(map(sum, alive(layout, stage)))


@lru_cache(maxsize=4096)
def alive(layout: Layout, stage: int) -> tuple[tuple[int, ...], ...]:
    """The fullest states of ``stage``: micro-batches alive in each of its chunks.

    Where chunks hold unequal numbers of layers, which state is the fullest depends on them.
    """
    p, m, v = layout.pp, layout.microbatches, layout.interleave
    if v == 1:
        return (({"naive": 1, "gpipe": m, "1f1b": min(p - stage, m)}[layout.schedule],),)
    m = min(m, 4 * p)  # the middle of the schedule repeats every p micro-batches
    warmup = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    now, states = [0] * v, set()
    for forward in range(m * v):
        now[forward % (p * v) // p] += 1
        states.add(tuple(now))
        if forward >= warmup:
            now[v - 1 - (forward - warmup) % (p * v) // p] -= 1
    return tuple(sorted(states))
