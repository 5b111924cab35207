"""What a plan starts from: a model and a cluster, by shipped name or from a file."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import names, read, read_named
from tiledask.plan.inputs.hardware import load_cluster
from tiledask.plan.inputs.hf_config import model_from_config
from tiledask.plan.inputs.model import Model

__all__ = ["load_cluster", "load_model"]

ASSUMED = "assumed:"
"""What the ``source`` of such a model begins with."""
VOCAB = 32_000
_SIZE = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})(?:e([0-9]{1,2})|\s*([kmbt]))?", re.I
)
_LIKE_A_SIZE = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?\s*[kmbt]", re.I)
_UNITS = {"k": 3, "m": 6, "b": 9, "t": 12}
ALIKE = {
    r"^meta-|-(instruct|thinking|chat|base|it|hf|fp16|bf16)(-[0-9]{4})?(?=-|$)": "",
    r"^llama-3-": "llama-3.1-",
    r"^qwen2(\.5)?-((math|coder)-)?": "qwen2.5-",
}
"""Of names on the hub: a part -> that of a model with the same sizes."""
SMALLEST, LARGEST = 10**8, 10**14


def load_model(spec: str | os.PathLike[str] | Model) -> Model:
    """The shipped model of that name, or the one in a local Hugging Face config.json; a Model comes
    back as it is.

    ``spec`` may also be the folder that holds the config.json; the name on the Hugging Face hub of
    a shipped model, or of one tuned from it, whose sizes are the same; or a number of parameters,
    "175B", for a decoder of the usual shape, which its ``source`` says. Nothing is downloaded. What
    cannot be counted exactly is a ConfigError that names the file and the key.

    >>> load_model("llama-3.1-70b").parameters
    70553706496
    >>> load_model("mixtral-8x7b").active_parameters
    12879925248
    >>> load_model("meta-llama/Meta-Llama-3-8B-Instruct").name  # 3.1 has the sizes of 3
    'llama-3.1-8b'
    """
    if isinstance(spec, Model):
        return spec
    if not isinstance(spec, str | os.PathLike) or not isinstance(os.fspath(spec), str) or not spec:
        words = "'gpt2' or 'folder/config.json'"
        raise ConfigError(f"a model is named by text or by a path, {words}; got {short(spec)}")
    text, path, shipped = os.fspath(spec), Path(spec), ""
    there, file = os.path.exists(text), text.lower().endswith(".json")
    if (sized := _model_of_size(text)) and not there:
        return sized
    if isinstance(spec, str) and text.lower() in names("models"):
        shipped = text.lower()
    elif os.path.isdir(text):
        path = path / "config.json"
        if not path.exists():
            raise ConfigError(f"{text}: the folder holds no config.json; name the file itself")
    elif re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", text) and not there and not file:
        # the sources say what the shipped ones are called there
        sources = {n: read_named("models", n).take(str, "source", "") for n in names("models")}
        found = ((n, re.match(r"config\.json of (\S+/\S+) on", s)) for n, s in sources.items())
        alike = (n for n, match in found if match and _untuned(match[1]) == _untuned(text))
        if not (shipped := next(alike, "")):
            raise ConfigError(
                f"{text} is no shipped model; its config.json can be read, too: hf download {text} "
                f"config.json says where it is"
            )
    elif not file and os.sep not in text and not there:
        shipped = text
    if shipped:
        return model_from_config(read_named("models", shipped), shipped.lower())
    name = path.parent.resolve().name if path.stem == "config" else path.stem
    return model_from_config(read(path), name)


def _untuned(name: str) -> str:
    """The last part of a name on the hub, without what has no part in the sizes."""
    plain = name.lower().rpartition("/")[2]
    for part, same in ALIKE.items():
        plain = re.sub(part, same, plain)
    return plain


def _model_of_size(text: str) -> Model | None:
    """The Model that "70B", "7e9" or "350M" is taken for; None if ``text`` is no such number.

    Layers of Llama's form, without groups of heads: a layer of width h has 4 h^2 in its attention
    and 8 h^2 in its MLP, whose width takes up what rounding leaves. Of the shapes that large models
    have, h is about 128 x layers (Levine et al. 2020, arXiv:2006.12467, and GPT-3's, OPT's,
    Llama's tables).

    >>> _model_of_size("175B")
    Model(175B: 96 layers of width 12,288, 175,187,963,904 parameters)
    """
    if not (match := _SIZE.fullmatch(text.strip())):
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
        f"{model.parameters:,} parameters, {100 * (model.parameters / wanted - 1):+.1f} %. A "
        "config.json or td.Model(...) is exact."
    )
    return replace(model, source=words)
