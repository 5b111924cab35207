"""Hugging Face's Trainer as people set it: LLaMA-Factory's and axolotl's YAML, flags of a command.

Read alone: what such a trainer does beside its settings is not ours to write.
"""

import json
import re

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.shell import flags_of, launched
from tiledask.plan.frameworks.table import Imported, Read, Settings, flat
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import lora

__all__ = ["TABLE", "read", "trained"]

TABLE = shipped_json("frameworks", "trainer.json")
_LINE = re.compile(
    r"( *)(- +)?(?:([\w.-]+) *:(?:\s+|$))?(\"[^\"]*\"|'[^']*'|.*?)\s*(?:(?<!\S)#.*)?"
)


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The model, layout and recipe of a YAML, of its JSON, or of the flags of a command."""
    settings, notes = _settings(text)
    of = "axolotl" if "base_model" in settings else "LLaMA-Factory"
    of = of if {"base_model", "stage", "finetuning_type"} & settings.keys() else "the trainer"
    return trained(settings, notes, of, model, devices)


def trained(
    settings: Settings, notes: list[str], of: str, model: Model | None, devices: int | None
) -> Imported:
    """The same of settings by name, of whom they are, with what is not certain of them."""
    where = f"the configuration of {of}"
    found = Read(where, settings, devices, TABLE)
    found.assumed += notes
    name = str(found.get("model_name_or_path", ""))
    if model is None:
        if not name:
            raise ConfigError(f"{where} has no model_name_or_path; name the model beside it")
        model = load_model(name)
    named = f"{found.get('deepspeed', '')} z{found.get('zero_stage', '')}"
    stage = re.search(r"(?:z|zero|stage)[_-]?([0-3])", named.lower())
    half = "bf16" in settings and str(found.get("bf16")) != "False"  # "auto" is where it can be
    zero = int(stage[1]) if stage else 0
    f = found.facts("layout", of=of, where=where, bf16=half, zero=zero)
    if f["deepspeed"] and not stage:
        f["zero"] = 2
        found.assumed.append(f"{short(f['deepspeed'])} does not say its stage: 2, or --zero")
    if "offload" in f"{f['deepspeed']} {f['fsdp']}" or f["offloads"]:
        held = ("optimizer", "gradients", "weights")[: 3 if f["zero"] == 3 else 2]
        f |= {f"place of {part}": "cpu" for part in held}
    if re.search("8bit", str(found.get("optim", ""))):
        f |= {"bytes of momentum": 1, "bytes of variance": 1}
    f["pp"], f["dp"] = 1, found.copies(f["tp"] * f["cp"], "give devices=")
    f["batch"] = f["dp"] * f["microbatch"] * f["microbatches"]
    if f["adapters"]:  # beside those of a layer: all; as they are named; or PEFT's usual
        every = tuple(w.name for w in model.layer if w.inputs and "router" not in w.name)
        theirs, asked = TABLE["matrices"], re.findall(r"[\w-]+", f["targets"])
        whole = f["all_targets"] or "all" in f["targets"]
        known = dict.fromkeys(ours for name in asked for ours in theirs.get(name, ()))
        matrices = tuple(n for n in known if n in every) or ("query", "value")
        if whole or not (asked or f["of"] != "LLaMA-Factory"):
            matrices = every
        elif unknown := dict.fromkeys(name for name in asked if name not in theirs):
            found.assumed.append(f"computed without adapters of {', '.join(unknown)}")
        found.assumed.append(f"adapters of rank {f['rank']} beside {', '.join(matrices)}")
        f["recipe"] = lora(f["rank"], matrices, f["recipe"])
    return found.imported(model, f, (model.layers,), "optim")


def _settings(text: str) -> tuple[Settings, list[str]]:
    """Names, with dots for what they stand in, and values of a YAML, a JSON or flags; and what is
    not certain of them."""
    if text.lstrip().startswith("{"):
        try:
            return dict(flat(json.loads(text))), []
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the JSON cannot be read: {error}") from None
    if not re.search(r"(?m)^[A-Za-z_]\w*:(\s|$)", text):
        words, notes = launched(text)
        _, flags, unset = flags_of(words, ("config_file",))
        return flags, notes + [f"not read: {word}, which nothing sets" for word in unset]
    settings: Settings = {}
    above: list[tuple[int, str]] = []  # how far the names are indented under which a line stands
    for line in text.splitlines():
        match = _LINE.fullmatch(line.rstrip())
        indent, item, key, value = match.groups() if match else ("", "", "", "")
        value = value.strip("\"'[]").replace(",", " ") if value != "null" else ""
        depth = len(indent) + len(item or "")
        while above and above[-1][0] >= depth and (key or above[-1][0] > depth):
            above.pop()
        if key:
            above.append((depth, key))
        name = ".".join(name for _, name in above)
        if value and name:
            settings[name] = value if key else f"{settings.get(name, '')} {value}".lstrip()
    if not settings:
        raise ConfigError(f"a trainer's YAML has lines such as 'bf16: true', got {short(text)}")
    return settings, []
