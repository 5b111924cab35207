"""A transformer as a list of weights: every parameter count follows from it.

embedding | layer 1 | ... | layer L | head      items, in the order of a pipeline
 V x h      attention, MLP, norms     norm, V x h
"""

from dataclasses import dataclass
from functools import cached_property

from tiledask.errors import ConfigError
from tiledask.plan import html
from tiledask.plan.inputs.model_sizes import MOST, ModelSizes, check_integer, completed
from tiledask.plan.inputs.weights import (
    Weight,
    attention,
    count,
    mixture,
    mlp,
    mtp_module,
    norm,
    unvisited,
)
from tiledask.plan.units import divisors

__all__ = ["Model", "Weight", "count"]


@dataclass(frozen=True, repr=False)
class Model(ModelSizes):
    """A decoder-only transformer, or an encoder of the same blocks (``causal=False``).

    Heads, groups of heads or latent attention; dense MLPs or mixtures of experts, whose
    first layers may be dense. Sizes that contradict each other are a ConfigError.

    >>> gpt2 = Model(hidden=768, layers=12, heads=12, ffn=3072, vocab=50257, learned_pos=1024)
    >>> gpt2.parameters
    124439808
    """

    def __post_init__(self) -> None:
        for field, value in completed(self).items():
            object.__setattr__(self, field, value)

    @property
    def kv_cache_elements(self) -> int:
        """Elements that one token leaves in the key-value cache of one layer: keys and values
        of all groups, or the latent and the rotary part of the key that all heads share.

        >>> from tiledask.plan.inputs.load import load_model
        >>> load_model("llama-3.1-405b").kv_cache_elements
        2048
        >>> load_model("deepseek-v3").kv_cache_elements
        576
        """
        if self.latent:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.kv_heads * self.head_dim

    @cached_property
    def embedding(self) -> tuple[Weight, ...]:
        """Weights of the first item: token rows, position rows, norm."""
        h, width = self.hidden, self.embedding_width or self.hidden
        weights: tuple[Weight, ...] = (Weight("token embedding", self.vocab, width),)
        if self.embedding_width:
            weights += (Weight("embedding projection", h, width, split=False, inputs=width),)
        if self.learned_pos:
            weights += (Weight("position embedding", self.learned_pos, h, split=False),)
        if self.token_types:
            weights += (Weight("token type embedding", self.token_types, h, split=False),)
        return weights + (norm(self, "embedding norm", self.hidden) if self.embedding_norm else ())

    def is_mixture(self, layer: int) -> bool:
        """Whether layer number ``layer``, from 0, has experts; none such is a ConfigError."""
        layer = check_integer(self.name, "layer", layer, 0, self.layers - 1)
        return self.experts > 0 and layer not in self._dense

    @cached_property
    def _dense(self) -> frozenset[int]:
        return frozenset(self.dense_layers)

    def layer_weights(self, layer: int) -> tuple[Weight, ...]:
        """Weights of layer number ``layer``, from 0: attention, MLP (or experts) and norms.

        >>> from tiledask.plan.inputs.load import load_model
        >>> v3 = load_model("deepseek-v3")
        >>> count(v3.layer_weights(2)), count(v3.layer_weights(3))
        (583483392, 11507286272)
        """
        return self.mixture_layer if self.is_mixture(layer) else self.dense_layer

    @property
    def layer(self) -> tuple[Weight, ...]:
        """Weights of the last layer. All layers are like it, unless a mixture has dense ones;
        see ``layer_weights``."""
        return self.layer_weights(self.layers - 1)

    @cached_property
    def dense_layer(self) -> tuple[Weight, ...]:
        """Weights of a layer with a dense MLP."""
        return self._around(mlp(self))

    @cached_property
    def mixture_layer(self) -> tuple[Weight, ...]:
        """Weights of a layer with experts."""
        return self._around(mixture(self))

    def _around(self, inner: tuple[Weight, ...]) -> tuple[Weight, ...]:
        h, after = self.hidden, self.layer_norms == 4
        weights = norm(self, "attention norm", h) + attention(self)
        weights += norm(self, "attention output norm", h) if after else ()
        weights += norm(self, "mlp norm", h) if self.layer_norms > 1 else ()
        return weights + inner + (norm(self, "mlp output norm", h) if after else ())

    @cached_property
    def head(self) -> tuple[Weight, ...]:
        """Weights of the last item: final norm, output projection unless tied, and the
        multi-token-prediction modules if they are counted."""
        h, width = self.hidden, self.embedding_width or self.hidden
        weights = norm(self, "final norm", h) if self.final_norm else ()
        if self.head_dense:
            weights += (Weight("head dense", h, h, split=False, inputs=h),)
            weights += (Weight("head dense bias", h, 1, False, "bias"), *norm(self, "head norm", h))
        if self.embedding_width:
            weights += (Weight("head projection", width, h, split=False, inputs=h),)
        if not self.tied:
            weights += (Weight("output projection", self.vocab, width, inputs=width),)
        if self.head_bias:
            weights += (Weight("output projection bias", self.vocab, 1, kind="bias"),)
        return weights + (self.mtp_module * self.mtp_layers if self.with_mtp else ())

    @cached_property
    def mtp_module(self) -> tuple[Weight, ...]:
        """Weights of one multi-token-prediction module, without the embedding and the output
        projection that it shares with the model; none if the model has no such module."""
        return mtp_module(self, self.layer) if self.mtp_layers else ()

    @property
    def mtp_parameters(self) -> int:
        """Parameters of all multi-token-prediction modules, counted or not."""
        return self.mtp_layers * count(self.mtp_module)

    @property
    def tied_copy(self) -> tuple[Weight, ...]:
        """What the last of several stages holds again because the embedding is elsewhere: the
        output projection is that matrix, or a multi-token-prediction module looks tokens up."""
        again = self.tied or self.with_mtp
        width = self.embedding_width or self.hidden
        return (Weight("token embedding copy", self.vocab, width),) if again else ()

    @property
    def item_parameters(self) -> tuple[int, ...]:
        """Parameters of the embedding, each layer and the head: layers + 2 numbers that
        add up to ``parameters``, so that any partition of the items can be costed."""
        usual = count(self.mixture_layer if self.experts else self.dense_layer)
        dense = count(self.dense_layer)
        layers = (dense if i in self._dense else usual for i in range(self.layers))
        return (count(self.embedding), *layers, count(self.head))

    @property
    def layer_kinds(self) -> tuple[tuple[str, int, tuple[Weight, ...]], ...]:
        """The kinds of layer: (name, how many, weights of one)."""
        dense = len(self.dense_layers) if self.experts else self.layers
        kinds = (
            ("dense layer" if self.experts else "layer", dense, self.dense_layer),
            ("mixture layer", self.layers - dense, self.mixture_layer),
        )
        return tuple(kind for kind in kinds if kind[1])

    @cached_property
    def parameters(self) -> int:
        """All trainable parameters, exactly."""
        layers = sum(n * count(weights) for _, n, weights in self.layer_kinds)
        return count(self.embedding) + layers + count(self.head)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all, less the experts it does not visit.

        Embedding and head are in; papers that leave one out print a little less.
        """
        unused = sum(n * unvisited(weights) for _, n, weights in self.layer_kinds)
        return self.parameters - unused - unvisited(self.head)

    def allows_tp(self, tp: int) -> bool:
        """Whether attention heads, and groups of them, can be divided over ``tp`` devices."""
        a, g = self.heads, self.kv_heads
        return a % tp == 0 and (g % tp == 0 or tp % g == 0)

    def check_tp(self, tp: int, most: int = MOST) -> None:
        """Refuse a tensor parallelism that attention heads cannot be divided over."""
        tp = check_integer(self.name, "tp", tp, 1, MOST)
        if not self.allows_tp(tp):
            near = [t for t in divisors(self.heads, most) if self.allows_tp(t)]
            raise ConfigError(
                f"tp={tp} does not divide the {self.heads} attention heads of {self.name}, or its "
                f"{self.kv_heads} key-value heads unevenly; tp may be one of {near}"
            )

    def __str__(self) -> str:
        return f"{self.name} ({self.parameters:,} parameters)"

    def __repr__(self) -> str:
        active = f", {self.active_parameters:,} active" if self.experts else ""
        mtp = ""
        if self.mtp_layers:
            said = "with" if self.with_mtp else "without"
            mtp = f", {said} {self.mtp_parameters:,} for multi-token prediction"
        return (
            f"Model({self.name}: {self.layers} layers of width {self.hidden:,}, "
            f"{self.parameters:,} parameters{active}{mtp})"
        )

    def _repr_html_(self) -> str:
        """A table with a row per item; a mixture also shows what one token uses."""
        names = ["item", "how many", "each", "parameters"] + ["active"] * bool(self.experts)
        items = [("embedding", 1, self.embedding), *self.layer_kinds, ("head", 1, self.head)]
        rows = [_row(name, n, weights) for name, n, weights in items]
        rows.append(("all", "", "", f"{self.parameters:,}", f"{self.active_parameters:,}"))
        bold = (len(rows) - 1,)
        if self.mtp_layers and not self.with_mtp:
            name = "multi-token prediction, not counted"
            rows.append(_row(name, self.mtp_layers, self.mtp_module))
        rows = [row[: len(names)] for row in rows]
        style = dict.fromkeys(range(1, len(names)), "text-align:right")
        found = html.table(names, rows, repr(self), style=style, bold=bold)
        return f"{found}<p><small>{html.words(self.source)}</small></p>"


def _row(name: str, n: int, weights: tuple[Weight, ...]) -> tuple[str, ...]:
    each = count(weights)
    numbers = n, each, n * each, n * (each - unvisited(weights))
    return (name, *(f"{number:,}" for number in numbers))
