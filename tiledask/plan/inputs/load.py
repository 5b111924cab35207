"""What a plan starts from: a model and a cluster, by shipped name or from a file."""

import os
import re
from functools import cache
from pathlib import Path

from tiledask.errors import ConfigError, short
from tiledask.plan.data import meant, names, read, read_named
from tiledask.plan.inputs.hardware import ClusterSpec, Device, Link, load_cluster, load_device
from tiledask.plan.inputs.hf_config import model_from_config
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.sized import model_of_size

__all__ = [
    "ClusterSpec",
    "Device",
    "Link",
    "Model",
    "Weight",
    "as_cluster",
    "as_model",
    "load_cluster",
    "load_device",
    "load_model",
    "models",
]


def models() -> tuple[str, ...]:
    """Names of the shipped models."""
    return names("models")


def load_model(spec: str | os.PathLike[str]) -> Model:
    """The shipped model of that name, or the one in a local Hugging Face config.json.

    ``spec`` may also be the folder that holds the config.json; the name on the Hugging Face hub of
    a shipped model; or a number of parameters, "175B", for a decoder of the usual shape, which its
    ``source`` says. Nothing is downloaded. What cannot be counted exactly is a ConfigError that
    names the file and the key.

    >>> load_model("llama-3.1-70b").parameters
    70553706496
    >>> load_model("mixtral-8x7b").active_parameters
    12879925248
    >>> load_model("meta-llama/Llama-3.1-8B").name
    'llama-3.1-8b'
    """
    if not isinstance(spec, str | os.PathLike) or not isinstance(os.fspath(spec), str) or not spec:
        raise ConfigError(
            f"a model is named by text or by a path, got {short(spec)}; "
            "load_model('gpt2') and load_model('folder/config.json') are two"
        )
    text, path = os.fspath(spec), Path(spec)
    there, file = os.path.exists(text), text.lower().endswith(".json")
    if (sized := model_of_size(text)) and not there:
        return sized
    if text.lower() in models() and not isinstance(spec, os.PathLike):
        return model_from_config(read_named("models", text), text.lower())
    if os.path.isdir(text):
        if not os.path.exists(path / "config.json"):
            raise ConfigError(f"{text}: the folder holds no config.json; name the file itself")
        return model_from_config(read(path / "config.json"), path.resolve().name)
    if re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", text) and not there and not file:
        if name := _on_the_hub().get(text.lower()):
            return model_from_config(read_named("models", name), name)
        raise ConfigError(
            f"{text} is no shipped model; {meant(path.name, models())}its config.json can be read, "
            f"too: hf download {text} config.json says where it is"
        )
    if file or os.sep in text or there:
        name = path.parent.resolve().name if path.stem == "config" else path.stem
        return model_from_config(read(path), name)
    return model_from_config(read_named("models", text), text.lower())


@cache
def _on_the_hub() -> dict[str, str]:
    """Name on the Hugging Face hub, as the sources say it, in small letters -> shipped name."""
    sources = {name: read_named("models", name).text("source", "") for name in models()}
    found = {name: re.match(r"config\.json of (\S+/\S+) on", sources[name]) for name in models()}
    return {match[1].lower(): name for name, match in found.items() if match}


def as_model(model: Model | str | os.PathLike[str]) -> Model:
    """The Model itself, or the one that a name or a path says; else ConfigError."""
    return model if isinstance(model, Model) else load_model(model)


def as_cluster(cluster: ClusterSpec | str | os.PathLike[str]) -> ClusterSpec:
    """The ClusterSpec itself, or the one that '8xH100' or a path says; else ConfigError."""
    return cluster if isinstance(cluster, ClusterSpec) else load_cluster(cluster)
