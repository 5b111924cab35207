"""The rules that a model's sizes obey, and the sizes that follow from the others."""

from collections.abc import Iterator
from dataclasses import MISSING, fields

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.model_sizes import ModelSizes
from tiledask.plan.whole import whole_number

__all__ = ["MOST", "MOST_LAYERS", "check_integer", "completed"]

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
