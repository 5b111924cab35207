"""Count the parameters of small models with transformers, for tests/plan/inputs/test_families.py.

    python tests/oracles/transformers_counts.py                all families again
    python tests/oracles/transformers_counts.py lfm2 bamba     these
    python tests/oracles/transformers_counts.py --add toy toy.json '{"tie_word_embeddings": true}'

The last adds a family: its config, small, and what each further case changes of it. Needs torch and
transformers, in an environment of their own; nothing is allocated. The balancing biases of routers,
which are buffers in transformers, are counted with the parameters.
"""

import gzip
import json
import re
import sys
from pathlib import Path

ORACLES = Path(__file__).parent
FILE = ORACLES / "transformers_counts.json.gz"
WITHIN = {"step3p7": "step3p7", "qwen2_vl_text": "qwen2_vl"}
"""Family -> the model_type of the wrapper that alone has it in transformers."""
SAME = {"minimax_m3": "minimax_m3_vl_text"}


def class_of(kind, wrapper=False):
    """The class of a family's config, or of the wrapper that alone has it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind in WITHIN:
        whole = CONFIG_MAPPING[WITHIN[kind]]
        return whole if wrapper else type(whole().get_text_config())
    return CONFIG_MAPPING[SAME.get(kind, kind)]


def counted(kind, values):
    """Parameters of the language model of a config."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    given = {
        key: value for key, value in values.items() if key not in ("model_type", "architectures")
    }
    config = class_of(kind)(**given)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
            parts = [model]
        except ValueError:  # of a wrapper the decoder, and its output projection
            model = AutoModelForImageTextToText.from_config(class_of(kind, True)(text_config=given))
            parts = [
                model.model.language_model,
                *[model.lm_head] * (not config.tie_word_embeddings),
            ]
    many = sum(each.numel() for part in parts for each in part.parameters())
    buffers = (pair for part in parts for pair in part.named_buffers())
    biases = sum(
        buffer.numel() for name, buffer in buffers if re.search("(correction|expert)_bias", name)
    )
    return many + biases


def main(kinds):
    found = json.loads(gzip.decompress(FILE.read_bytes()))
    if kinds[:1] == ["--add"]:
        kind, path, *changes = kinds[1:]
        cases = [[change, None] for change in ({}, *map(json.loads, changes))]
        found[kind], kinds = {"config": json.loads(Path(path).read_text()), "cases": cases}, [kind]
    if unknown := {*kinds} - found.keys():
        sys.exit(f"not in the file: {', '.join(unknown)}; put a family there with --add")
    for kind in kinds or found:
        base, cases = found[kind]["config"], found[kind]["cases"]
        found[kind]["cases"] = [[change, counted(kind, base | change)] for change, _ in cases]
        print(kind, len(cases), flush=True)
    lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(row)}" for kind, row in found.items())
    FILE.write_bytes(gzip.compress(f"{{\n{lines}\n}}\n".encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
