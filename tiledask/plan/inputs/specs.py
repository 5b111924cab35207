"""What a plan starts from: a model and a cluster, by shipped name or from a file."""

import os
from collections.abc import Callable
from pathlib import Path

from tiledask.errors import ConfigError
from tiledask.plan.data import names, read, read_named, short
from tiledask.plan.inputs.hardware import ClusterSpec, Device, Link, load_cluster, load_device
from tiledask.plan.inputs.hf_config import model_from_config
from tiledask.plan.inputs.model import Model, Weight

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
    if not isinstance(spec, str | os.PathLike) or not isinstance(os.fspath(spec), str) or not spec:
        raise ConfigError(
            f"a model is named by text or by a path, got {short(spec)}; "
            "load_model('gpt2') and load_model('folder/config.json') are two"
        )
    text = os.fspath(spec)
    path = Path(text)
    if text.lower() in models() and not isinstance(spec, os.PathLike):
        return model_from_config(read_named("models", text), text.lower())
    if _is(path, Path.is_dir):
        if not _is(path / "config.json", Path.exists):
            raise ConfigError(f"{text}: the folder holds no config.json; name the file itself")
        return model_from_config(read(path / "config.json"), path.resolve().name)
    if text.lower().endswith(".json") or os.sep in text or _is(path, Path.exists):
        name = path.parent.resolve().name if path.stem == "config" else path.stem
        return model_from_config(read(path), name)
    return model_from_config(read_named("models", text), text.lower())


def _is(path: Path, what: Callable[[Path], bool]) -> bool:
    """Whether the path is so; one that no file can have is not."""
    try:
        return what(path)
    except (OSError, ValueError):
        return False
