"""A transformer as a list of weights: every parameter count follows from it.

embedding | layer 1 | ... | layer L | head      items, in the order of a pipeline
 V x h      attention, MLP, norms     norm, V x h
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.kinds import MIXERS, LayerKind, layer_kind
from tiledask.plan.inputs.weights import Weight, norm
from tiledask.plan.units import divisors
from tiledask.plan.whole import whole_number

__all__ = ["MOST_LAYERS", "Model", "Weight"]

MOST, MOST_LAYERS = 10**9, 4096
LARGEST = dict.fromkeys(("layers", "windowed_layers"), MOST_LAYERS)
LARGEST |= dict.fromkeys(("heads", "kv_heads", "experts", "top_k"), 100_000)
"""Field -> its largest value where that is not MOST; beyond lies no model but a typing error."""
WORDS: dict[str, tuple[Any, ...]] = {
    "mlp": ("gelu", "swiglu", "none"),
    "norm": ("layernorm", "rmsnorm", "none"),
    "qk_norm": (None, "per_head", "full", "own"),
    "layer_norms": (1, 2, 4),
}
LATENT = ("qk_nope_head_dim", "qk_rope_head_dim")
MIXTURE = (
    "shared_ffn",
    "shared_gate",
    "router_bias",
    "expert_hidden",
    "expert_norm",
    "dense_layers",
)
SCAN = ("ssm_heads", "ssm_head_dim", "ssm_state", "conv_kernel")
"""What mixers need that read the tokens in turn."""
COMPRESSED = ("q_lora_rank", "output_groups", "output_rank")
CHECKED = {"attention", "latent", "none"}
"""Mixers of the models whose runs are published (data/published)."""
OF_ALL = (
    "hidden",
    "layers",
    "mtp_layers",
    "vocab",
    "name",
    "source",
    "kinds",
    "pattern",
    "dense_layers",
)
"""Fields that all layers of a model share."""
DENSE: dict[str, Any] = dict.fromkeys(("experts", "top_k", "expert_ffn", "shared_ffn"), 0)
DENSE |= {
    "expert_hidden": 0,
    "expert_norm": False,
    "shared_gate": False,
    "router_bias": False,
    "imbalance": 1.0,
}
"""What the dense layers of a mixture model have not."""


@dataclass(frozen=True, repr=False)
class Model:
    """A decoder-only transformer, or an encoder of the same blocks (``causal=False``).

    Heads, groups of heads or latent attention; dense MLPs or mixtures of experts, whose
    first layers may be dense; or layers of other kinds, in any order. Sizes that contradict each
    other are a ConfigError.

    >>> gpt2 = Model(hidden=768, layers=12, heads=12, ffn=3072, vocab=50257, learned_pos=1024)
    >>> gpt2.parameters
    124439808

    Layers of several kinds differ from the model, and from each other, in fields of ``kinds``:

    >>> sizes = dict(hidden=1024, layers=4, heads=16, ffn=4096, vocab=1000)
    >>> scan = dict(ssm_heads=32, ssm_head_dim=64, ssm_groups=8, ssm_state=128, conv_kernel=4)
    >>> hybrid = Model(**sizes, **scan, kinds=({"mixer": "mamba2"}, {}), pattern=(0, 0, 0, 1))
    >>> [(kind.name, kind.many) for kind in hybrid.layer_kinds]
    [('mamba2 layer', 3), ('attention layer', 1)]
    """

    hidden: int  # Width of the residual stream, h
    layers: int
    heads: int  # Query heads, a
    ffn: int  # Inner width of the MLP
    vocab: int  # Rows of the embedding matrix, V
    kv_heads: int = 0  # Key and value heads; 0 means as many as query heads
    head_dim: int = 0
    """Width of a head's query and key; 0 means hidden / heads, and in latent attention what
    qk_nope_head_dim and qk_rope_head_dim are together."""
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
    v_head_dim: int = 0  # Width of a head's value; 0 means head_dim
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
    # -- layers of several kinds
    kinds: tuple[Any, ...] = ()
    """Of each kind of layer the fields above or below in which it differs from the model."""
    pattern: tuple[int, ...] = ()  # Of each layer its place in ``kinds``; () where all are alike
    mixer: str = "attention"
    """What mixes tokens: "attention", "latent" (so where kv_lora_rank is), "compressed", "mamba2",
    "mamba", "delta", "conv", "none", or two side by side with "+" between them."""
    output_gate: int = 0  # Numbers of a head that gate its output: head_dim, 1, or none
    key_is_value: bool = False  # Keys are the values, too
    shares_keys: bool = False  # Keys and values are those of an earlier layer
    chunked: bool = False  # Windows are chunks of the sequence, which see themselves alone
    index_heads: int = 0  # Heads of an indexer that chooses which tokens are seen; 0: none
    index_dim: int = 0
    index_topk: int = 0  # Tokens that it chooses
    compress: int = 0  # Tokens of a piece that is seen as one; 0: none
    output_groups: int = 0  # Groups of heads whose outputs go down to output_rank each
    output_rank: int = 0
    ssm_heads: int = 0  # Heads (of mamba: channels) of a scan
    ssm_groups: int = 0  # Heads of its keys and queries (B and C)
    ssm_head_dim: int = 1  # Width of a value
    ssm_state: int = 0  # Width of a key
    ssm_norm: bool = False  # A norm before the output (mamba2), or of step, B and C (mamba)
    ssm_bias: bool = False
    conv_kernel: int = 0  # Tokens that a short convolution sees
    conv_bias: bool = False
    decay_channels: bool = False  # The delta rule forgets by channel, not by head
    decay_rank: int = 0  # Rank of its decay's product, or of mamba's steps; 0: full
    gate_rank: int = 0
    expert_hidden: int = 0  # Width of the space that experts work in; 0 means hidden
    expert_norm: bool = False  # A norm before they leave it
    streams: int = 1  # Residual streams, side by side
    more: tuple[Weight, ...] = ()  # What else a layer, the embedding or the head has
    embedding_more: tuple[Weight, ...] = ()
    head_more: tuple[Weight, ...] = ()
    mtp_layers: int = 0
    """Layers after the last that predict further tokens, each with a projection of two inputs and
    logits of its own (DeepSeek-V3, arXiv:2412.19437, section 2.2); a config.json's are left out."""
    notes: tuple[str, ...] = ()
    """What of the model that was meant is not counted or planned."""

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
        latent = "latent" if own["kv_lora_rank"] and self.mixer == "attention" else self.mixer
        try:
            kinds = tuple(tuple(sorted(dict(kind).items())) for kind in self.kinds)
            pattern = tuple(map(int, self.pattern))
        except (TypeError, ValueError):
            rule = (
                "kinds are a tuple of dicts, of fields and values, and pattern one of whole numbers"
            )
            raise ConfigError(f"{where}: {rule}, got {short(self.kinds)}") from None
        vars(self).update(own, kv_heads=own["kv_heads"] or own["heads"], mixer=latent)
        vars(self).update(kinds=kinds, pattern=pattern)
        if broken := next((rule for is_broken, rule in _rules(self) if is_broken), None):
            raise ConfigError(f"{where}: {broken}")
        name, last = f"{where}: dense_layers", self.layers - 1
        dense = sorted({whole_number(name, n, 0, last) for n in self.dense_layers})
        width = self.head_dim or self.hidden // self.heads
        width = self.qk_nope_head_dim + self.qk_rope_head_dim if self.kv_lora_rank else width
        inner = self.expert_ffn or self.ffn
        vars(self).update(dense_layers=tuple(dense), head_dim=width, expert_ffn=inner)
        if self.kinds and self.layer_kinds:  # each kind keeps the rules, too
            self.check_tp(1)

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
        all layers: 1/2 under a causal mask, w/s - (w/s)^2/2 in a window of w tokens. Where tokens
        are chosen, index_topk are a window; pieces of tokens are seen beside one.

        >>> sizes = dict(hidden=64, layers=4, heads=4, ffn=256, vocab=100)
        >>> Model(**sizes, window=100, windowed_layers=2).visible(1000)
        0.2975
        """
        part, pieces = self.windowed_layers / self.layers, self.compress or 1
        widths = self.window, pieces * self.index_topk
        near = [np.minimum(1.0, width / sequence) for width in widths]
        if self.chunked:
            return float((1 - part + part * near[0]) * (0.5 if self.causal else 1.0))
        window, chosen = (
            n - n**2 / 2 if self.causal else np.minimum(1.0, 2 * n - n**2) for n in near
        )
        whole = chosen if self.index_topk else 0.5 if self.causal else 1.0
        rest = whole / pieces if self.compress else (1 - part) * whole
        return float(part * window + rest)

    def scored(self, sequence: Any) -> float:
        """The part of the s x s scores that the indexer works out, of single tokens or pieces."""
        return (0.5 if self.causal else 1.0) / (self.compress or 1)

    @property
    def unchecked(self) -> str:
        """What of its layers no published run was compared with, in a few words."""
        mixers = {dict(kind).get("mixer", self.mixer) for kind in self.kinds} or {self.mixer}
        parts = {part for mixer in mixers for part in mixer.split("+")} - CHECKED
        found = [*sorted(parts), *["sparse attention"] * bool(self.index_topk)]
        found += ["parallel streams"] * (self.streams > 1)
        return ", ".join(found)

    @cached_property
    def embedding(self) -> tuple[Weight, ...]:
        """Weights of the first item: token rows, position rows, norm."""
        weights: tuple[Weight, ...] = (Weight("token embedding", self.vocab, self.hidden),)
        if rows := self.learned_pos:
            weights += (Weight("position embedding", rows, self.hidden, split=False),)
        weights += norm(self, "embedding norm", self.hidden) if self.embedding_norm else ()
        return weights + self.embedding_more

    @cached_property
    def _own(self) -> tuple[tuple[int, bool], ...]:
        """Of each layer (its place in ``kinds``, whether a mixture has its experts there)."""
        dense = {*self.dense_layers}
        each = enumerate(self.pattern or (0,) * self.layers)
        return tuple((kind, layer not in dense) for layer, kind in each)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """Of each layer, the first one first, its place in ``layer_kinds``."""
        return tuple(map(sorted({*self._own}).index, self._own))

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layer that it has, each by what tells it from the others."""
        alike: dict[str, Any] = {"kinds": (), "pattern": (), "dense_layers": ()}
        every, views = sorted({*self._own}), list[Model]()
        for kind, routed in every:
            differs = dict(self.kinds[kind]) if self.kinds else {}
            views.append(replace(self, **alike | differs | ({} if routed else DENSE)))
        told: dict[str, tuple[str, ...]] = {
            "mixer": tuple(view.mixer.replace("none", "MLP") for view in views)
        }
        told["window"] = tuple("sliding" if view.window else "full" for view in views)
        mlps = (("mixture" if view.experts else "dense") * (view.mlp != "none") for view in views)
        told["mlp"] = tuple(mlps)
        names: list[str] = []
        for at, view in enumerate(views):
            words = [each[at] for each in told.values() if len({*each}) > 1 and each[at]]
            name = " ".join([*words, "layer"])
            if view.experts and name == "layer":
                name = "mixture layer"
            names.append(name)
        twice = [
            f" {names[:at].count(name) + 1}" * (name in names[:at]) for at, name in enumerate(names)
        ]
        names = [f"{name}{number}" for name, number in zip(names, twice, strict=True)]
        return tuple(map(layer_kind, views, names, map(self._own.count, every)))

    @property
    def layer(self) -> tuple[Weight, ...]:
        """Weights of the last layer."""
        return self.layer_kinds[self.kind_of[-1]].weights

    @cached_property
    def head(self) -> tuple[Weight, ...]:
        """Weights of the last item: final norm, and output projection unless tied."""
        weights = norm(self, "final norm", self.hidden) if self.final_norm else ()
        if not self.tied:
            weights += (Weight("output projection", self.vocab, self.hidden, inputs=self.hidden),)
        if self.head_bias:
            weights += (Weight("output projection bias", self.vocab, 1, kind="bias"),)
        joined = Weight("MTP projection", self.hidden, 2 * self.hidden, inputs=2 * self.hidden)
        further = (joined, *norm(self, "MTP norms", 3 * self.hidden), *self.layer)
        weights += self.mtp_layers * further
        return weights + self.head_more

    @property
    def item_parameters(self) -> tuple[int, ...]:
        """Parameters of the embedding, each layer and the head: layers + 2 numbers."""
        items = *(kind.weights for kind in self.layer_kinds), self.embedding, self.head
        *each, embedding, head = (sum(weight.count() for weight in item) for item in items)
        return (embedding, *(each[kind] for kind in self.kind_of), head)

    @cached_property
    def parameters(self) -> int:
        """All trainable parameters, exactly."""
        return sum(self.item_parameters)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all, embedding and head too, less the experts it does
        not visit."""
        every = ((kind.many, w) for kind in self.layer_kinds for w in kind.weights)
        return self.parameters - sum(n * (w.copies - w.active) * w.units * w.size for n, w in every)

    def allows_tp(self, tp: int) -> bool:
        """Whether attention heads, and groups of them, can be divided over ``tp`` devices."""
        return all(a % tp == 0 and (g % tp == 0 or tp % g == 0) for a, g in self.dealt)

    @cached_property
    def dealt(self) -> set[tuple[int, int]]:
        """(heads, groups) of every core of its layers."""
        cores = {core[:2] for kind in self.layer_kinds for core in kind.cores if core.v}
        return cores or {(self.heads, self.kv_heads)}

    def check_tp(self, tp: int, most: int = MOST) -> None:
        if not self.allows_tp(tp):
            near = [t for t in divisors(self.heads, most) if self.allows_tp(t)]
            heads, groups = (
                ", ".join(map(str, sorted({*n}))) for n in zip(*self.dealt, strict=True)
            )
            raise ConfigError(
                f"tp={tp} does not divide the {heads} attention heads of {self.name}, or its "
                f"{groups} key-value heads unevenly; tp may be one of {near}"
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
    mixers = m.mixer.split("+")
    rule = f"mixer must be one of {(*MIXERS, 'none')}, or two of them with '+' between, got "
    yield not {*mixers} <= {*MIXERS, "none"} or len(mixers) > 2, rule + short(m.mixer)
    yield m.mixer == m.mlp == "none", "a layer has a mixer or an MLP; one of them is 'none'"
    scans = {"mamba2", "mamba", "delta"} & {*mixers}
    needed = SCAN if scans else SCAN[-1:] * ("conv" in mixers)
    for name in needed + COMPRESSED * ("compressed" in mixers):
        yield not getattr(m, name), f"{name} must be 1 or more with mixer {m.mixer!r}, got 0"
    for heads, groups in (("ssm_heads", "ssm_groups"), ("heads", "output_groups")):
        many, of = getattr(m, heads), getattr(m, groups)
        yield of and many % of, f"{heads} ({many}) must be a multiple of {groups} ({of})"
    for name in ("index_dim", "index_topk") if m.index_heads else ():
        yield not getattr(m, name), f"{name} must be 1 or more with an indexer, got 0"
    own = {field.name for field in fields(Model)} - {*OF_ALL}
    unknown = sorted({name for kind in m.kinds for name, _ in kind} - own)
    yield unknown, f"kinds can differ in {', '.join(sorted(own))}; not in {short(unknown)}"
    rule = f"pattern has, of each of {layers} layers, which of the {len(m.kinds)} kinds it is, got "
    listed = len(m.pattern) == layers * bool(m.kinds)
    yield not listed or not {*m.pattern} <= {*range(len(m.kinds))}, rule + short(m.pattern)
    for name in () if m.experts else MIXTURE:
        yield getattr(m, name), f"{name} belongs to a mixture, which needs experts of 1 or more"
    if not m.kv_lora_rank:
        for name in LATENT:
            yield getattr(m, name), f"{name} belongs to latent attention, which needs kv_lora_rank"
        rule = f"hidden ({m.hidden}) must be a multiple of heads ({m.heads})"
        yield not m.head_dim and m.hidden % m.heads, rule
        return
    for name in (*LATENT, "v_head_dim"):
        yield not getattr(m, name), f"{name} must be 1 or more in latent attention, got 0"
    out = "in latent attention; leave it out"
    yield kv != m.heads, f"kv_heads ({kv}) must equal heads ({m.heads}) {out}"
    yield m.qk_norm, f"qk_norm must be None {out}"
    width = m.qk_nope_head_dim + m.qk_rope_head_dim
    rule = f"head_dim ({m.head_dim}) must be qk_nope_head_dim + qk_rope_head_dim ({width}) {out}"
    yield m.head_dim not in (0, width), rule
