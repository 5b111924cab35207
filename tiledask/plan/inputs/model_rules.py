"""The rules that a model's sizes obey, and the sizes that follow from the others."""

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.model_sizes import ModelSizes
from tiledask.plan.whole import whole_number

__all__ = ["MOST", "MOST_LAYERS", "check_integer", "completed"]

MANY, MOST = 100_000, 10**9
MOST_LAYERS = 4096
"""Thirty times what anyone has built; every way to cut them into stages can still be looked at."""

_INTEGERS = {
    "hidden": (1, MOST),
    "layers": (1, MOST_LAYERS),
    "heads": (1, MANY),
    "ffn": (1, MOST),
    "vocab": (1, MOST),
    "kv_heads": (0, MANY),
    "head_dim": (0, MOST),
    "learned_pos": (0, MOST),
    "unused_pos": (0, MOST),
    "experts": (0, MANY),
    "top_k": (0, MANY),
    "expert_ffn": (0, MOST),
    "shared_ffn": (0, MOST),
    "kv_lora_rank": (0, MOST),
    "q_lora_rank": (0, MOST),
    "qk_nope_head_dim": (0, MOST),
    "qk_rope_head_dim": (0, MOST),
    "v_head_dim": (0, MOST),
    "mtp_layers": (0, 1000),
    "embedding_width": (0, MOST),
    "token_types": (0, MOST),
    "window": (0, MOST),
    "windowed_layers": (0, MOST_LAYERS),
}
"""Field -> the smallest and the largest value; beyond lies no transformer but a typing error."""
_WORDS = {
    "mlp": ("gelu", "swiglu"),
    "norm": ("layernorm", "rmsnorm", "none"),
    "qk_norm": (None, "per_head", "full", "own"),
    "layer_norms": (1, 2, 4),
}
_BOOLEANS = (
    "qkv_bias",
    "out_bias",
    "mlp_bias",
    "tied",
    "embedding_norm",
    "dropout",
    "shared_gate",
    "router_bias",
    "with_mtp",
    "final_norm",
    "head_bias",
    "head_dense",
    "attention_sinks",
    "causal",
)
_LATENT = ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_MIXTURE = ("shared_ffn", "shared_gate", "router_bias", "dense_layers")


def completed(model: ModelSizes) -> dict[str, object]:
    """The fields that follow from the others, once every rule holds; else a ConfigError."""
    for field, bounds in _INTEGERS.items():
        number = check_integer(model.name, field, getattr(model, field), *bounds)
        object.__setattr__(model, field, number)
    for field in _BOOLEANS:
        if not isinstance(getattr(model, field), bool):
            raise _error(model, f"{field} must be true or false, got {_of(model, field)}")
    for field, allowed in _WORDS.items():
        if getattr(model, field) not in allowed:
            raise _error(model, f"{field} must be one of {allowed}, got {_of(model, field)}")
    if model.unused_pos and model.unused_pos >= model.learned_pos:
        raise _error(
            model,
            f"unused_pos ({model.unused_pos}) must be less than learned_pos ({model.learned_pos})",
        )
    kv_heads = model.kv_heads or model.heads
    _divides(model, "heads", model.heads, "kv_heads", kv_heads)
    if not (model.experts == model.top_k == 0 or 1 <= model.top_k <= model.experts):
        raise _error(
            model,
            f"top_k must lie between 1 and experts, got top_k={model.top_k}, "
            f"experts={model.experts}",
        )
    given = [field for field in _MIXTURE if getattr(model, field)]
    if given and not model.experts:
        raise _error(model, f"{given[0]} belongs to a mixture, which needs experts of 1 or more")
    told = model.imbalance
    if isinstance(told, bool) or not isinstance(told, int | float) or not 1 <= told <= MANY:
        raise _error(
            model, f"imbalance must be a number of 1 or more, got {short(told)}; 1 is even routing"
        )
    if told > 1 and not model.experts:
        raise _error(model, "imbalance is of experts' tokens, and there are none; leave it out")
    if told > 1 and told * model.top_k > model.experts:
        raise _error(
            model,
            f"imbalance={told:g} gives an expert more tokens than there are, with top_k="
            f"{model.top_k} of {model.experts} experts; {model.experts / model.top_k:g} or less",
        )
    if model.shared_gate and not model.shared_ffn:
        raise _error(model, "shared_gate scales a shared expert, which needs shared_ffn")
    if bool(model.window) != bool(model.windowed_layers) or model.windowed_layers > model.layers:
        raise _error(
            model,
            f"window={model.window} and windowed_layers={model.windowed_layers} go together, and "
            f"of {model.layers} layers no more can have it",
        )
    if model.with_mtp and not model.mtp_layers:
        raise _error(model, "with_mtp counts modules that mtp_layers=0 says do not exist")
    head_dim, dense = _head_dim(model, kv_heads), model.dense_layers
    if not isinstance(dense, list | tuple | range) or len(dense) > model.layers:
        raise _error(
            model,
            f"dense_layers must be a tuple of at most {model.layers} layer numbers, got "
            f"{_of(model, 'dense_layers')}",
        )
    most = model.layers - 1
    layers = {check_integer(model.name, "dense_layers", number, 0, most) for number in dense}
    return {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "expert_ffn": model.expert_ffn or model.ffn,
        "dense_layers": tuple(sorted(layers)),
    }


def _head_dim(model: ModelSizes, kv_heads: int) -> int:
    parts = {field: getattr(model, field) for field in _LATENT}
    if not model.latent:
        for field in filter(parts.get, parts):
            raise _error(model, f"{field} belongs to latent attention, which needs kv_lora_rank")
        if not model.head_dim:
            _divides(model, "hidden", model.hidden, "heads", model.heads)
        return model.head_dim or model.hidden // model.heads
    for field in _LATENT[1:]:
        if not parts[field]:
            raise _error(model, f"{field} must be 1 or more in latent attention, got 0")
    if kv_heads != model.heads:
        raise _error(
            model,
            f"kv_heads ({kv_heads}) must equal heads ({model.heads}) in latent attention; "
            "leave it out",
        )
    if model.qk_norm:
        raise _error(model, f"qk_norm must be None in latent attention, got {model.qk_norm!r}")
    if model.head_dim not in (0, model.qk_dim):
        raise _error(
            model,
            f"head_dim ({model.head_dim}) must be qk_nope_head_dim + qk_rope_head_dim "
            f"({model.qk_dim}) in latent attention; leave it out",
        )
    return model.qk_dim


def _divides(model: ModelSizes, what: str, value: int, by: str, divisor: int) -> None:
    if value % divisor:
        raise _error(model, f"{what} ({value}) must be a multiple of {by} ({divisor})")


def _error(model: ModelSizes, rule: str) -> ConfigError:
    return ConfigError(f"{_called(model.name)}: {rule}")


def _called(name: object) -> str:
    return "model" if name == "model" else f"model {name}"


def _of(model: ModelSizes, field: str) -> str:
    return short(getattr(model, field))


def check_integer(name: str, field: str, value: object, low: int, high: int) -> int:
    """``value``, a whole number from ``low`` to ``high``, of the model called ``name``."""
    return whole_number(f"{_called(name)}: {field}", value, low, high)
