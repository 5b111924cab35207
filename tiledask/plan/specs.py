"""What a plan starts from: a model and a cluster, by shipped name or from a file."""

import os
from pathlib import Path

from tiledask.plan.data import names, read, read_named
from tiledask.plan.hardware import ClusterSpec, Device, Link, load_cluster, load_device
from tiledask.plan.hf_config import model_from_config
from tiledask.plan.model import Model, Weight

__all__ = [
    "ClusterSpec",
    "Device",
    "Link",
    "Model",
    "Weight",
    "load_cluster",
    "load_device",
    "load_model",
    "models",
]


def models() -> tuple[str, ...]:
    """Names of the shipped models."""
    return names("models")


def load_model(spec: str | os.PathLike) -> Model:
    """The shipped model of that name, or the one in a local Hugging Face config.json.

    ``spec`` may also be the folder that holds the config.json. Nothing is downloaded. What
    cannot be counted exactly is a ConfigError that names the file and the key.

    >>> load_model("llama-3.1-70b").parameters
    70553706496
    >>> load_model("mixtral-8x7b").active_parameters
    12879925248
    """
    text = os.fspath(spec)
    path = Path(text)
    if path.is_dir() and text.lower() not in models():
        path = path / "config.json"
        return model_from_config(read(path), path.parent.resolve().name)
    if text.lower().endswith(".json") or os.sep in text or path.is_file():
        name = path.parent.resolve().name if path.stem == "config" else path.stem
        return model_from_config(read(path), name)
    return model_from_config(read_named("models", text), text.lower())
