"""The sizes of a transformer of equal blocks, as its config gives them: the fields of a Model, and
the rules that they obey."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.whole import whole_number

__all__ = ["MOST", "MOST_LAYERS", "ModelSizes", "check_integer", "completed"]


@dataclass(frozen=True, repr=False)
class ModelSizes:
    """The sizes of a Model, and the widths of a head that follow from them."""

    hidden: int
    """Width of the residual stream, h."""
    layers: int
    heads: int
    """Query heads, a."""
    ffn: int
    """Inner width of the MLP."""
    vocab: int
    """Rows of the embedding matrix, V."""
    kv_heads: int = 0
    """Key and value heads; 0 means as many as query heads."""
    head_dim: int = 0
    """Width of one head; 0 means hidden / heads, and qk_dim in latent attention."""
    mlp: str = "gelu"
    """Kind of MLP; "gelu": two matrices; "swiglu": three, one of them a gate (any activation)."""
    norm: str = "layernorm"
    """Kind of norm; "layernorm": weight and bias; "rmsnorm": weight; "none": no parameters."""
    qkv_bias: bool = True
    """Biases of query, key and value; in latent attention, of the down-projections."""
    out_bias: bool = True
    mlp_bias: bool = True
    tied: bool = True
    """The output projection is the embedding matrix."""
    learned_pos: int = 0
    """Rows of a learned position embedding; 0 for rotary or ALiBi positions."""
    unused_pos: int = 0
    """Rows of it that belong to no token, as OPT's and RoBERTa's first two."""
    experts: int = 0
    """Experts in each mixture; 0 for a dense model."""
    top_k: int = 0
    """Experts that a token visits."""
    qk_norm: str | None = None
    """None, "per_head" (one norm of head_dim), "full" (one over all heads) or "own" (a scale of
    head_dim for each head)."""
    embedding_norm: bool = False
    """A norm after the embedding, as in BLOOM."""
    dropout: bool = False
    """Trained with dropout, whose masks then are kept for the backward pass."""
    name: str = "model"
    source: str = ""
    """Where the numbers come from."""
    expert_ffn: int = 0
    """Inner width of one expert; 0 means ffn."""
    shared_ffn: int = 0
    """Inner width, all together, of the shared experts that every token passes."""
    shared_gate: bool = False
    """A gate of h weights scales what the shared experts add, as in Qwen's mixtures."""
    router_bias: bool = False
    """The router adds a bias per expert that balances their load, as in DeepSeek-V3."""
    dense_layers: tuple[int, ...] = ()
    """Layers of a mixture model, counted from 0, that have a dense MLP."""
    kv_lora_rank: int = 0
    """Width of the key-value latent; more than 0 makes the attention latent (MLA)."""
    q_lora_rank: int = 0
    """Width of the query latent; 0 projects queries directly."""
    qk_nope_head_dim: int = 0
    """Width of a latent-attention head's query and key without position."""
    qk_rope_head_dim: int = 0
    """Width of its rotary part, which all heads of a key share."""
    v_head_dim: int = 0
    """Width of a latent-attention head's value."""
    mtp_layers: int = 0
    """Multi-token-prediction modules that belong to the model."""
    with_mtp: bool = False
    """Count these modules, with the head; published sizes leave them out."""
    layer_norms: int = 2
    """Norms of a layer on the residual stream: 2; 1 where attention and MLP read the same normed
    input, side by side; 4 where what they add is normed, too."""
    final_norm: bool = True
    """A norm before the head."""
    head_bias: bool = False
    """The output projection has a bias."""
    head_dense: bool = False
    """A matrix of h x h, its bias and a norm before the output projection, as in BERT."""
    attention_sinks: bool = False
    """A learned score per head that takes part in the softmax, as in gpt-oss."""
    embedding_width: int = 0
    """Width of the embedding and of the output projection, between which and the layers
    matrices stand; 0 means h, and none."""
    token_types: int = 0
    """Rows of an embedding of token types, as in BERT."""
    causal: bool = True
    """A token attends to those before it; False: to all, as in an encoder."""
    window: int = 0
    """Tokens that a token sees in a layer with a sliding window, itself included; 0: all."""
    windowed_layers: int = 0
    """Layers with that window; the others see all."""
    imbalance: float = 1.0
    """Tokens of the fullest device of experts over the mean: what routing leaves uneven, or the
    capacity factor that tokens are dropped or padded to."""

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence that it has positions for; 0: no position is learned, and
        there is no limit.

        >>> sizes = dict(hidden=64, layers=4, heads=4, ffn=256, vocab=100)
        >>> ModelSizes(**sizes, learned_pos=514, unused_pos=2).positions
        512
        """
        return self.learned_pos - self.unused_pos

    @property
    def usual_sequence(self) -> int:
        """Tokens of a sequence where nobody says how many: 2048, or all its positions."""
        return min(2048, self.positions or 2048)

    def visible(self, sequence: Any) -> Any:
        """The part of a layer's s x s scores that its mask leaves, of long sequences; the mean over
        all layers: 1/2 under a causal mask, w/s - (w/s)^2/2 in a window of w tokens.

        >>> sizes = dict(hidden=64, layers=4, heads=4, ffn=256, vocab=100)
        >>> ModelSizes(**sizes).visible(1000)
        0.5
        >>> ModelSizes(**sizes, window=100, windowed_layers=2).visible(1000)
        0.2975
        """
        whole = 0.5 if self.causal else 1.0
        near = np.minimum(1.0, self.window / sequence)
        seen = near - near**2 / 2 if self.causal else np.minimum(1.0, 2 * near - near**2)
        part = self.windowed_layers / self.layers
        return float(part * seen + (1 - part) * whole)

    @property
    def head_matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the products from the last layer to the logits.

        They end in the output projection.
        """
        h, width = self.hidden, self.embedding_width or self.hidden
        before = ((h, h),) if self.head_dense else ()
        return (*before, *(((h, width),) if self.embedding_width else ()), (width, self.vocab))

    @property
    def head_tensors(self) -> int:
        """Tensors of h numbers a token that the head keeps for the backward pass: the inputs of
        its products and norms, and of BERT's activation."""
        normed = self.norm != "none"
        return 1 + (self.final_norm and normed) + self.head_dense * (2 + normed)

    @property
    def latent(self) -> bool:
        """Whether attention is latent (multi-head latent attention, MLA)."""
        return self.kv_lora_rank > 0

    @property
    def qk_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.latent else self.head_dim

    @property
    def v_dim(self) -> int:
        """Width of a head's value."""
        return self.v_head_dim if self.latent else self.head_dim


MANY, MOST = 100_000, 10**9
MOST_LAYERS = 4096
"""Thirty times what anyone has built; every way to cut them into stages can still be looked at."""

_LARGEST = dict.fromkeys(("layers", "windowed_layers"), MOST_LAYERS)
_LARGEST |= dict.fromkeys(("heads", "kv_heads", "experts", "top_k"), MANY) | {"mtp_layers": 1000}
"""Field -> its largest value where that is not MOST; beyond lies no transformer but a typing
error."""
_WORDS = {
    "mlp": ("gelu", "swiglu"),
    "norm": ("layernorm", "rmsnorm", "none"),
    "qk_norm": (None, "per_head", "full", "own"),
    "layer_norms": (1, 2, 4),
}
_LATENT = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_MIXTURE = ("shared_ffn", "shared_gate", "router_bias", "dense_layers")


def completed(model: ModelSizes) -> dict[str, object]:
    """The fields that follow from the others, once every rule holds; else a ConfigError."""
    for field in fields(model):
        value = getattr(model, field.name)
        if field.name in _WORDS:
            if value not in _WORDS[field.name]:
                rule = f"must be one of {_WORDS[field.name]}, got {short(value)}"
                raise _error(model, f"{field.name} {rule}")
        elif field.type is int:
            least, most = int(field.default is MISSING), _LARGEST.get(field.name, MOST)
            number = check_integer(model.name, field.name, value, least, most)
            object.__setattr__(model, field.name, number)
        elif field.type is bool and not isinstance(value, bool):
            raise _error(model, f"{field.name} must be true or false, got {short(value)}")
    kv_heads = model.kv_heads or model.heads
    latent = _broken_of_latent_attention if model.latent else _broken_of_heads
    for broken in (_broken, _broken_of_mixtures, latent):
        for rule in broken(model, kv_heads):
            raise _error(model, rule)
    numbers = (
        check_integer(model.name, "dense_layers", layer, 0, model.layers - 1)
        for layer in model.dense_layers
    )
    return {
        "kv_heads": kv_heads,
        "head_dim": model.qk_dim or model.hidden // model.heads,
        "expert_ffn": model.expert_ffn or model.ffn,
        "dense_layers": tuple(sorted({*numbers})),
    }


def _broken(model: ModelSizes, kv_heads: int) -> Iterator[str]:
    """The rules that any model breaks."""
    positions, unused, layers = model.learned_pos, model.unused_pos, model.layers
    if 0 < unused >= positions:
        yield f"unused_pos ({unused}) must be less than learned_pos ({positions})"
    if model.heads % kv_heads:
        yield f"heads ({model.heads}) must be a multiple of kv_heads ({kv_heads})"
    window, windowed = model.window, model.windowed_layers
    if bool(window) != bool(windowed) or windowed > layers:
        yield (
            f"window={window} and windowed_layers={windowed} go together, and of {layers} layers "
            f"no more can have it"
        )
    if model.with_mtp and not model.mtp_layers:
        yield "with_mtp counts modules that mtp_layers=0 says do not exist"
    dense = model.dense_layers
    if not isinstance(dense, list | tuple | range) or len(dense) > layers:
        yield f"dense_layers must be a tuple of at most {layers} layer numbers, got {short(dense)}"


def _broken_of_mixtures(model: ModelSizes, kv_heads: int) -> Iterator[str]:
    experts, top_k, uneven = model.experts, model.top_k, model.imbalance
    if not (experts == top_k == 0 or 1 <= top_k <= experts):
        yield f"top_k must lie between 1 and experts, got top_k={top_k}, experts={experts}"
    if not experts:
        for field in _MIXTURE:
            if getattr(model, field):
                yield f"{field} belongs to a mixture, which needs experts of 1 or more"
    if isinstance(uneven, bool) or not isinstance(uneven, int | float) or not 1 <= uneven <= MANY:
        yield f"imbalance must be a number of 1 or more, got {short(uneven)}; 1 is even routing"
    elif uneven > 1 and not experts:
        yield "imbalance is of experts' tokens, and there are none; leave it out"
    elif uneven > 1 and uneven * top_k > experts:
        yield (
            f"imbalance={uneven:g} gives an expert more tokens than there are, with top_k={top_k} "
            f"of {experts} experts; {experts / top_k:g} or less"
        )
    if model.shared_gate and not model.shared_ffn:
        yield "shared_gate scales a shared expert, which needs shared_ffn"


def _broken_of_heads(model: ModelSizes, kv_heads: int) -> Iterator[str]:
    for field in _LATENT:
        if getattr(model, field):
            yield f"{field} belongs to latent attention, which needs kv_lora_rank"
    if not model.head_dim and model.hidden % model.heads:
        yield f"hidden ({model.hidden}) must be a multiple of heads ({model.heads})"


def _broken_of_latent_attention(model: ModelSizes, kv_heads: int) -> Iterator[str]:
    for field in _LATENT[1:]:
        if not getattr(model, field):
            yield f"{field} must be 1 or more in latent attention, got 0"
    heads, own = model.heads, "in latent attention; leave it out"
    if kv_heads != heads:
        yield f"kv_heads ({kv_heads}) must equal heads ({heads}) {own}"
    if model.qk_norm:
        yield f"qk_norm must be None in latent attention, got {model.qk_norm!r}"
    if model.head_dim not in (0, model.qk_dim):
        parts = f"qk_nope_head_dim + qk_rope_head_dim ({model.qk_dim})"
        yield f"head_dim ({model.head_dim}) must be {parts} {own}"


def _error(model: ModelSizes, rule: str) -> ConfigError:
    return ConfigError(f"{_called(model.name)}: {rule}")


def _called(name: object) -> str:
    return "model" if name == "model" else f"model {name}"


def check_integer(name: str, field: str, value: object, low: int, high: int) -> int:
    """``value``, a whole number from ``low`` to ``high``, of the model called ``name``."""
    return whole_number(f"{_called(name)}: {field}", value, low, high)
