"""A decoder-only transformer as a list of weights: every parameter count follows from it.

embedding | layer 1 | ... | layer L | head      items, in the order of a pipeline
 V x h      attention, MLP, norms     norm, V x h
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tiledask.errors import ConfigError

__all__ = ["Model", "Weight", "count"]


@dataclass(frozen=True)
class Weight:
    """A weight made of ``units`` pieces of ``size`` elements that nothing cuts further."""

    name: str
    units: int
    """Attention heads, rows of an MLP matrix, rows of the vocabulary, ..."""
    size: int
    """Elements of one unit."""
    split: bool = True
    """Tensor parallelism deals out the units; otherwise every device holds the whole."""
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


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    >>> gpt2 = Model(hidden=768, layers=12, heads=12, ffn=3072, vocab=50257, learned_pos=1024)
    >>> gpt2.parameters
    124439808
    """

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
    """Width of one head; 0 means hidden / heads."""
    mlp: str = "gelu"
    """Kind of MLP; "gelu": two matrices; "swiglu": three, one of them a gate (any activation)."""
    norm: str = "layernorm"
    """Kind of norm; "layernorm": weight and bias; "rmsnorm": weight; "none": no parameters."""
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    tied: bool = True
    """The output projection is the embedding matrix."""
    learned_pos: int = 0
    """Rows of a learned position embedding; 0 for rotary or ALiBi positions."""
    experts: int = 0
    """Experts in each MLP; 0 for a dense model."""
    top_k: int = 0
    """Experts that a token visits."""
    qk_norm: str | None = None
    """None, "per_head" (one norm of head_dim) or "full" (one over all heads)."""
    embedding_norm: bool = False
    """A norm after the embedding, as in BLOOM."""
    dropout: bool = False
    """Trained with dropout, whose masks then are kept for the backward pass."""
    name: str = "model"
    source: str = ""
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        for field, minimum in _INTEGERS.items():
            _check_integer(self.name, field, getattr(self, field), minimum)
        for field, allowed in _WORDS.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(
                    f"model {self.name}: {field} must be one of {allowed}, "
                    f"got {getattr(self, field)!r}"
                )
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        if not self.head_dim:
            self._divides("hidden", self.hidden, "heads", self.heads)
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        self._divides("heads", self.heads, "kv_heads", self.kv_heads)
        if not (self.experts == self.top_k == 0 or 1 <= self.top_k <= self.experts):
            raise ConfigError(
                f"model {self.name}: top_k must lie between 1 and experts, "
                f"got top_k={self.top_k}, experts={self.experts}"
            )

    def _divides(self, what: str, value: int, by: str, divisor: int) -> None:
        if value % divisor:
            raise ConfigError(
                f"model {self.name}: {what} ({value}) must be a multiple of {by} ({divisor})"
            )

    def _norm(self, name: str, width: int, split: bool = False) -> tuple[Weight, ...]:
        each = {"layernorm": 2, "rmsnorm": 1, "none": 0}[self.norm]
        return (Weight(name, width, each, split, "norm"),) if each else ()

    @cached_property
    def embedding(self) -> tuple[Weight, ...]:
        """Weights of the first item: token rows, position rows, norm."""
        weights = (Weight("token embedding", self.vocab, self.hidden),)
        if self.learned_pos:
            weights += (Weight("position embedding", self.learned_pos, self.hidden, split=False),)
        return weights + (self._norm("embedding norm", self.hidden) if self.embedding_norm else ())

    @cached_property
    def layer(self) -> tuple[Weight, ...]:
        """Weights of one layer: attention, MLP (or experts) and norms."""
        return (
            self._norm("attention norm", self.hidden)
            + self._attention()
            + self._norm("mlp norm", self.hidden)
            + self._mlp()
        )

    def _attention(self) -> tuple[Weight, ...]:
        h, a, g, e = self.hidden, self.heads, self.kv_heads, self.head_dim
        heads = (("query", a), ("key", g), ("value", g))
        weights = tuple(Weight(name, n, e * h, inputs=h) for name, n in heads)
        weights += (Weight("attention output", a, e * h, inputs=a * e, row=True),)
        if self.qkv_bias:
            weights += tuple(Weight(f"{name} bias", n, e, kind="bias") for name, n in heads)
        if self.out_bias:
            # added once, after the sum over devices: held whole by each
            weights += (Weight("attention output bias", h, 1, False, "bias"),)
        if self.qk_norm == "per_head":
            weights += self._norm("query norm", e) + self._norm("key norm", e)
        if self.qk_norm == "full":
            weights += self._norm("query norm", a * e, True) + self._norm("key norm", g * e, True)
        return weights

    def _mlp(self) -> tuple[Weight, ...]:
        h, f, n, k = self.hidden, self.ffn, self.experts or 1, self.top_k or 1
        into = ("mlp gate", "mlp up") if self.mlp == "swiglu" else ("mlp up",)
        weights = tuple(Weight(name, f, h, copies=n, active=k, inputs=h) for name in into)
        weights += (Weight("mlp down", f, h, copies=n, active=k, inputs=f, row=True),)
        if self.mlp_bias:
            weights += tuple(
                Weight(f"{name} bias", f, 1, kind="bias", copies=n, active=k) for name in into
            )
            weights += (Weight("mlp down bias", h, 1, False, "bias", n, k),)
        if self.experts:
            weights += (Weight("router", n, h, split=False, inputs=h),)
        return weights

    @cached_property
    def head(self) -> tuple[Weight, ...]:
        """Weights of the last item: final norm and, unless tied, the output projection."""
        final = self._norm("final norm", self.hidden)
        if self.tied:
            return final
        return (*final, Weight("output projection", self.vocab, self.hidden, inputs=self.hidden))

    @property
    def tied_copy(self) -> tuple[Weight, ...]:
        """What the last of several stages holds again because the embedding is elsewhere."""
        return (Weight("token embedding copy", self.vocab, self.hidden),) if self.tied else ()

    @property
    def item_parameters(self) -> tuple[int, ...]:
        """Parameters of the embedding, each layer and the head: layers + 2 numbers that
        add up to ``parameters``, so that any partition of the items can be costed."""
        layer = count(self.layer)
        return (count(self.embedding), *[layer] * self.layers, count(self.head))

    @property
    def parameters(self) -> int:
        """All trainable parameters, exactly."""
        return sum(self.item_parameters)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all, less the experts it does not visit."""
        unused = sum((w.copies - w.active) * w.units * w.size for w in self.layer)
        return self.parameters - self.layers * unused

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallelism that attention heads cannot be dealt out to."""
        if self.heads % tp:
            near = [t for t in range(1, self.heads + 1) if self.heads % t == 0]
            raise ConfigError(
                f"tp={tp} does not divide the {self.heads} attention heads of {self.name}; "
                f"tp may be one of {near}"
            )
        if self.kv_heads % tp and tp % self.kv_heads:
            raise ConfigError(
                f"tp={tp} neither divides nor is a multiple of the {self.kv_heads} key-value "
                f"heads of {self.name}; tp={self.kv_heads} does both"
            )

    def __str__(self) -> str:
        return f"{self.name} ({self.parameters:,} parameters)"


_INTEGERS = {
    "hidden": 1, "layers": 1, "heads": 1, "ffn": 1, "vocab": 1,
    "kv_heads": 0, "head_dim": 0, "learned_pos": 0, "experts": 0, "top_k": 0,
}  # fmt: skip
_WORDS = {
    "mlp": ("gelu", "swiglu"),
    "norm": ("layernorm", "rmsnorm", "none"),
    "qk_norm": (None, "per_head", "full"),
}


def _check_integer(name: str, field: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(
            f"model {name}: {field} must be an integer of {minimum} or more, got {value!r}"
        )


@lru_cache(maxsize=4096)
def count(weights: tuple[Weight, ...], tp: int = 1) -> int:
    """Elements of ``weights`` on the fullest of ``tp`` tensor-parallel devices."""
    return sum(weight.count(tp) for weight in weights)
