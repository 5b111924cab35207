"""Megatron-LM's flags both ways; all that one flag says alone is a row of its table."""

import re
import shlex
from dataclasses import fields

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.shell import flags_of, launched
from tiledask.plan.frameworks.table import Imported, Read, Settings, is_even
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model

__all__ = ["TABLE", "facts", "read", "text", "trained"]

TABLE = shipped_json("frameworks", "megatron.json")


def facts(model: Model, layout: Layout, sequence: int) -> Settings:
    """What the rows write beside fields."""
    sizes = layout.chunk_layers(model.layers)
    uniform = is_even(layout, sizes) and model.layers % layout.chunks == 0
    stages = "|".join(f"t*{n}" if n > 1 else "t" * n for n in sizes)
    mixtures = "".join("01"[i not in model.dense_layers] for i in range(model.layers))
    runs = [f"[{run[0]}]*{len(run)}" for run in re.findall("0+|1+", mixtures)]
    return {
        "latent": model.kv_lora_rank > 0,
        "grouped": model.kv_heads < model.heads,
        "longest": model.learned_pos or sequence,
        "frequency": f"({'+'.join(runs)})" if model.dense_layers else "",
        "uneven_routing": model.imbalance > 1,
        "virtual": layout.interleave if uniform and layout.interleave > 1 else 0,
        "stages": "" if uniform else f"E{stages}L",
    }


def text(parts: list[Settings]) -> str:
    """The flags of pretrain_gpt.py, a line for each of model, layout and precision."""
    lines = [
        " ".join(
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")
            for name, value in part.items()
        )
        for part in parts
    ]
    return " \\\n".join(filter(None, lines)) + "\n"


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The model, layout and recipe of the flags of pretrain_gpt.py, torchrun's before them too;
    ConfigError for a program whose settings are not Megatron's."""
    words, notes = launched(text)
    program, flags, unset = flags_of(words, TABLE["launcher"])
    for names, sentence in TABLE["foreign"]:
        if any(re.fullmatch(names, each) for each in (f"{program}.py", *flags)):
            raise ConfigError(sentence)
    if not flags:
        got = f"{', '.join(unset)}, which nothing in it sets" if unset else short(text)
        raise ConfigError(
            f"Megatron's flags look like --tensor-model-parallel-size 8 --swiglu; got {got}"
        )
    return trained(flags, notes, unset, model, devices)


def trained(
    flags: Settings, notes: list[str], unset: list[str], model: Model | None, devices: int | None
) -> Imported:
    """The same of flags by name, with what is not certain of them, and variables and scripts of
    which nothing is known."""
    where = f"the command (without {', '.join(unset)})" if unset else "the command"
    found = Read(where, flags, devices, TABLE)
    found.assumed += notes
    started = [str(found.get("nproc_per_node", "")), str(found.get("nnodes", 1))]
    if all(re.fullmatch("[0-9]{1,7}", each) for each in started):
        many = int(started[0]) * int(started[1])
        if devices not in (None, many):
            found.assumed.append(f"on {devices:,} devices, where the script starts {many:,}")
        found.devices = devices or many
    try:
        described = _described(found)
    except ConfigError as error:
        if model is None:
            raise
        described = model
        if "num_layers" in found.settings:
            found.assumed.append(f"the model is the one given: {error}")
    model = model or described
    if model.parameters != described.parameters:
        mine, theirs = f"{model.parameters:,}", f"{described.parameters:,}"
        found.assumed.append(f"the model given has {mine} parameters, that of the flags {theirs}")
    known = {"unset": ", ".join(unset), "usual": model.usual_sequence}
    f = found.facts("layout", **known, recipe=found.choice("recipe"))
    f["expert_tp"] = f["expert_tp"] if model.experts else 0
    way_out = "give devices=, or torchrun's --nproc-per-node, --nnodes"
    f["dp"] = found.copies(f["tp"] * f["pp"] * f["cp"], way_out)
    if f["packed"]:
        f |= {"sequence": f["packed_tokens"] * f["cp"], "microbatch": 1}
    f["batch"] = f["dp"] * f["microbatch"] if f["batch"] == -1 else f["batch"]
    return found.imported(model, f, _chunks(f, model.layers), "optimizer")


def _chunks(f: Settings, layers: int) -> tuple[int, ...]:
    """The layers of each chunk, in model order."""
    if f["stages"]:
        stages = _unrolled(f["stages"].replace(",", ""), r"\(([^)]*)\)")
        if re.search(r"[^EtmL|]", stages):
            raise ConfigError(
                f"--pipeline-model-parallel-layout has E, t, m, L and | in it, got {short(stages)}"
            )
        return tuple(stage.count("t") for stage in stages.split("|"))
    inner, v, first, last = layers + f["embedding"] + f["loss"], f["virtual"], f["first"], f["last"]
    if f["virtual_layers"]:
        v = inner // (f["pp"] * f["virtual_layers"])
    inner, between = inner - first - last, f["pp"] * max(1, v) - bool(first) - bool(last)
    if between < 0 or (between and inner % between) or (not between and inner):
        raise ConfigError(
            f"{layers} layers do not divide over {f['pp'] * max(1, v)} stages; Megatron asks for "
            f"--pipeline-model-parallel-layout or --decoder-first-pipeline-num-layers"
        )
    middle = [inner // between] * between if between else []
    cut = [first] * bool(first) + middle + [last] * bool(last)
    cut[0] -= f["embedding"]
    cut[-1] -= f["loss"]
    return tuple(cut)


def _unrolled(text: str, group: str) -> str:
    """``text`` with its products written out: "(tt|)*2L" is "tt|tt|L"; too long ones stay."""
    for pattern in (rf"{group}\*(\d{{1,4}})", r"(.)\*(\d{1,4})"):
        if sum(len(of) * int(times) for of, times in re.findall(pattern, text)) <= 100_000:
            text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    return text


def _described(found: Read) -> Model:
    """The model of the flags."""
    others = "|".join(TABLE["other_layers"])
    other = [key for key in sorted(found.settings) if re.fullmatch(others, key)]
    if other := [key for key in other if found.get(key) not in (None, False, "0", "none")]:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in other)
        raise ConfigError(
            f"{found.where} has {flags}, for layers that are not read here; describe the "
            f"model by hand, td.Model(...) or its config.json"
        )
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        if found.get(name) is None:
            flag = name.replace("_", "-")
            raise ConfigError(f"{found.where} has no --{flag}; name the model beside it, or add it")
    if found.get("num_experts") == "1":
        del found.settings["num_experts"]  # a dense model
    f = found.facts("model")
    hidden, vocab = f["hidden"], f["padded_vocab"] or f["vocab"]
    f["vocab"] = f["usual_vocab"] if vocab == -1 else vocab
    if f["ffn"] == -1:
        f["ffn"] = hidden * 8 // 3 // 64 * 64 if f["mlp"] == "swiglu" else 4 * hidden
    if not f["latent"]:
        f["head_dim"] = f["head_dim"] or hidden // max(1, f["heads"])
    if f["experts"]:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", f["capacity"]):
            got = short(f["capacity"])
            raise ConfigError(f"--moe-expert-capacity-factor is a number, got {got}")
        f["imbalance"] = max(1.0, float(f["capacity"]))
        freq, layers = f["frequency"], f["layers"]
        # every n-th layer has experts, or those that are 1 in "([0]*3+[1]*58)"
        if re.fullmatch("[0-9]{1,4}", freq):
            has = [i % max(1, int(freq)) == 0 for i in range(layers)]
        else:
            listed = _unrolled(freq[:20_000], r"\[([01, ]*)\]")
            has = [each == "1" for each in re.findall("[01]", listed)]
            if len(has) != layers or re.search(r"[^01, +()\[\]]", listed):
                raise ConfigError(
                    f"--moe-layer-freq is a number or a list of {layers} zeros and ones such as "
                    f"([0]*3+[1]*{layers - 3}); got {short(freq)}"
                )
        f["dense_layers"] = tuple(i for i, there in enumerate(has) if not there)
    f["learned_pos"] = f["longest"] if f["learned"] else 0
    f["dropout"] = any(f[name].strip("0.") for name in ("attention_dropout", "hidden_dropout"))
    return Model(**{each.name: f[each.name] for each in fields(Model) if each.name in f})
