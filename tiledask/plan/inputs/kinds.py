"""The kinds of layers: a row for each mixer of tokens and each MLP; counts, memory, time read it.

mixer   attention | latent | compressed | mamba2 | mamba | delta | conv      "+": side by side
MLP     gelu, swiglu | mixture of experts | none

x -norm- mixer -+- norm - MLP -+-      a layer; one of a single part has one norm and one sum

A row has the weights; the tensors that a forward pass leaves for the backward pass; the cores in
which tokens meet; the passes over memory of its element-wise kernels; and what generation keeps of
a token, or of a sequence however long it is. tp cuts the units of each; what is not ``split`` is on
every device, and cut by sequence parallelism where it is as long as the residual stream.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from tiledask.plan.inputs.weights import Weight, bias, norm

__all__ = ["Core", "LayerKind", "Pass", "Saved", "layer_kind"]

CHUNK = 128
"""Tokens of a piece in which the kernels of a scan multiply matrices (mamba_ssm's chunk_size)."""


class Saved(NamedTuple):
    """A tensor of one layer that is kept, per token of the batch."""

    name: str
    units: int
    size: Any = 1  # numbers of a unit
    split: bool = True  # tensor parallelism cuts the units
    core: bool = False  # in the attention core, which selective recomputation drops
    flows: bool = True  # a gradient of this size flows back into it: not into masks, statistics
    itemsize: int = 0  # bytes of a number; 0: as wide as activations are
    op: int = 0  # recomputation op by op keeps it, too (1), or it alone (2)


class Pass(NamedTuple):
    """Numbers of a token that element-wise kernels read and write, limited by memory."""

    units: int
    size: Any
    forward: float  # passes over them
    backward: float
    split: bool = True
    itemsize: int = 0


class Core(NamedTuple):
    """What tokens have to do with each other, in one fused kernel or a few products."""

    heads: int
    groups: int  # heads of keys and values
    qk: int  # width of a head's query and key
    v: int
    visible: Callable[[Any], Any] | None = None  # part of the s x s scores; None: a scan
    flop: float = 0.0  # of a scan, forward, for a head and a token
    sparse: bool = False  # a token sees chosen ones, or pieces: MFU counts what it sees alone


class LayerKind(NamedTuple):
    """The layers of one kind, or a part of them: a mixer or an MLP."""

    weights: tuple[Weight, ...]
    kept: tuple[Saved, ...]
    passes: tuple[Pass, ...] = ()
    cores: tuple[Core, ...] = ()
    cached: tuple[Saved, ...] = ()  # of a token, in generation
    state: tuple[Saved, ...] = ()  # of a sequence
    name: str = ""
    many: int = 0  # layers of it that a model has
    mixture: bool = False
    sums: int = 0  # of the residual stream over tp
    own_sums: int = 0  # of them those that are not of routed experts


# --- mixers ---------------------------------------------------------------------------------------


def attention(m: Any) -> LayerKind:
    """Heads, or groups of heads; queries may have an output gate, keys be values as well
    (Vaswani et al. 2017, arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245)."""
    h, a, g, e, v = m.hidden, m.heads, m.kv_heads, m.head_dim, m.v_head_dim or m.head_dim
    heads = [("query", a, e), ("key", g, e), ("value", g, v)]
    heads = heads[:1] if m.shares_keys else heads[: 3 - m.key_is_value]
    weights = [Weight(name, n, width * h, inputs=h) for name, n, width in heads]
    if m.output_gate:
        weights.append(Weight("attention gate", a, m.output_gate * h, inputs=h))
    if m.qkv_bias:
        heads_ = [*heads, *[("attention gate", a, m.output_gate)] * (m.output_gate > 0)]
        weights += [Weight(f"{name} bias", n, width, kind="bias") for name, n, width in heads_]
    for name, n in (each[:2] for each in heads[:2]):
        if m.qk_norm == "own":
            weights.append(Weight(f"{name} norm", n, e, kind="norm"))
        elif m.qk_norm is not None:
            whole = m.qk_norm == "full"
            weights += norm(m, f"{name} norm", n * e if whole else e, whole)
    if m.attention_sinks:
        weights.append(Weight("attention sinks", a, 1, kind="bias"))
    kept = [Saved("query", a, e, op=1), Saved("key", g, e), Saved("value", g, v, op=1)]
    normed = [each._replace(name=f"{each.name} norm input", op=0) for each in kept[:2]]
    kept += normed if m.qk_norm else []
    core = Core(a, g, e, v, m.visible)
    cached = () if m.shares_keys else (Saved("key", g, e + v),)
    return _attended(m, weights, kept, core, cached)


def latent(m: Any) -> LayerKind:
    """Multi-head latent attention: down to a latent vector that every device needs whole, up from
    it by heads (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    h, a, q, kv, rope = m.hidden, m.heads, m.q_lora_rank, m.kv_lora_rank, m.qk_rope_head_dim
    e, v = m.head_dim, m.v_head_dim or m.head_dim
    weights: list[Weight] = []
    kept = [Saved("query", a, e, op=1), Saved("key", a, e), Saved("value", a, v, op=1)]
    for name, n, normed in (("query", q, q), ("kv", kv + rope, kv)):
        if n:  # each latent before and after its norm
            down = Weight(f"{name} down", n, h, False, inputs=h)
            weights += [down, *bias(m.qkv_bias, f"{name} down", n)]
            weights += norm(m, f"{name} latent norm", normed)
            kept += [Saved(f"{name} latent norm input", n, split=False)]
            kept += [Saved(f"{name} latent", normed, split=False)]
        if name == "query":
            up = "query up" if q else "query"
            weights.append(Weight(up, a, e * (q or h), inputs=q or h))
    up = m.qk_nope_head_dim + m.v_head_dim
    weights.append(Weight("kv up", a, up * kv, inputs=kv))
    if m.output_gate:
        weights.append(Weight("attention gate", a, m.output_gate * h, inputs=h))
    core = Core(a, a, e, v, m.visible)
    return _attended(m, weights, kept, core, (Saved("latent", kv + rope, split=False),))


def compressed(m: Any) -> LayerKind:
    """One head of keys that are values as well, of near tokens, and of far ones in pieces of
    ``compress`` tokens; outputs by groups (DeepSeek-V4, as transformers' modeling_deepseek_v4)."""
    h, a, e, q, c = m.hidden, m.heads, m.head_dim, m.q_lora_rank, m.compress
    grouped = a * e // m.output_groups
    weights = [Weight("query down", q, h, False, inputs=h), *norm(m, "query latent norm", q)]
    weights += [Weight("query up", a, e * q, inputs=q), Weight("key", e, h, False, inputs=h)]
    weights += [*norm(m, "key norm", e), Weight("attention sinks", a, 1, kind="bias")]
    weights.append(Weight("output down", m.output_groups, m.output_rank * grouped, inputs=grouped))
    kept = [Saved("query latent norm input", q, split=False), Saved("query latent", q, split=False)]
    kept += [Saved("query", a, e, op=1), Saved("key", e, split=False)]
    kept += [Saved("output latent", m.output_groups, m.output_rank)]
    places = [("piece", e, c, 1 + bool(m.index_heads))] if c else []
    places += [("index", m.index_dim, c, 2)] if c and m.index_heads else []
    for name, width, pieces, each in places:  # overlapping pieces are twice as wide
        wide = each * width
        weights += [Weight(f"{name} {what}", wide, h, False, inputs=h) for what in ("key", "gate")]
        weights += [Weight(f"{name} positions", pieces, wide, False, "bias")]
        weights += norm(m, f"{name} norm", width)
        kept += [Saved(f"{name} {what}", wide, split=False) for what in ("key", "gate")]
    core = Core(a, 1, e, e, m.visible, sparse=True)
    return _attended(m, weights, kept, core, (Saved("key", e, split=False),))


def _attended(
    m: Any, weights: list[Weight], kept: list[Saved], core: Core, cached: tuple[Saved, ...]
) -> LayerKind:
    """What all attention ends in; beside it the indexer that chooses what a token sees (DeepSeek-
    V3.2's lightning indexer, its queries from the latent, or MiniMax-M3's, from the input)."""
    h, a, v, g = m.hidden, m.heads, m.v_head_dim or m.head_dim, m.output_gate
    cores: tuple[Core, ...] = (core._replace(sparse=core.sparse or m.index_topk > 0),)
    if many := m.index_heads:
        width, scored = m.index_dim, m.q_lora_rank or m.hidden
        weights.append(Weight("index query", many, width * scored, False, inputs=scored))
        if not m.compress:
            weights.append(Weight("index key", width, h, False, inputs=h))
            norms = (("key", 2),) if m.kv_lora_rank else (("key", 1), ("query", 1))
            weights += [Weight(f"index {at} norm", width, n, False, "norm") for at, n in norms]
        if m.kv_lora_rank or m.compress:
            weights.append(Weight("index weights", many, h, False, inputs=h))
        kept.append(Saved("index query", many, width, False))
        kept.append(Saved("chosen tokens", m.index_topk, 1, False, flows=False, itemsize=8))
        cores += (Core(many, 1, width, 0, m.scored, sparse=True),)
        cached += (Saved("index key", width, split=False),)
    inputs = m.output_groups * m.output_rank or a * v
    units = m.output_groups or a
    weights.append(Weight("attention output", units, inputs // units * h, inputs=inputs, row=True))
    weights += bias(m.out_bias, "attention output", h)
    kept.append(Saved("attention output input", a, v, op=1))
    kept += [Saved("gate", a, g), Saved("ungated output", a, v)] if g else []
    groups = core.groups
    turned = [Pass(a, v, 2, 2), Pass(a, core.qk, 0, 2 + m.qkv_bias)]
    turned += [Pass(groups, core.qk + v, 0, 2 + m.qkv_bias), Pass(h, 1, 0, m.out_bias, False)]
    turned += [Pass(a, v, 3, 5)] if g else []
    return LayerKind(tuple(weights), tuple(kept), tuple(turned), cores, cached)


def _scan(
    m: Any,
    name: str,
    rows: list[tuple[str, int, int]],
    out: tuple[Weight, ...],
    kept: Iterable[Saved],
    flop: float,
) -> LayerKind:
    """A mixer that reads the tokens in turn and keeps a state. ``rows``: (what, units, width) of
    the products of its input; ``flop``: of its chunked kernel, for a head and a token."""
    h, a, inner = m.hidden, m.ssm_heads, m.ssm_heads * m.ssm_head_dim
    g, bc = m.ssm_groups, m.ssm_state * (1 if name == "mamba" else 2)
    weights = [Weight(f"{name} {what}", n, width * h, inputs=h) for what, n, width in rows]
    if m.ssm_bias:
        weights += [Weight(f"{name} {what} bias", n, w, kind="bias") for what, n, w in rows]
    weights += [*out, Weight(f"{name} output", a, m.ssm_head_dim * h, inputs=inner, row=True)]
    weights += bias(m.ssm_bias, f"{name} output", h)
    tensors = [Saved(f"{name} {what}", n, width, op=1) for what, n, width in rows]
    tensors += [*kept, Saved(f"{name} scanned", a, m.ssm_head_dim)]
    tensors += [Saved(f"{name} output input", a, m.ssm_head_dim)]
    passes = [Pass(n, width, 2, 3) for _, n, width in rows]
    passes += [Pass(a, m.ssm_head_dim, 3, 5)]  # the gate, with its norm
    core = (Core(a, g, m.ssm_state, m.ssm_head_dim, flop=flop),) if flop else ()
    state = [Saved("state", a, m.ssm_head_dim * m.ssm_state, itemsize=4)] if m.ssm_state else []
    state += [Saved("window", a, m.conv_kernel * m.ssm_head_dim)]
    state += [Saved("window", g, m.conv_kernel * bc)] if g and bc and name != "mamba" else []
    return LayerKind(tuple(weights), tuple(tensors), tuple(passes), core, (), tuple(state))


def mamba2(m: Any) -> LayerKind:
    """Mamba-2: x, z and a step of each head, B and C of each group, a short convolution (Dao and Gu
    2024, arXiv:2405.21060; kept: what mamba_ssm's ssd_combined.py saves, its products' input)."""
    a, g, p, n, k = m.ssm_heads, m.ssm_groups, m.ssm_head_dim, m.ssm_state, m.conv_kernel
    rows = [("x z", a, 2 * p), ("B C", g, 2 * n), ("step", a, 1)]
    inside = [Weight("mamba2 convolution", a, p * k)]
    inside.append(Weight("mamba2 B C convolution", g, 2 * n * k))
    if m.conv_bias:
        inside.append(Weight("mamba2 convolution bias", a, p, kind="bias"))
        inside.append(Weight("mamba2 B C convolution bias", g, 2 * n, kind="bias"))
    inside.append(Weight("mamba2 A, D, step bias", a, 3, kind="bias"))
    inside += norm(m, "mamba2 norm", a * p * m.ssm_norm, True)
    return _scan(m, "mamba2", rows, tuple(inside), (), 2 * CHUNK * (n + p) + 4 * n * p)


def mamba(m: Any) -> LayerKind:
    """Mamba: a state of ``ssm_state`` numbers for each channel, and steps of a low rank (Gu and Dao
    2023, arXiv:2312.00752); ``ssm_norm``: of step, B and C, as in Jamba."""
    a, n, k, rank = m.ssm_heads, m.ssm_state, m.conv_kernel, m.decay_rank
    inside = [Weight("mamba convolution", a, k)]
    inside += [Weight("mamba convolution bias", a, 1, kind="bias")] * m.conv_bias
    inside.append(Weight("mamba step B C", a, rank + 2 * n, inputs=a, row=True))
    inside.append(Weight("mamba step", a, rank, inputs=rank))
    inside.append(Weight("mamba step bias", a, 1, kind="bias"))
    inside.append(Weight("mamba A, D", a, n + 1, kind="bias"))
    inside += norm(m, "mamba norms", (rank + 2 * n) * m.ssm_norm)
    kept = [Saved("mamba convolved", a), Saved("mamba steps", a)]
    kept.append(Saved("mamba B C", rank + 2 * n, 1, False))
    return _scan(m, "mamba", [("x z", a, 2)], tuple(inside), kept, 9.0 * n)


def delta(m: Any) -> LayerKind:
    """The gated delta rule: queries and keys of each group, values and a gate of each head, which
    forgets by a number, or by one a channel (Yang et al. 2024, arXiv:2412.06464; Kimi Linear,
    arXiv:2510.26692; kept: what flash-linear-attention saves, a chunk's matrix with it)."""
    h, a, g, p, n = m.hidden, m.ssm_heads, m.ssm_groups, m.ssm_head_dim, m.ssm_state
    forget = n if m.decay_channels else 1
    rows = [("query key", g, 2 * n), ("value", a, p), ("rate", a, 1)]
    inside = []
    for what, width, rank in (("gate", p, m.gate_rank), ("decay", forget, m.decay_rank)):
        if rank:
            inside.append(Weight(f"delta {what} down", rank, h, False, inputs=h))
            inside.append(Weight(f"delta {what}", a, width * rank, inputs=rank))
        else:
            rows.append((what, a, width))
    inside.append(Weight("delta convolution", a, p * m.conv_kernel))
    inside.append(Weight("delta query key convolution", g, 2 * n * m.conv_kernel))
    inside.append(Weight("delta A, decay bias", a, 1 + forget, kind="bias"))
    inside += norm(m, "delta norm", p)
    kept = [Saved("delta convolved query key", g, 2 * n), Saved("delta convolved value", a, p)]
    kept += [Saved("delta chunk", a, CHUNK // 2), Saved("delta decay sum", a, forget, itemsize=4)]
    return _scan(m, "delta", rows, tuple(inside), kept, CHUNK * (3 * n + 2 * p) + 6 * n * p)


def conv(m: Any) -> LayerKind:
    """A short convolution between two gates of the input (LFM2, arXiv:2511.23404)."""
    h, k = m.hidden, m.conv_kernel
    weights = [Weight("conv in", h, 3 * h, inputs=h), Weight("conv kernel", h, k)]
    weights += [Weight("conv in bias", h, 3, kind="bias")] * m.conv_bias
    weights += [Weight("conv kernel bias", h, 1, kind="bias")] * m.conv_bias
    weights += [Weight("conv output", h, h, inputs=h, row=True), *bias(m.conv_bias, "conv", h)]
    kept = Saved("conv gates", h, 3, op=1), Saved("conv input", h), Saved("conv output input", h, 2)
    window = (Saved("window", h, k),)
    return LayerKind(tuple(weights), kept, (Pass(h, 1, 9, 15),), state=window)


MIXERS: dict[str, Callable[[Any], LayerKind]] = {
    "attention": attention,
    "latent": latent,
    "compressed": compressed,
    "mamba2": mamba2,
    "mamba": mamba,
    "delta": delta,
    "conv": conv,
}


# --- MLPs -----------------------------------------------------------------------------------------

INSIDE: dict[str, tuple[str, ...]] = {"gelu": ("activation input", "activation output")}
INSIDE["swiglu"] = ("gate", "activated gate", "up", "product")


def mlp(
    m: Any, name: str, width: int, copies: int = 1, active: int = 1, load: float = 1
) -> tuple[list[Weight], list[Saved], list[Pass]]:
    """Weights of an MLP of this ``width``, or of ``copies`` of one; what it keeps and passes over,
    ``load`` times a token; nothing of one without width."""
    h, gated = (m.expert_hidden or m.hidden) if copies > 1 else m.hidden, m.mlp == "swiglu"
    if not width:
        return [], [], []
    held = partial(Weight, copies=copies, active=active)
    into = (f"{name} gate", f"{name} up") if gated else (f"{name} up",)
    weights = [held(part, width, h, inputs=h) for part in into]
    weights.append(held(f"{name} down", width, h, inputs=width, row=True))
    if m.mlp_bias:
        weights += [held(f"{part} bias", width, 1, kind="bias") for part in into]
        weights.append(held(f"{name} down bias", h, 1, False, "bias"))
    kept = [Saved(f"{name} {part}", width, load) for part in INSIDE[m.mlp]]
    kept[0] = kept[0]._replace(op=1)
    passes = Pass(width, load, 3 if gated else 2, (5 if gated else 3) + m.mlp_bias)
    return weights, kept, [passes]


def dense(m: Any) -> LayerKind:
    """A dense MLP, plain or gated (Shazeer 2020, arXiv:2002.05202)."""
    weights, kept, passes = mlp(m, "mlp", m.ffn)
    if m.layer_norms > 1 or m.mixer == "none":  # or it is the mixer's
        kept.append(Saved("mlp input", m.hidden, split=False))
    if m.mlp == "swiglu":
        kept.append(Saved("mlp output", m.hidden, split=False, op=2))
    passes.append(Pass(m.hidden, 1, 0, m.mlp_bias, False))
    return LayerKind(tuple(weights), tuple(kept), tuple(passes))


def mixture(m: Any) -> LayerKind:
    """A mixture of experts: router, experts, and what every token passes (DeepSeekMoE,
    arXiv:2401.06066). A token's copies for its experts, and their answers before they are summed,
    are kept; the experts may work in a narrower space."""
    h, n, load = m.hidden, m.experts, m.top_k * m.imbalance
    inner = m.expert_hidden or h
    weights, kept, passes = mlp(m, "mlp", m.expert_ffn, n, m.top_k, load)
    shared = mlp(m, "shared mlp", m.shared_ffn)
    weights, kept, passes = weights + shared[0], kept + shared[1], passes + shared[2]
    if m.shared_gate:
        weights.append(Weight("shared expert gate", 1, h, split=False, inputs=h))
    if m.expert_hidden:
        weights.append(Weight("latent down", inner, h, split=False, inputs=h))
        weights.append(Weight("latent up", h, inner, split=False, inputs=inner))
        weights += norm(m, "latent norm", inner * m.expert_norm)
        kept.append(Saved("expert latents", 2 * inner, split=False))
    weights.append(Weight("router", n, h, split=False, inputs=h))
    weights += bias(m.router_bias, "router", n)
    kept.append(Saved("mlp input", inner, load, False))
    kept.append(Saved("router input", h, split=False))
    kept.append(Saved("expert outputs", inner, load, False, op=1))
    kept.append(Saved("router probabilities", n, split=False, itemsize=4))
    sorted_ = 4 * m.imbalance * m.top_k  # tokens to their experts and back
    passes += [Pass(inner, sorted_, 1, 1, False), Pass(h, 1, 0, m.mlp_bias, False)]
    return LayerKind(tuple(weights), tuple(kept), tuple(passes))


NORMED = ("attention", "mlp", "attention output", "mlp output")
"""What the norms of a layer stand at, as many as it has."""


def layer_kind(m: Any, name: str, many: int) -> LayerKind:
    """The layers, ``many`` of them, of a model ``m`` whose layers are all alike."""
    h, normed = m.hidden, m.norm != "none"
    mixers = [MIXERS[each](m) for each in m.mixer.split("+") if each != "none"]
    inner = [mixture(m) if m.experts else dense(m)] if m.mlp != "none" else []
    parts, sums = [*mixers, *inner], bool(mixers) + bool(inner)
    norms = {
        at: norm(m, f"{at} norm", h) if n < m.layer_norms else () for n, at in enumerate(NORMED)
    }
    weights = [*norms["attention"], *(w for part in mixers for w in part.weights)]
    weights += [*norms["attention output"], *norms["mlp"]]
    weights += [*(w for part in inner for w in part.weights), *norms["mlp output"], *m.more]
    kept = {each.name: each for part in parts for each in part.kept}
    wide = h * m.streams
    ends = [Saved("attention input", h, split=False)] * bool(mixers)
    ends += [
        Saved(f"{at} norm input", wide, split=False) for at in NORMED[: m.layer_norms * normed]
    ]
    masks = [
        Saved(f"{at} dropout mask", h, 1, False, flows=False, itemsize=1) for at in NORMED[:sums]
    ]
    ends += masks if m.dropout else []
    passes = [each for part in parts for each in part.passes]
    passes += [Pass(wide, m.layer_norms * normed, 2, 3, False)]
    passes += [Pass(wide, sums, 3, 3 + 2 * m.dropout, False)]  # onto the residual stream
    passes += [Pass(h, sums, 1, 1, False, 1)] * m.dropout
    return LayerKind(
        tuple(weights),
        (*kept.values(), *ends),
        tuple(passes),
        tuple(core for part in parts for core in part.cores),
        tuple(each for part in parts for each in part.cached),
        tuple(each for part in parts for each in part.state),
        name=name,
        many=many,
        mixture=bool(m.experts and inner),
        sums=sums,
        own_sums=bool(mixers) + bool(m.shared_ffn if m.experts else inner),
    )
