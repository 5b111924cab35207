"""The weights of a transformer's layer, one matrix, bias or norm at a time.

attention        query  key  value | attention output           heads are sharded
latent attention query down > query up, kv down > kv up | attention output
MLP              gate  up | down                                rows are sharded
mixture          router, experts x (gate  up | down), shared (gate  up | down)
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from tiledask.plan.inputs.model_sizes import ModelSizes

__all__ = ["Weight", "attention", "count", "mixture", "mlp", "mtp_module", "norm", "unvisited"]


@dataclass(frozen=True)
class Weight:
    """A weight made of ``units`` pieces of ``size`` elements that nothing cuts further."""

    name: str
    units: int
    """Attention heads, rows of an MLP matrix, rows of the vocabulary, ..."""
    size: int
    """Elements of one unit."""
    split: bool = True
    """Tensor parallelism shards the units; otherwise every device holds the whole."""
    kind: str = "matrix"
    """One of "matrix", "bias", "norm"."""
    copies: int = 1
    """Experts that each hold one."""
    active: int = 1
    """Experts of them that one token visits."""
    inputs: int = 0
    """Length of the vectors that the matrix multiplies, undivided; 0 if it multiplies none."""
    row: bool = False
    """Row-parallel: its units cut the inputs, and its products are summed over devices."""

    def count(self, tp: int = 1) -> int:
        """Elements on the fullest of ``tp`` devices.

        A weight of fewer units than devices is copied: key and value heads under a tensor
        parallelism wider than they are.

        >>> Weight("k_proj", units=8, size=128).count(tp=16)
        128
        """
        return self.copies * self.size * (-(-self.units // tp) if self.split else self.units)


@lru_cache(maxsize=4096)
def count(weights: tuple[Weight, ...], tp: int = 1) -> int:
    """Elements of ``weights`` on the fullest of ``tp`` tensor-parallel devices."""
    return sum(weight.count(tp) for weight in weights)


@lru_cache(maxsize=4096)
def unvisited(weights: tuple[Weight, ...]) -> int:
    """Elements of the experts in ``weights`` that one token does not visit."""
    return sum((w.copies - w.active) * w.units * w.size for w in weights)


def norm(model: ModelSizes, name: str, width: int, split: bool = False) -> tuple[Weight, ...]:
    """A norm of ``width`` elements: weight and bias, weight, or nothing."""
    each = {"layernorm": 2, "rmsnorm": 1, "none": 0}[model.norm]
    return (Weight(name, width, each, split, "norm"),) if each else ()


def attention(model: ModelSizes) -> tuple[Weight, ...]:
    """Weights of one attention block, its own norms included."""
    h, a, v = model.hidden, model.heads, model.v_dim
    if model.latent:
        weights = _latent(model)
    else:  # query, key and value; keys and values in groups if there are fewer of them
        g, e = model.kv_heads, model.head_dim
        heads = (("query", a), ("key", g), ("value", g))
        weights = tuple(Weight(name, n, e * h, inputs=h) for name, n in heads)
        if model.qkv_bias:
            weights += tuple(Weight(f"{name} bias", n, e, kind="bias") for name, n in heads)
        if model.qk_norm == "per_head":
            weights += norm(model, "query norm", e) + norm(model, "key norm", e)
        if model.qk_norm == "full":
            weights += norm(model, "query norm", a * e, True) + norm(model, "key norm", g * e, True)
        if model.qk_norm == "own":
            owners = (("query norm", a), ("key norm", g))
            weights += tuple(Weight(name, n, e, kind="norm") for name, n in owners)
        if model.attention_sinks:
            weights += (Weight("attention sinks", a, 1, kind="bias"),)
    weights += (Weight("attention output", a, v * h, inputs=a * v, row=True),)
    if model.out_bias:
        # added once, after the sum over devices: held whole by each
        weights += (Weight("attention output bias", h, 1, False, "bias"),)
    return weights


def _latent(model: ModelSizes) -> tuple[Weight, ...]:
    """Multi-head latent attention: down to a latent vector that every device needs whole,
    up from it by heads (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    The rotary part of the key is one for all heads and leaves with the kv latent.
    """
    h, a, latent = model.hidden, model.heads, model.kv_lora_rank
    weights: tuple[Weight, ...] = ()
    if model.q_lora_rank:
        weights += _down(model, "query", model.q_lora_rank, model.q_lora_rank)
    from_width = model.q_lora_rank or h
    name = "query up" if model.q_lora_rank else "query"
    weights += (Weight(name, a, model.qk_dim * from_width, inputs=from_width),)
    weights += _down(model, "kv", latent + model.qk_rope_head_dim, latent)
    up = model.qk_nope_head_dim + model.v_head_dim
    return (*weights, Weight("kv up", a, up * latent, inputs=latent))


def _down(model: ModelSizes, name: str, rows: int, normed: int) -> tuple[Weight, ...]:
    weights: tuple[Weight, ...] = (
        Weight(f"{name} down", rows, model.hidden, False, inputs=model.hidden),
    )
    if model.qkv_bias:
        weights += (Weight(f"{name} down bias", rows, 1, False, "bias"),)
    return weights + norm(model, f"{name} latent norm", normed)


def mlp(model: ModelSizes) -> tuple[Weight, ...]:
    """Weights of a dense MLP."""
    return _mlp(model, "mlp", model.ffn)


def mixture(model: ModelSizes) -> tuple[Weight, ...]:
    """Weights of a mixture of experts: router, experts, and what every token passes."""
    h, n = model.hidden, model.experts
    weights = _mlp(model, "mlp", model.expert_ffn, n, model.top_k)
    if model.shared_ffn:
        weights += _mlp(model, "shared mlp", model.shared_ffn)
    if model.shared_gate:
        weights += (Weight("shared expert gate", 1, h, split=False, inputs=h),)
    weights += (Weight("router", n, h, split=False, inputs=h),)
    if model.router_bias:
        weights += (Weight("router bias", n, 1, False, "bias"),)
    return weights


def _mlp(
    model: ModelSizes, name: str, width: int, copies: int = 1, active: int = 1
) -> tuple[Weight, ...]:
    h = model.hidden
    held = partial(Weight, copies=copies, active=active)
    into = (f"{name} gate", f"{name} up") if model.mlp == "swiglu" else (f"{name} up",)
    weights = tuple(held(part, width, h, inputs=h) for part in into)
    weights += (held(f"{name} down", width, h, inputs=width, row=True),)
    if model.mlp_bias:
        weights += tuple(held(f"{part} bias", width, 1, kind="bias") for part in into)
        weights += (held(f"{name} down bias", h, 1, False, "bias"),)
    return weights


def mtp_module(model: ModelSizes, layer: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """What one multi-token-prediction module adds: it joins the hidden state and the next
    token's embedding, runs a layer of its own, and shares embedding and output projection
    (DeepSeek-V3, arXiv:2412.19437, section 2.2)."""
    h = model.hidden
    return (
        *norm(model, "mtp embedding norm", h),
        *norm(model, "mtp hidden norm", h),
        Weight("mtp projection", h, 2 * h, inputs=2 * h),
        *layer,
        *norm(model, "mtp final norm", h),
    )
