"""The weights of a transformer's layer, one matrix, bias or norm at a time.

attention        query  key  value | attention output           heads are sharded
latent attention query down > query up, kv down > kv up | attention output
MLP              gate  up | down                                rows are sharded
mixture          router, experts x (gate  up | down), shared (gate  up | down)
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

__all__ = ["Weight", "attention", "count", "mixture", "mlp", "norm"]


@dataclass(frozen=True)
class Weight:
    """A weight made of ``units`` pieces of ``size`` elements that nothing cuts further."""

    name: str
    units: int  # Attention heads, rows of an MLP matrix, rows of the vocabulary, ...
    size: int  # Elements of one unit
    split: bool = True  # Tensor parallelism shards the units; else every device holds the whole
    kind: str = "matrix"  # One of "matrix", "bias", "norm"
    copies: int = 1  # Experts that each hold one
    active: int = 1  # Experts of them that one token visits
    inputs: int = 0  # Length of the vectors that the matrix multiplies, undivided; 0 if none
    row: bool = False  # Its units cut the inputs, and its products are summed over devices

    def count(self, tp: int = 1) -> int:
        """Elements on the fullest of ``tp`` devices; one of fewer units than devices is copied,
        as key and value heads are under a tensor parallelism wider than they are."""
        return self.copies * self.size * (-(-self.units // tp) if self.split else self.units)


@lru_cache(maxsize=4096)
def count(weights: tuple[Weight, ...], tp: int = 1) -> int:
    """Elements of ``weights`` on the fullest of ``tp`` tensor-parallel devices."""
    return sum(weight.count(tp) for weight in weights)


def norm(model: Any, name: str, width: int, split: bool = False) -> tuple[Weight, ...]:
    """A norm of ``width`` elements: weight and bias, weight, or nothing."""
    each = {"layernorm": 2, "rmsnorm": 1, "none": 0}[model.norm]
    return (Weight(name, width, each, split, "norm"),) if each else ()


def attention(model: Any) -> tuple[Weight, ...]:
    """Weights of one attention block, its own norms included."""
    h, a, g, e = model.hidden, model.heads, model.kv_heads, model.head_dim
    if model.latent:
        weights = _latent(model)
    else:  # query, key and value; keys and values in groups if there are fewer of them
        heads = (("query", a), ("key", g), ("value", g))
        weights = tuple(Weight(name, n, e * h, inputs=h) for name, n in heads)
        if model.qkv_bias:
            weights += tuple(Weight(f"{name} bias", n, e, kind="bias") for name, n in heads)
        for name, n in heads[:2]:
            if model.qk_norm == "own":
                weights += (Weight(f"{name} norm", n, e, kind="norm"),)
            elif model.qk_norm is not None:
                whole = model.qk_norm == "full"
                weights += norm(model, f"{name} norm", n * e if whole else e, whole)
        if model.attention_sinks:
            weights += (Weight("attention sinks", a, 1, kind="bias"),)
    weights += (Weight("attention output", a, model.v_dim * h, inputs=a * model.v_dim, row=True),)
    # added once, after the sum over devices: held whole by each
    return weights + _bias(model.out_bias, "attention output", h)


def _bias(there: bool, name: str, width: int) -> tuple[Weight, ...]:
    """A bias that every device holds whole."""
    return (Weight(f"{name} bias", width, 1, False, "bias"),) if there else ()


def _latent(model: Any) -> tuple[Weight, ...]:
    """Multi-head latent attention: down to a latent vector that every device needs whole, up from
    it by heads (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    h, a, q, kv = model.hidden, model.heads, model.q_lora_rank, model.kv_lora_rank
    rows = (("query", q, q), ("kv", kv + model.qk_rope_head_dim, kv))
    down = {}
    for name, n, normed in rows:
        weight = Weight(f"{name} down", n, h, False, inputs=h)
        beside = _bias(model.qkv_bias, f"{name} down", n)
        down[name] = (weight, *beside, *norm(model, f"{name} latent norm", normed)) if n else ()
    query = Weight("query up" if q else "query", a, model.qk_dim * (q or h), inputs=q or h)
    up = model.qk_nope_head_dim + model.v_head_dim
    return (*down["query"], query, *down["kv"], Weight("kv up", a, up * kv, inputs=kv))


def mlp(
    model: Any, name: str = "mlp", width: int = 0, copies: int = 1, active: int = 1
) -> tuple[Weight, ...]:
    """Weights of a dense MLP, or of ``copies`` of one of this ``width``."""
    h, width = model.hidden, width or model.ffn
    held = partial(Weight, copies=copies, active=active)
    into = (f"{name} gate", f"{name} up") if model.mlp == "swiglu" else (f"{name} up",)
    weights = tuple(held(part, width, h, inputs=h) for part in into)
    weights += (held(f"{name} down", width, h, inputs=width, row=True),)
    if model.mlp_bias:
        weights += tuple(held(f"{part} bias", width, 1, kind="bias") for part in into)
        weights += (held(f"{name} down bias", h, 1, False, "bias"),)
    return weights


def mixture(model: Any) -> tuple[Weight, ...]:
    """Weights of a mixture of experts: router, experts, and what every token passes."""
    h, n = model.hidden, model.experts
    weights = mlp(model, "mlp", model.expert_ffn, n, model.top_k)
    weights += mlp(model, "shared mlp", model.shared_ffn) if model.shared_ffn else ()
    if model.shared_gate:
        weights += (Weight("shared expert gate", 1, h, split=False, inputs=h),)
    router = Weight("router", n, h, split=False, inputs=h)
    return (*weights, router, *_bias(model.router_bias, "router", n))
