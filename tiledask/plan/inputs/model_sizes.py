"""The sizes of a decoder-only transformer, as its config gives them: the fields of a Model."""

from dataclasses import dataclass

__all__ = ["ModelSizes"]


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
    experts: int = 0
    """Experts in each mixture; 0 for a dense model."""
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
