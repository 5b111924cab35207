"""What transformers computes with the weights that a GPT(gated=True) writes, for
test_hugging_face.py: a maker, not a test.

Run where torch, transformers, safetensors and rich are, which the tests do not need:

    PYTHONPATH=.:tests python tests/oracles/llama_logits.py  # writes llama_logits.json beside it

Of each model: its fields, what transformers calls its tensors, the config.json that it writes in
turn, and the logits of `ids`. What it writes in turn, in one file and in several, is read back,
equal to the bit.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import tiledask as td
from tiledask.tile.layers import initialise

SMALL = {"vocabulary": 31, "hidden": 24, "layers": 2, "heads": 4, "sequence": 8, "gated": True}
MODELS = [
    {},
    {"kv_heads": 2, "ffn": 40, "eps": 0.01, "base": 50.0},
    {"kv_heads": 1, "ffn": 33, "tied": True, "layers": 3},
]
FILE = Path(__file__).with_suffix(".json")


def weights_of(model, dtype="float32"):
    """Drawn ones, and norms that are not all ones."""
    made = {}
    for unit in model.units:
        drawn = initialise(model.parameters(unit), 5, prefix=f"{unit}.", dtype=dtype)
        made |= {f"{unit}.{name}": w for name, w in drawn.items()}
    for name in made:
        if "norm" in name:
            made[name] = (1 + 0.2 * np.sin(np.arange(model.hidden) + len(name))).astype(dtype)
    return made


def ids(model):
    """[2, sequence]."""
    return np.arange(2 * model.sequence).reshape(2, -1) * 7 % model.vocabulary


def made(fields):
    import torch
    from transformers import AutoModelForCausalLM

    model = td.GPT(**fields)
    weights = weights_of(model)
    with tempfile.TemporaryDirectory() as name:
        folder = td.export_weights(model, weights, Path(name) / "ours")
        loaded, said = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        with torch.no_grad():
            logits = loaded(torch.tensor(ids(model))).logits.numpy()
        for size in ("1GB", "8KB"):
            theirs = Path(name) / size
            loaded.save_pretrained(theirs, max_shard_size=size)
            assert (len(list(theirs.glob("*.safetensors"))) > 1) == (size == "8KB")
            again = td.import_weights(theirs)
            assert again.model == td.GPT(**{"kv_heads": 4, "ffn": 96} | fields)
            assert all(again.weights[n].tobytes() == w.tobytes() for n, w in weights.items())
        return {
            "model": fields,
            "tensors": {n: list(t.shape) for n, t in loaded.state_dict().items()},
            "config": json.loads((theirs / "config.json").read_text()),
            "logits": np.round(logits, 6).tolist(),
        }


if __name__ == "__main__":
    found = [made(SMALL | fields) for fields in MODELS]
    FILE.write_text(json.dumps({"made by": "llama_logits.py", "models": found}) + "\n")
