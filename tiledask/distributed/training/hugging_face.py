"""A GPT's weights as Hugging Face has those of Llama: config.json and model.safetensors.

    ours                              theirs
    layer 0.attention.wqkv [h, q|k|v] model.layers.0.self_attn.{q,k,v}_proj.weight [columns, h]
    layer 0.mlp.w_gate_up  [h, g|u]   model.layers.0.mlp.{gate,up}_proj.weight     [columns, h]

The numbers are the same, to the bit: matrices are transposed, and those side by side are apart.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.training.gpt import GPT
from tiledask.errors import ConfigError, short
from tiledask.extras import needed_for
from tiledask.plan.data import Fields, read
from tiledask.tile.backend import as_dtype

__all__ = ["ImportedWeights", "begin", "check_pretrained", "export_weights", "import_weights"]

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
FILE = "model.safetensors"
EPSILON = 1e-6
"""Of a gated GPT's norms, where it doesn't say it."""


class ImportedWeights(NamedTuple):
    """A model, and its weights by "unit.name"."""

    model: GPT
    weights: dict[str, np.ndarray]


class _Place(NamedTuple):
    """Where a tensor of Llama's is in a GPT."""

    name: str
    columns: slice | None = None
    """Of a matrix, which is transposed; None where it is there as it is."""


def export_weights(
    model: GPT, weights: Mapping[str, np.ndarray], folder: str | os.PathLike[str]
) -> Path:
    """The folder, with the weights of a GPT(gated=True) as transformers loads them: config.json and
    model.safetensors, in which names, shapes and config are a LlamaForCausalLM's.

    ``weights``: whole arrays by "unit.name", as ``trained.weights``. Needs safetensors. Raises
    ConfigError for a model that is not gated, for weights that are not its, and for a folder that
    has a config.json or weights.
    """
    with needed_for("a file of weights"):
        from safetensors.numpy import save_file

    found = {str(w.dtype) for w in weights.values()}
    if len(found) != 1 or not found <= set(DTYPES.values()):
        raise ConfigError(
            f"weights are all {', '.join(DTYPES.values())}, one of these; got "
            f"{short(', '.join(sorted(found)) or 'none')}"
        )
    places = _places(model)
    shapes = {f"{u}.{n}": p.shape for u in model.units for n, p in model.parameters(u).items()}
    got = {name: tuple(w.shape) for name, w in weights.items()}
    for name in (*shapes, *got):
        if shapes.get(name) != got.get(name):
            raise ConfigError(
                f"{name} is {shapes.get(name, 'none')} in {short(model)} and "
                f"{got.get(name, 'none')} among the weights; pass trained.model and trained.weights"
            )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if there := sorted({p.name for p in path.iterdir()} & {"config.json", FILE}):
        raise ConfigError(f"{path} has {there[0]} already; name another folder, or remove it")
    tensors = {}
    for theirs, (name, columns) in places.items():
        w = weights[name]
        tensors[theirs] = np.ascontiguousarray(w if columns is None else w[:, columns].T)
    save_file(tensors, path / FILE, metadata={"format": "pt"})
    config = {**_config(model), "torch_dtype": found.pop()}
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return path


def import_weights(folder: str | os.PathLike[str], sequence: int | None = None) -> ImportedWeights:
    """The GPT and the weights in a folder of a LlamaForCausalLM, of one file or of several.

    ``sequence``: tokens of a row; default: as many as the config allows. A training begins with
    them: ``td.train(found.model, ..., pretrained=folder)``. Needs safetensors. Raises
    ConfigError where the config says what a GPT has not (other angles, biases, activations), and
    for files that are not of it.
    """
    config = read(Path(folder) / "config.json")
    model = _model(config, sequence)
    tensors = _tensors(Path(folder))
    parts: dict[str, list[np.ndarray]] = {}
    for theirs, (name, columns) in _places(model).items():
        if theirs not in tensors:
            raise ConfigError(f"{folder} has no tensor {theirs}, which its config.json needs")
        w = tensors.pop(theirs)
        parts.setdefault(name, []).append(w if columns is None else w.T)
    tied = {"lm_head.weight"} if model.tied else set()  # some write it, the same, once more
    if rest := sorted(name for name in tensors.keys() - tied if not name.endswith(".inv_freq")):
        raise ConfigError(f"{folder} has {rest[0]}, which a GPT has not")
    weights = {name: np.concatenate(found, axis=-1) for name, found in parts.items()}
    for unit in model.units:
        for name, parameter in model.parameters(unit).items():
            if (got := weights[f"{unit}.{name}"].shape) != parameter.shape:
                raise ConfigError(
                    f"{folder}: {unit}.{name} is {parameter.shape} by its config.json, and {got} "
                    f"in its files"
                )
    return ImportedWeights(model, weights)


def check_pretrained(model: GPT, folder: str | os.PathLike[str], nudge: int) -> tuple[str, ...]:
    """The folder's files, if a training of ``model`` can begin with it; else ConfigError."""
    path = Path(os.path.abspath(folder))
    theirs = _model(read(path / "config.json"), model.sequence)
    if replace(model, kv_heads=model.head_counts.kv, ffn=model.inner) != theirs:
        raise ConfigError(
            f"pretrained={str(path)!r} is of {theirs}; train that, as td.import_weights gives it, "
            f"not {model}"
        )
    if nudge:
        raise ConfigError(f"nudge={nudge} is of weights that are drawn; leave pretrained= out")
    return tuple(map(str, (path / "config.json", *_files(path))))


def begin(trainer: Any, job: Any) -> None:
    """A `trainer.Trainer`'s weights are those of the folder that its `job.TrainingJob` names."""
    weights = import_weights(job.pretrained, job.model.sequence).weights
    for unit in trainer.units:
        mine = {}
        for name, tiling in trainer.tilings[unit].items():
            piece, whole = tiling.slice((trainer.tensor.rank,)), weights[f"{unit}.{name}"]
            local = np.empty(piece.local_shape, whole.dtype)
            for box, view in piece.views(local):
                view[...] = whole[tuple(slice(*ends) for ends in box)]
            mine[name] = trainer.rank.on_device(local)
        for tensor in trainer.arrays.keys() & {"weights", "master weights"}:
            trainer.put(tensor, unit, mine)


def _places(model: GPT) -> dict[str, _Place]:
    """By Llama's names, in the order of what is side by side."""
    if not model.gated:
        raise ConfigError(
            f"Llama's names are for GPT(gated=True), with RMSNorm, SwiGLU and rotary angles; got "
            f"{short(model)}"
        )
    query, kv, width = model.head_counts
    attention = np.cumsum([0, query * width, kv * width, kv * width]).tolist()
    found = {"model.embed_tokens.weight": _Place("embedding.table")}
    for n in range(model.layers):
        theirs, ours = f"model.layers.{n}", f"layer {n}"
        for name, norm in (("input", "norm_1"), ("post_attention", "norm_2")):
            found[f"{theirs}.{name}_layernorm.weight"] = _Place(f"{ours}.{norm}.w")
        for name, first, end in zip("qkv", attention[:-1], attention[1:], strict=True):
            of = _Place(f"{ours}.attention.wqkv", slice(first, end))
            found[f"{theirs}.self_attn.{name}_proj.weight"] = of
        every = slice(None)
        found[f"{theirs}.self_attn.o_proj.weight"] = _Place(f"{ours}.attention.wo", every)
        for name, first in (("gate", 0), ("up", model.inner)):
            of = _Place(f"{ours}.mlp.w_gate_up", slice(first, first + model.inner))
            found[f"{theirs}.mlp.{name}_proj.weight"] = of
        found[f"{theirs}.mlp.down_proj.weight"] = _Place(f"{ours}.mlp.w_down", every)
    found["model.norm.weight"] = _Place("head.norm.w")
    return found if model.tied else found | {"lm_head.weight": _Place("head.w_head", slice(None))}


def _config(model: GPT) -> dict[str, Any]:
    query, kv, width = model.head_counts
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden,
        "intermediate_size": model.inner,
        "num_hidden_layers": model.layers,
        "num_attention_heads": query,
        "num_key_value_heads": kv,
        "head_dim": width,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.sequence,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON if model.eps is None else model.eps,
        "rope_theta": model.base,
        "tie_word_embeddings": model.tied,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _model(config: Fields, sequence: int | None) -> GPT:
    """The GPT that a config.json of Llama's describes."""
    if (kind := config.text("model_type")) != "llama":
        raise config.fail("model_type", f"is {short(kind)}; a GPT(gated=True) is a 'llama'")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    # "rope_scaling" in older files, and with the base in it "rope_parameters"
    rope = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {"rope_type": rope}
    got = {
        "hidden_act": (config.text("hidden_act", "silu"), "silu"),
        "attention_bias": (config.boolean("attention_bias", False), False),
        "mlp_bias": (config.boolean("mlp_bias", False), False),
        "head_dim": (config.integer("head_dim", hidden // heads), hidden // heads),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    for key, (there, ours) in got.items():
        if there != ours:
            raise config.fail(
                key, f"is {short(there)}, and that of a GPT {ours}: it would compute other numbers"
            )
    eps = config.number("rms_norm_eps")
    base = rope.get("rope_theta", config.number("rope_theta", 10_000.0))
    return GPT(
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        sequence=config.integer("max_position_embeddings") if sequence is None else sequence,
        kv_heads=config.integer("num_key_value_heads", heads),
        ffn=config.integer("intermediate_size"),
        gated=True,
        tied=config.boolean("tie_word_embeddings", False),
        eps=None if eps == EPSILON else eps,
        base=base,
    )


def _files(folder: Path) -> list[Path]:
    """Those that have a folder's weights."""
    index, names = folder / f"{FILE}.index.json", {FILE}
    if index.exists():
        names = {str(name) for name in read(index).object("weight_map").values.values()}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ConfigError(f"{folder} has no file {short(name)} of weights")
    return [folder / name for name in sorted(names)]


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder's files, by name."""
    with needed_for("a file of weights"):
        from safetensors import SafetensorError, deserialize

    found = {}
    for path in _files(folder):
        try:
            tensors = deserialize(path.read_bytes())
        except SafetensorError as error:
            raise ConfigError(f"{path} is damaged: {error}; copy it again") from None
        for tensor, held in tensors:
            if held["dtype"] not in DTYPES:
                raise ConfigError(
                    f"{tensor} in {path} is {held['dtype']}; weights are {', '.join(DTYPES)}"
                )
            dtype = as_dtype(DTYPES[held["dtype"]])
            found[tensor] = np.frombuffer(held["data"], dtype).reshape(held["shape"])
    return found
