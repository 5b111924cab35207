"""A GPT's weights under Llama's names: transformers computes the same with them.

What transformers said stands in llama_logits.json, made by llama_logits.py where it is. Files are
written and read where safetensors is.

Holds `tiledask.distributed.training.hugging_face`.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from oracles.llama_logits import FILE, MODELS, SMALL, ids, weights_of
from oracles.single_gpt import block, inside, norm

import tiledask as td
from tiledask.distributed.training import hugging_face
from tiledask.errors import ConfigError
from tiledask.plan.data import Fields
from tiledask.plan.inputs.hf_config import model_from_config
from tiledask.tile import layers as L

THEIRS = json.loads(FILE.read_text())["models"]
CASES = pytest.mark.parametrize("theirs", THEIRS, ids=range(len(THEIRS)))


def logits(model, weights, tokens):
    at, heads = np.arange(model.sequence), model.block.heads
    angles = L.rotary_angles(at, heads.width, model.base)
    x, _ = L.embedding(tokens, weights["embedding.table"])
    for n in range(model.layers):
        x, _ = block(True, x, inside(weights, f"layer {n}"), heads, angles, model.eps)
    y, _ = norm(True, x, inside(weights, "head.norm"), model.eps)
    return y @ (weights["embedding.table"].T if model.tied else weights["head.w_head"])


def test_the_models_are_those_of_the_maker():
    assert [each["model"] for each in THEIRS] == [SMALL | fields for fields in MODELS]


@CASES
def test_transformers_computes_the_same_logits(theirs):
    model = td.GPT(**theirs["model"])
    mine = logits(model, weights_of(model), ids(model))
    np.testing.assert_allclose(mine, theirs["logits"], rtol=0, atol=1e-5)
    assert np.abs(mine).max() > 1


@CASES
def test_names_shapes_and_config_are_those_of_transformers(theirs):
    model = td.GPT(**theirs["model"])
    weights, shapes = weights_of(model), {}
    for name, (ours, columns) in hugging_face._places(model).items():
        w = weights[ours] if columns is None else weights[ours][:, columns].T
        shapes[name] = list(w.shape)
    tensors = dict(theirs["tensors"])
    if model.tied:  # which it names twice
        assert tensors.pop("lm_head.weight") == tensors["model.embed_tokens.weight"]
    assert shapes == tensors
    config = hugging_face._config(model)
    for each in (config, theirs["config"]):
        read = hugging_face._model(Fields(each, "config.json"), None)
        assert read.parameters("layer 0") == model.parameters("layer 0")
        assert (read.units, read.tied, read.size) == (model.units, model.tied, model.size)
        assert (read.eps, read.base) == (model.eps, model.base)
        assert model_from_config(Fields(each, "config.json"), "x").parameters == model.size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mistral"}, "'model_type' is 'mistral'; a GPT.* is a 'llama'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "'rope_type' is 'llama3', and that of a G"),
        ({"rope_scaling": {"type": "linear"}}, "'rope_type' is 'linear'"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"head_dim": 8}, "'head_dim' is 8, and that of a GPT 6"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
    ],
)
def test_a_config_that_is_no_gpts_is_refused(change, words):
    config = hugging_face._config(td.GPT(**SMALL)) | change
    with pytest.raises(ConfigError, match=words):
        hugging_face._model(Fields(config, "config.json"), None)


def test_without_the_library_it_is_said_what_brings_it(tmp_path, monkeypatch):
    model = td.GPT(**SMALL)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    with pytest.raises(ModuleNotFoundError, match=r"weights needs safetensors, .*\[weights\]"):
        td.export_weights(model, weights_of(model), tmp_path)


# -- files ---------------------------------------------------------------------------------------


@pytest.fixture
def library():
    return pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@CASES
def test_what_is_written_is_read_to_the_bit(theirs, dtype, tmp_path, library):
    model = td.GPT(**theirs["model"])
    weights = weights_of(model, td.tile.as_dtype(dtype))
    found = td.import_weights(td.export_weights(model, weights, tmp_path / "llama"))
    assert found.model.size == model.size
    assert found.weights.keys() == weights.keys()
    for name, w in weights.items():
        assert found.weights[name].dtype == w.dtype
        assert found.weights[name].tobytes() == w.tobytes()
    assert td.load_model(tmp_path / "llama").parameters == model.size


@pytest.mark.parametrize("options", [{}, {"zero": 3}, {"dtype": "bfloat16"}], ids=str)
def test_a_training_begins_with_them_under_any_layout(options, tmp_path, library):
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, 16, layers=2, heads=4, sequence=8, kv_heads=2, gated=True)
    model = replace(model, eps=1e-2, base=100.0)
    told = {"steps": 1, "batch": 4, "microbatches": 2}
    trained = td.train(model, text, (1, 1, 1), **told, seed=3, dtype="float64")
    folder = td.export_weights(model, trained.weights, tmp_path / "llama")
    options = {"dtype": "float64"} | options
    begun = td.train(model, text, (2, 2, 1), steps=0, batch=4, pretrained=folder, **options)
    for name, w in trained.weights.items():
        assert begun.weights[name].tobytes() == w.astype(begun.weights[name].dtype).tobytes()
    one, other = (
        td.train(model, text, shape, **told, pretrained=folder, **options)
        for shape in ((1, 1, 1), (2, 2, 2))
    )
    near = {"float64": 1e-12}.get(options["dtype"], 3e-2)
    np.testing.assert_allclose(one.losses, other.losses, rtol=near)
    assert abs(one.losses[0] - trained.losses[0]) > 0.01
    other = td.GPT(text.vocabulary, 16, 1, 4, 8, gated=True)
    with pytest.raises(ConfigError, match=r"train that, as td\.import_weights gives it"):
        td.train(other, text, (1, 1, 1), **told, pretrained=folder)
    with pytest.raises(ConfigError, match="nudge=1 is of weights that are drawn"):
        td.train(model, text, (1, 1, 1), **told, pretrained=folder, nudge=1)


def test_files_that_are_not_it_are_refused(tmp_path, library):
    model = td.GPT(**SMALL)
    weights = weights_of(model)
    folder = td.export_weights(model, weights, tmp_path / "llama")
    for call, words in (
        (lambda: td.export_weights(model, weights, folder), "has config.json already"),
        (lambda: td.export_weights(td.GPT(31, 24, 2, 4, 8), weights, tmp_path), "GPT.gated=True"),
        (lambda: td.export_weights(model, {}, tmp_path), "one of these; got 'none'"),
        (
            lambda: td.export_weights(model, {**weights, "more": weights["head.norm.w"]}, tmp_path),
            "more is none in .* and .24,. among the weights",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    whole = folder / "model.safetensors"
    tensors = library.load_file(whole)
    for change, words in (
        ({"extra": tensors["model.norm.weight"]}, "has extra, which a GPT has not"),
        ({"model.norm.weight": None}, "no tensor model.norm.weight, which its config.json needs"),
        ({"model.norm.weight": np.ones(3, np.float32)}, "head.norm.w is .24,. by .* and .3,. in"),
        ({"model.norm.weight": np.ones(24, np.int8)}, "is I8; weights are F64, F32, F16, BF16"),
    ):
        changed = {n: w for n, w in (tensors | change).items() if w is not None}
        library.save_file(changed, whole)
        with pytest.raises(ConfigError, match=words):
            td.import_weights(folder)
    whole.write_bytes(whole.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        td.import_weights(folder)
    whole.unlink()
    with pytest.raises(ConfigError, match=r"has no file 'model\.safetensors' of"):
        td.import_weights(folder)
