"""Models whose parameters are counted exactly, and whose memory and time are not known here.

image      patches, class token, positions | layers, all to all | one answer an image
sequences  encoder | decoder, with attention to the encoder's output | tokens
recurrent  convolution, state of each channel | in place of attention, or of most of it
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan import html
from tiledask.plan.data import Fields
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.weights import attention, count, unvisited

__all__ = ["DERIVED", "OTHERS", "CountedModel", "Item", "OtherFamily"]


class Item(NamedTuple):
    """A part of a model that is there ``many`` times."""

    name: str
    many: int
    parameters: int
    """Of one."""
    unvisited: int = 0
    """Of them, those of experts that a token does not visit."""


@dataclass(frozen=True, repr=False)
class CountedModel:
    """A model as its exact number of parameters, item by item; no layout is planned for it."""

    name: str
    items: tuple[Item, ...]
    why: str
    """Why memory and time are not known."""
    source: str = ""

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        return sum(item.many * item.parameters for item in self.items)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all, less the experts it does not visit."""
        return self.parameters - sum(item.many * item.unvisited for item in self.items)

    def refused(self) -> ConfigError:
        """The error of whoever asks for its memory or its time."""
        return ConfigError(
            f"{self.name} has {self.parameters:,} parameters; what it takes to run is not known "
            f"here: {self.why}. A decoder or encoder of like sizes is td.Model(layers=..., "
            "hidden=..., heads=..., ffn=..., vocab=...); the states alone are "
            "td.state_bytes(model.parameters)"
        )

    def __repr__(self) -> str:
        return f"CountedModel({self.name}: {self.parameters:,} parameters, counted only)"

    def _repr_html_(self) -> str:
        """A table with a row per item."""
        rows = [(i.name, f"{i.many}", f"{i.parameters:,}") for i in self.items]
        words = f"{html.words(self.why)}. {html.words(self.source)}"
        table = html.table(("item", "how many", "each"), rows, repr(self))
        return f"{table}<p><small>{words}</small></p>"


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return outputs * (inputs + bias)


def _read_vit(config: Fields, head: str) -> list[Item]:
    h, f = _sizes(config, "hidden_size", "intermediate_size")
    bias = config.boolean("qkv_bias", True)
    patch, channels = config.integer("patch_size", 16), config.integer("num_channels", 3)
    patches = (config.integer("image_size", 224) // patch) ** 2
    answers, labels = config.integer("pooler_output_size", h), config.integer("num_labels", 2)
    if "id2label" in config:
        labels = len(config.object("id2label").values)
    embedding = _linear(channels * patch**2, h) + h + (patches + 1) * h
    layer = 4 * h + 3 * _linear(h, h, bias) + _linear(h, h) + _linear(h, f) + _linear(f, h)
    outputs = labels if head == "ViTForImageClassification" else answers
    return [
        Item("patches, class token and positions", 1, embedding),
        Item("layer", config.integer("num_hidden_layers"), layer),
        Item("norm and head", 1, 2 * h + _linear(h, outputs)),
    ]


def _read_t5(config: Fields, head: str) -> list[Item]:
    """Inner width of attention d_kv a head; relative positions in the first layer of each half."""
    h, kv, f, heads = _sizes(config, "d_model", "d_kv", "d_ff", "num_heads")
    layers, vocab = _sizes(config, "num_layers", "vocab_size")
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    attention_, mlp = 4 * h * heads * kv + h, (2 + gated) * h * f + h
    positions = config.integer("relative_attention_num_buckets", 32) * heads
    after = config.integer("num_decoder_layers", layers)
    half = Item("positions and norm", 1 if head == "T5EncoderModel" else 2, positions + h)
    items = [Item("embedding", 1, vocab * h), half, Item("encoder layer", layers, attention_ + mlp)]
    untied = not config.boolean("tie_word_embeddings", True)
    if head == "T5EncoderModel":
        return items
    items.append(Item("decoder layer", after, 2 * attention_ + mlp))
    if untied and head == "T5ForConditionalGeneration":
        items.append(Item("output projection", 1, vocab * h))
    return items


def _read_whisper(config: Fields, head: str) -> list[Item]:
    """Keys have no bias; the encoder's positions are fixed, and counted as in published sizes."""
    h, vocab, bins = _sizes(config, "d_model", "vocab_size", "num_mel_bins")
    sources, targets = _sizes(config, "max_source_positions", "max_target_positions")
    attention_ = 4 * _linear(h, h) - h + 2 * h
    layers = []
    for half, blocks in (("encoder", 1), ("decoder", 2)):
        many, f = _sizes(config, f"{half}_layers", f"{half}_ffn_dim")
        mlp = _linear(h, f) + _linear(f, h) + 2 * h
        layers.append(Item(f"{half} layer", many, blocks * attention_ + mlp))
    untied = not config.boolean("tie_word_embeddings", True) and head != "WhisperModel"
    return [
        Item("convolutions", 1, _linear(3 * bins, h) + _linear(3 * h, h)),
        Item("embedding and positions", 1, (vocab + sources + targets) * h),
        *layers,
        Item("norm", 2, 2 * h),
        Item("output projection", int(untied), vocab * h),
    ]


def _read_mamba(config: Fields, head: str) -> list[Item]:
    """Gu and Dao 2023, arXiv:2312.00752, section 3.4, as transformers lays it out."""
    h, state, vocab = _sizes(config, "hidden_size", "state_size", "vocab_size")
    inner, kernel = config.integer("expand", 2) * h, config.integer("conv_kernel", 4)
    inner = config.integer("intermediate_size", inner)
    auto = config.values.get("time_step_rank") == "auto" and config.text("time_step_rank")
    rank = -(-h // 16) if auto else config.integer("time_step_rank")
    bias, conv_bias = config.boolean("use_bias", False), config.boolean("use_conv_bias", True)
    layer = h + _linear(h, 2 * inner, bias) + _linear(kernel, inner, conv_bias)
    layer += _linear(inner, rank + 2 * state, False) + _linear(rank, inner)
    layer += inner * (state + 1) + _linear(inner, h, bias)
    untied = not config.boolean("tie_word_embeddings", True)
    return [
        Item("embedding", 1, vocab * h),
        Item("layer", config.integer("num_hidden_layers"), layer),
        Item("norm and output projection", 1, h + untied * vocab * h),
    ]


def _sizes(config: Fields, *keys: str) -> list[int]:
    return [config.integer(key) for key in keys]


@dataclass(frozen=True)
class OtherFamily:
    """What a ``model_type`` that is no decoder of ours needs to be counted."""

    classes: tuple[str, ...]
    """The ``architectures`` that are counted; the first where a config names none."""
    read: Callable[[Fields, str], list[Item]]
    why: str
    ignored: tuple[str, ...] = ()
    """Sizes that published configs repeat, and that no class reads."""


OTHERS = {
    "vit": OtherFamily(
        ("ViTForImageClassification", "ViTModel"),
        _read_vit,
        "its sequence is the patches of an image, and its head answers once an image",
        ("num_attention_heads",),
    ),
    "t5": OtherFamily(
        ("T5ForConditionalGeneration", "T5Model", "T5EncoderModel"),
        _read_t5,
        "an encoder and a decoder have sequences of their own, and attention between them",
    ),
    "whisper": OtherFamily(
        ("WhisperForConditionalGeneration", "WhisperModel"),
        _read_whisper,
        "an encoder of sound and a decoder of text have sequences of their own, and attention "
        "between them",
        ("num_hidden_layers", "encoder_attention_heads", "decoder_attention_heads"),
    ),
    "mamba": OtherFamily(
        ("MambaForCausalLM",),
        _read_mamba,
        "what its scan keeps and how long it takes depend on the kernel",
        ("d_model", "d_inner", "n_layer"),
    ),
}
"""``model_type`` -> how it is counted."""


def _qwen3_next(config: Fields, model: Model) -> CountedModel:
    """Queries bring a gate as wide; where ``layer_types`` says so, a gated delta rule stands in
    the place of attention (Yang et al. 2024, arXiv:2412.06464)."""
    h, wide = model.hidden, model.heads * model.head_dim
    keys, values = (
        config.integer(f"linear_num_{w}_heads") * config.integer(f"linear_{w}_head_dim")
        for w in ("key", "value")
    )
    v_heads = config.integer("linear_num_value_heads")
    through = 2 * keys + values
    linear = h * (through + values) + h * 2 * v_heads
    linear += through * config.integer("linear_conv_kernel_dim")
    linear += 2 * v_heads + config.integer("linear_value_head_dim") + values * h
    full = count(attention(model)) + _linear(h, wide, model.qkv_bias)
    every = config.integer("full_attention_interval", 4)
    usual = tuple(
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(model.layers)
    )
    kinds = config.texts("layer_types", usual)
    if len(kinds) != model.layers or {*kinds} - {*usual, "full_attention", "linear_attention"}:
        raise config.fail(
            "layer_types",
            f"must name full_attention or linear_attention for each of {model.layers} layers",
        )
    items = [Item("embedding", 1, count(model.embedding))]
    layers = Counter((kind, model.is_mixture(i)) for i, kind in enumerate(kinds))
    for (kind, mixture), many in layers.items():
        weights = model.mixture_layer if mixture else model.dense_layer
        each = count(weights) - count(attention(model))
        each += full if kind == "full_attention" else linear
        name = f"{kind.replace('_', ' ')}, {'mixture' if mixture else 'dense'}"
        items.append(Item(name, many, each, unvisited(weights)))
    items.append(Item("head", 1, count(model.head)))
    why = "what linear attention keeps and how long it takes depend on the kernel"
    return CountedModel(model.name, tuple(items), why, model.source)


def _pooled(config: Fields, model: Model) -> CountedModel:
    """The encoder and what its first token becomes; no tokens are predicted."""
    return _bert(model, Item("pooler", 1, _linear(model.hidden, model.hidden)))


def _pretraining(config: Fields, model: Model) -> CountedModel:
    """Tokens, and whether one sentence follows the other."""
    h = model.hidden
    head = Item("head, pooler and next sentence", 1, count(model.head) + _linear(h, h + 2))
    return _bert(model, head)


def _bert(model: Model, head: Item) -> CountedModel:
    ((_, many, weights),) = model.layer_kinds
    items = Item("embedding", 1, count(model.embedding)), Item("layer", many, count(weights)), head
    why = "its head answers once a sequence; that of the masked language model is known"
    return CountedModel(model.name, items, why, model.source)


DERIVED = {
    "Qwen3NextForCausalLM": _qwen3_next,
    "BertModel": _pooled,
    "RobertaModel": _pooled,
    "BertForPreTraining": _pretraining,
}
"""Class -> how it is counted from the Model that its config describes but for the class."""
