"""A transformer as a list of weights: every parameter count follows from it.

embedding | layer 1 | ... | layer L | head      items, in the order of a pipeline
 V x h      attention, MLP, norms     norm, V x h
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.weights import Weight, attention, count, mixture, mlp, norm
from tiledask.plan.units import divisors
from tiledask.plan.whole import whole_number

__all__ = ["MIXTURE_LAYER", "MOST_LAYERS", "Model", "Weight", "count"]

MOST, MOST_LAYERS = 10**9, 4096
LARGEST = dict.fromkeys(("layers", "windowed_layers"), MOST_LAYERS)
LARGEST |= dict.fromkeys(("heads", "kv_heads", "experts", "top_k"), 100_000)
"""Field -> its largest value where that is not MOST; beyond lies no model but a typing error."""
WORDS: dict[str, tuple[Any, ...]] = {
    "mlp": ("gelu", "swiglu"),
    "norm": ("layernorm", "rmsnorm", "none"),
    "qk_norm": (None, "per_head", "full", "own"),
    "layer_norms": (1, 2, 4),
}
MIXTURE_LAYER = "mixture layer"
"""The kind of layer whose MLP is a mixture of experts."""
LATENT = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
MIXTURE = ("shared_ffn", "shared_gate", "router_bias", "dense_layers")


@dataclass(frozen=True, repr=False)
class Model:
    """A decoder-only transformer, or an encoder of the same blocks (``causal=False``).

    Heads, groups of heads or latent attention; dense MLPs or mixtures of experts, whose
    first layers may be dense. Sizes that contradict each other are a ConfigError.

    >>> gpt2 = Model(hidden=768, layers=12, heads=12, ffn=3072, vocab=50257, learned_pos=1024)
    >>> gpt2.parameters
    124439808
    """

    hidden: int  # Width of the residual stream, h
    layers: int
    heads: int  # Query heads, a
    ffn: int  # Inner width of the MLP
    vocab: int  # Rows of the embedding matrix, V
    kv_heads: int = 0  # Key and value heads; 0 means as many as query heads
    head_dim: int = 0  # Width of one head; 0 means hidden / heads, and qk_dim in latent attention
    mlp: str = "gelu"
    """Kind of MLP; "gelu": two matrices; "swiglu": three, one of them a gate (any activation)."""
    norm: str = "layernorm"
    """Kind of norm; "layernorm": weight and bias; "rmsnorm": weight; "none": no parameters."""
    qkv_bias: bool = True
    """Biases of query, key and value; in latent attention, of the down-projections."""
    out_bias: bool = True
    mlp_bias: bool = True
    tied: bool = True  # The output projection is the embedding matrix
    learned_pos: int = 0  # Rows of a learned position embedding; 0 for rotary or ALiBi positions
    unused_pos: int = 0  # Rows of it that belong to no token, as OPT's and RoBERTa's first two
    experts: int = 0  # Experts in each mixture; 0 for a dense model
    top_k: int = 0  # Experts that a token visits
    qk_norm: str | None = None
    """None, "per_head" (one norm of head_dim), "full" (one over all heads) or "own" (a scale of
    head_dim for each head)."""
    embedding_norm: bool = False  # A norm after the embedding, as in BLOOM
    dropout: bool = False  # Trained with dropout, whose masks then are kept for the backward pass
    name: str = "model"
    source: str = ""  # Where the numbers come from
    expert_ffn: int = 0  # Inner width of one expert; 0 means ffn
    shared_ffn: int = 0  # Inner width, all together, of the shared experts that every token passes
    shared_gate: bool = False  # A gate of h weights scales what the shared experts add (Qwen)
    router_bias: bool = False  # The router adds a bias per expert (DeepSeek-V3)
    dense_layers: tuple[int, ...] = ()  # Layers of a mixture model, from 0, with a dense MLP
    kv_lora_rank: int = 0  # Width of the key-value latent; above 0 the attention is latent (MLA)
    q_lora_rank: int = 0  # Width of the query latent; 0 projects queries directly
    qk_nope_head_dim: int = 0  # Width of a latent-attention head's query and key without position
    qk_rope_head_dim: int = 0  # Width of its rotary part, which all heads of a key share
    v_head_dim: int = 0  # Width of a latent-attention head's value
    layer_norms: int = 2
    """Norms of a layer on the residual stream: 2; 1 where attention and MLP read the same normed
    input, side by side; 4 where what they add is normed, too."""
    final_norm: bool = True  # A norm before the head
    head_bias: bool = False  # The output projection has a bias
    attention_sinks: bool = False
    """A learned score per head that takes part in the softmax, as in gpt-oss."""
    causal: bool = True  # A token attends to those before it; False: to all, as in an encoder
    window: int = 0
    """Tokens that a token sees in a layer with a sliding window, itself included; 0: all."""
    windowed_layers: int = 0  # Layers with that window; the others see all
    imbalance: float = 1.0
    """Tokens of the fullest device of experts over the mean: what routing leaves uneven, or the
    capacity factor that tokens are dropped or padded to."""

    def __post_init__(self) -> None:
        where = "model" if self.name == "model" else f"model {self.name}"
        own: dict[str, Any] = {}
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value not in WORDS.get(name, (value,)):
                rule = f"{name} must be one of {WORDS[name]}, got {short(value)}"
                raise ConfigError(f"{where}: {rule}")
            if field.type is int and name not in WORDS:
                least, most = int(field.default is MISSING), LARGEST.get(name, MOST)
                own[name] = whole_number(f"{where}: {name}", value, least, most)
            elif field.type is bool and not isinstance(value, bool):
                rule = f"{name} must be true or false, got {short(value)}"
                raise ConfigError(f"{where}: {rule}")
        vars(self).update(own, kv_heads=own["kv_heads"] or own["heads"])
        if broken := next((rule for is_broken, rule in _rules(self) if is_broken), None):
            raise ConfigError(f"{where}: {broken}")
        name, last = f"{where}: dense_layers", self.layers - 1
        dense = sorted({whole_number(name, n, 0, last) for n in self.dense_layers})
        width = self.qk_dim or self.hidden // self.heads
        inner = self.expert_ffn or self.ffn
        vars(self).update(dense_layers=tuple(dense), head_dim=width, expert_ffn=inner)

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence that it has learned positions for; 0: no limit."""
        return self.learned_pos - self.unused_pos

    @property
    def usual_sequence(self) -> int:
        """Tokens of a sequence where nobody says how many: 2048, or all its positions."""
        return min(2048, self.positions or 2048)

    def visible(self, sequence: Any) -> Any:
        """The part of a layer's s x s scores that its mask leaves, of long sequences; the mean over
        all layers: 1/2 under a causal mask, w/s - (w/s)^2/2 in a window of w tokens.

        >>> sizes = dict(hidden=64, layers=4, heads=4, ffn=256, vocab=100)
        >>> Model(**sizes, window=100, windowed_layers=2).visible(1000)
        0.2975
        """
        whole = 0.5 if self.causal else 1.0
        near = np.minimum(1.0, self.window / sequence)
        seen = near - near**2 / 2 if self.causal else np.minimum(1.0, 2 * near - near**2)
        part = self.windowed_layers / self.layers
        return float(part * seen + (1 - part) * whole)

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

    @cached_property
    def embedding(self) -> tuple[Weight, ...]:
        """Weights of the first item: token rows, position rows, norm."""
        weights: tuple[Weight, ...] = (Weight("token embedding", self.vocab, self.hidden),)
        if rows := self.learned_pos:
            weights += (Weight("position embedding", rows, self.hidden, split=False),)
        return weights + (norm(self, "embedding norm", self.hidden) if self.embedding_norm else ())

    @cached_property
    def layer_kinds(self) -> tuple[tuple[str, int, tuple[Weight, ...]], ...]:
        """The kinds of layer that it has: (name, how many, weights of one)."""
        mixtures = self.layers - len(self.dense_layers) if self.experts else 0
        usual = "dense layer" if mixtures else "layer"
        kinds = (usual, self.layers - mixtures, mlp), (MIXTURE_LAYER, mixtures, mixture)
        return tuple((name, n, self._around(inner(self))) for name, n, inner in kinds if n)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """Of each layer, the first one first, its place in ``layer_kinds``."""
        several, dense = len(self.layer_kinds) > 1, {*self.dense_layers}
        return tuple(int(several and layer not in dense) for layer in range(self.layers))

    @property
    def layer(self) -> tuple[Weight, ...]:
        """Weights of the last layer."""
        return self.layer_kinds[self.kind_of[-1]][2]

    def _around(self, inner: tuple[Weight, ...]) -> tuple[Weight, ...]:
        """``inner`` with attention before it, and the norms of both."""

        def normed(name: str, least: int) -> tuple[Weight, ...]:
            return norm(self, name, self.hidden) if self.layer_norms >= least else ()

        before = normed("attention norm", 1) + attention(self) + normed("attention output norm", 4)
        return before + normed("mlp norm", 2) + inner + normed("mlp output norm", 4)

    @cached_property
    def head(self) -> tuple[Weight, ...]:
        """Weights of the last item: final norm, and output projection unless tied."""
        weights = norm(self, "final norm", self.hidden) if self.final_norm else ()
        if not self.tied:
            weights += (Weight("output projection", self.vocab, self.hidden, inputs=self.hidden),)
        if self.head_bias:
            weights += (Weight("output projection bias", self.vocab, 1, kind="bias"),)
        return weights

    @property
    def item_parameters(self) -> tuple[int, ...]:
        """Parameters of the embedding, each layer and the head: layers + 2 numbers."""
        each = [count(weights) for *_, weights in self.layer_kinds]
        return (count(self.embedding), *(each[kind] for kind in self.kind_of), count(self.head))

    @cached_property
    def parameters(self) -> int:
        """All trainable parameters, exactly."""
        return sum(self.item_parameters)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all, embedding and head too, less the experts it does
        not visit."""
        every = ((n, w) for _, n, weights in self.layer_kinds for w in weights)
        return self.parameters - sum(n * (w.copies - w.active) * w.units * w.size for n, w in every)

    def allows_tp(self, tp: int) -> bool:
        """Whether attention heads, and groups of them, can be divided over ``tp`` devices."""
        a, g = self.heads, self.kv_heads
        return a % tp == 0 and (g % tp == 0 or tp % g == 0)

    def check_tp(self, tp: int, most: int = MOST) -> None:
        if not self.allows_tp(tp):
            near = [t for t in divisors(self.heads, most) if self.allows_tp(t)]
            raise ConfigError(
                f"tp={tp} does not divide the {self.heads} attention heads of {self.name}, or its "
                f"{self.kv_heads} key-value heads unevenly; tp may be one of {near}"
            )

    def __repr__(self) -> str:
        active = f", {self.active_parameters:,} active" if self.experts else ""
        sizes = f"{self.layers} layers of width {self.hidden:,}, {self.parameters:,} parameters"
        return f"Model({self.name}: {sizes}{active})"


def _rules(m: Model) -> Iterator[tuple[Any, str]]:
    """(whether it is broken, the rule) of every one."""
    kv, layers, uneven = m.kv_heads, m.layers, m.imbalance
    rule = f"unused_pos ({m.unused_pos}) must be less than learned_pos ({m.learned_pos})"
    yield 0 < m.unused_pos >= m.learned_pos, rule
    yield m.heads % kv, f"heads ({m.heads}) must be a multiple of kv_heads ({kv})"
    rule = f"window={m.window} and windowed_layers={m.windowed_layers} go together, and of "
    rule += f"{layers} layers no more can have it"
    yield bool(m.window) != bool(m.windowed_layers) or m.windowed_layers > layers, rule
    rule = f"dense_layers must be a tuple of at most {layers} layer numbers, got "
    listed = isinstance(m.dense_layers, list | tuple | range) and len(m.dense_layers) <= layers
    yield not listed, rule + short(m.dense_layers)
    sizes = f"top_k={m.top_k}, experts={m.experts}"
    rule = f"top_k must lie between 1 and experts, got {sizes}"
    yield m.top_k > m.experts or (m.experts and not m.top_k), rule
    number = isinstance(uneven, int | float) and not isinstance(uneven, bool)
    rule = "imbalance must be a number of 1 or more, and of no more than experts / top_k, got "
    rule += f"{short(uneven)} with {sizes}; 1 is even routing"
    yield not number or not 1 <= uneven <= max(1, m.experts / max(1, m.top_k)), rule
    rule = "shared_gate scales a shared expert, which needs shared_ffn"
    yield m.shared_gate and not m.shared_ffn, rule
    for name in () if m.experts else MIXTURE:
        yield getattr(m, name), f"{name} belongs to a mixture, which needs experts of 1 or more"
    if not m.latent:
        for name in LATENT:
            yield getattr(m, name), f"{name} belongs to latent attention, which needs kv_lora_rank"
        rule = f"hidden ({m.hidden}) must be a multiple of heads ({m.heads})"
        yield not m.head_dim and m.hidden % m.heads, rule
        return
    for name in LATENT[1:]:
        yield not getattr(m, name), f"{name} must be 1 or more in latent attention, got 0"
    own = "in latent attention; leave it out"
    yield kv != m.heads, f"kv_heads ({kv}) must equal heads ({m.heads}) {own}"
    yield m.qk_norm, f"qk_norm must be None {own}"
    rule = f"head_dim ({m.head_dim}) must be qk_nope_head_dim + qk_rope_head_dim ({m.qk_dim}) {own}"
    yield m.head_dim not in (0, m.qk_dim), rule
