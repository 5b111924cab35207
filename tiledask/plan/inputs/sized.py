"""A model of which only the size is known: "175B" as a decoder of the usual shape."""

import re
from dataclasses import replace
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.model import Model

__all__ = ["ASSUMED", "model_of_size"]

ASSUMED = "assumed:"
"""What the ``source`` of such a model begins with."""
VOCAB = 32_000
_SIZE = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})(?:e([0-9]{1,2})|\s*([kmbt]))?", re.IGNORECASE
)
_LIKE_A_SIZE = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?\s*[kmbt]", re.IGNORECASE)
_UNITS = {"k": 3, "m": 6, "b": 9, "t": 12}
SMALLEST, LARGEST = 10**8, 10**14


def model_of_size(text: str) -> Model | None:
    """The Model that "70B", "7e9" or "350M" is taken for; None if ``text`` is no such number.

    Layers of Llama's form, without groups of heads: a layer of width h has 4 h^2 in its attention
    and 8 h^2 in its MLP, whose width takes up what rounding leaves. Of the shapes that large models
    have, h is about 128 x layers (Levine et al. 2020, arXiv:2006.12467, and GPT-3's, OPT's,
    Llama's tables). Fewer than 100 million, or more than 100 trillion, are a ConfigError.

    >>> model_of_size("175B")
    Model(175B: 96 layers of width 12,288, 175,187,963,904 parameters)
    >>> model_of_size("llama") is None
    True
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        if _LIKE_A_SIZE.fullmatch(text.strip()):
            rule = "the size of a model is a number above 0 such as 70B or 7e9"
            raise ConfigError(f"{rule}, got {short(text)}")
        return None
    digits, power, unit = match.groups()
    wanted = float(digits) * 10 ** int(power or _UNITS.get((unit or "").lower(), 0))
    if not SMALLEST <= wanted <= LARGEST:
        raise ConfigError(
            f"{short(text)} parameters are no model of the usual shape, which has from "
            f"{SMALLEST:,} to {LARGEST:,}; write '7B' or 7e9, or its own sizes: td.Model(...)"
        )
    low, high = 128.0, 1e6  # of h in 12 h^2 x h / 128 + 2 V h = wanted
    for _ in range(60):
        h_ = (low + high) / 2
        low, high = (low, h_) if 12 * h_**3 / 128 + 2 * VOCAB * h_ > wanted else (h_, high)
    step = 1024 if low >= 3072 else 128  # heads of 128, which eight devices can share out
    h = round(low / step) * step
    rest = wanted - 2 * VOCAB * h
    by = 4 if rest / (12 * h * h) >= 16 else 1
    layers = round(rest / (12 * h * h) / by) * by
    ffn = round((rest / layers - 4 * h * h) / (3 * h) / 128) * 128
    usual: dict[str, Any] = {"mlp": "swiglu", "norm": "rmsnorm", "tied": False}
    usual |= dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), False)
    model = Model(h, layers, h // 128, ffn, VOCAB, name=text.strip(), **usual)
    words = (
        f"{ASSUMED} {layers} layers of width {h:,} ({h // 128} heads of 128, gated MLP of {ffn:,}, "
        f"RMS norms, no biases, no groups of heads), {VOCAB:,} words, embedding and head apart: "
        f"{model.parameters:,} parameters, {100 * (model.parameters / wanted - 1):+.1f} %. Memory "
        "of the states is as exact as that; activations and time are those of this shape. A "
        "config.json or td.Model(...) is exact."
    )
    return replace(model, source=words)
