"""Megatron-LM's flags both ways; those that say one thing each are rows of its table."""

import re
import shlex
from dataclasses import fields

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.job import Imported, Job, Read, Settings, fitting_recipe
from tiledask.plan.frameworks.shell import launched
from tiledask.plan.inputs.model import Model

__all__ = ["TABLE", "read", "write"]

TABLE = shipped_json("frameworks", "megatron.json")
IN_FP8 = "mixed-adam-18-fp8"
SHARDING: list[str] = TABLE["sharding"]
"""Megatron-FSDP's strategies, by ZeRO's stage."""
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}


def write(job: Job) -> str:
    """The flags of pretrain_gpt.py, a line for each of model, layout and precision."""
    facts = job.facts(_facts(job))
    lines = [
        " ".join(
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")
            for name, value in part.items()
        )
        for part in (job.settings("model", facts), job.settings("layout", facts), job.of_recipe)
    ]
    return " \\\n".join(filter(None, lines)) + "\n"


def _facts(job: Job) -> Settings:
    m, layout = job.model, job.layout
    plain = not (m.out_bias or m.mlp_bias)
    dense = [int(i not in m.dense_layers) for i in range(m.layers)] if m.dense_layers else []
    runs = re.findall("0+|1+", "".join(map(str, dense)))
    uniform = job.is_even and m.layers % layout.chunks == 0
    stages = [f"t*{n}" if n > 1 else "t" * n for n in layout.chunk_layers(m.layers)]
    return {
        "latent": m.latent,
        "grouped": m.kv_heads < m.heads,
        "normed": m.latent or m.qk_norm == "per_head",
        "position_embedding": "learned_absolute" if m.learned_pos else "rope",
        "longest": m.learned_pos or job.sequence,
        "normalization": NORMS.get(m.norm, "LayerNorm"),
        "gated": m.mlp == "swiglu",
        "plain": plain,
        "biased": plain and m.qkv_bias and not m.latent,
        "uneven_biases": not plain and not (m.qkv_bias and m.out_bias and m.mlp_bias),
        "untied": not m.tied,
        "tokenizer": "NullTokenizer",
        **dict.fromkeys(("attention_dropout", "hidden_dropout"), "0.1" if m.dropout else "0.0"),
        # layers that are mixtures: ([0]*3+[1]*58)
        "frequency": runs and "(" + "+".join(f"[{run[0]}]*{len(run)}" for run in runs) + ")",
        "uneven_routing": m.imbalance > 1,
        "ep": layout.ep if layout.ep > 1 else 0,
        "cut": layout.sequence_parallel and layout.tp > 1,
        "virtual": layout.interleave if uniform and layout.interleave > 1 else 0,
        "stages": "" if uniform else f"E{'|'.join(stages)}L",
        "backend": "flash" if layout.flash_attention else "unfused",
        "fsdp": layout.zero > 1,
        "strategy": SHARDING[layout.zero],
        "split": layout.tp * layout.cp > 1,
    }


# --- flags to a layout ----------------------------------------------------------------------


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The model, layout and recipe of the flags of pretrain_gpt.py, torchrun's before them too."""
    flags, unsure = _flags(text)
    per_node, nodes = flags.pop("nproc_per_node", None), flags.pop("nnodes", 1)
    if devices is None and all(re.fullmatch("[0-9]{1,7}", str(n)) for n in (per_node, nodes)):
        devices = int(str(per_node)) * int(str(nodes))
    found = Read("the command", flags, devices, TABLE)
    if unsure:
        names = ", ".join(unsure)
        found.assumed.append(f"the script's conditions are not judged: {names} as set first")
    model = _model_of(found, model)
    usual = model.usual_sequence
    sequence = found.assume("seq_length", usual, f"no --seq-length: {usual} tokens assumed")
    facts = found.facts("layout")
    layout = {name: facts[name] for name in ("tp", "pp", "cp", "ep", "microbatch")}
    folded = model.experts and facts["expert_tp"] != facts["tp"]  # else experts have tp slices
    layout["expert_tp"] = facts["expert_tp"] if folded else 0
    copy = layout["tp"] * layout["pp"] * layout["cp"]
    way_out = "give devices=, or torchrun's --nproc-per-node, --nnodes"
    dp = layout["dp"] = found.copies(copy, way_out)
    batch = found.whole("global_batch_size", dp * layout["microbatch"])
    layout["microbatches"] = found.microbatches(batch, dp, layout["microbatch"])
    layout["sequence_parallel"] = facts["cut"] and layout["tp"] > 1
    layout["zero"] = _zero(found)
    layout["recompute"] = _recompute(found)
    backend = found.get("attention_backend")
    if backend is None and not found.get("use_flash_attn"):
        found.assumed.append("no --attention-backend: one that keeps no scores assumed")
    layout["flash_attention"] = backend not in ("unfused", "local")
    cut = found.cut(layout, _chunks(found, facts, model.layers), model.layers)
    recipe = _recipe(found)
    framework = next((each for flag, each in TABLE["programs"].items() if found.get(flag)), None)
    return found.imported(model, cut, recipe, sequence, "optimizer", framework)


def _flags(text: str) -> tuple[Settings, tuple[str, ...]]:
    """The flags, and the variables that a condition of the script may set otherwise."""
    words, unsure = launched(text)
    flags: Settings = {}
    name = ""
    for word in words:
        if match := re.match(r"--([A-Za-z][\w-]*):?(?:=(.*))?$", word):
            name = match[1].replace("-", "_")
            flags[name] = True if match[2] is None else match[2]
        elif word.endswith(".py") or word == "-m":
            name = ""  # torchrun ends, the program begins
        elif name:
            flags[name] = word if flags[name] is True else f"{flags[name]} {word}"
    if not flags:
        raise ConfigError(
            f"Megatron's flags look like --tensor-model-parallel-size 8 --swiglu; got {short(text)}"
        )
    return flags, unsure


def _recipe(found: Read) -> str:
    rows = [*TABLE["recipes"].items(), *TABLE["read_as"]]  # what is read, beside what is written
    recipe = fitting_recipe(rows, {key: found.get(key) for _, each in rows for key in each})
    if recipe.startswith("fp32") and not (found.get("bf16") or found.get("fp16")):
        found.assumed.append("neither --bf16 nor --fp16: everything in fp32")
    if found.get("fp8_format", found.get("fp8")) is None:
        return recipe
    if recipe != "mixed-adam-18":
        words = f"FP8 products as {IN_FP8} has them, with fp32 gradients; the flags say {recipe}"
        found.assumed.append(words)
    return IN_FP8


def _zero(found: Read) -> int:
    strategy = found.get("data_parallel_sharding_strategy", SHARDING[3])
    if found.get("use_torch_fsdp2"):
        return 3
    distributed = bool(found.get("use_distributed_optimizer"))
    if not (found.get("use_megatron_fsdp") or found.get("use_custom_fsdp")):
        return int(distributed)
    if strategy not in SHARDING:
        raise ConfigError(f"--data-parallel-sharding-strategy is {', '.join(SHARDING)}")
    return SHARDING.index(strategy)


def _recompute(found: Read) -> str:
    asked = found.get("recompute_granularity", "none")
    asked = "selective" if found.get("recompute_activations") else asked
    modules = found.get("recompute_modules", "core_attn")
    if asked == "selective" and modules != "core_attn":
        found.assumed.append(f"of --recompute-modules {modules} only core_attn is counted")
    number, method = found.whole("recompute_num_layers", 1), found.get("recompute_method")
    if asked == "full" and (number != 1 or method == "block"):
        found.assumed.append(f"full recomputation of every layer, not {method} of {number}")
    if asked not in ("none", "selective", "full"):
        raise ConfigError(f"--recompute-granularity is selective or full, got {short(asked)}")
    return str(asked)


def _chunks(found: Read, facts: Settings, layers: int) -> tuple[int, ...]:
    """The layers of each chunk, in model order."""
    if facts["stages"]:
        return tuple(stage.count("t") for stage in _unrolled(facts["stages"]).split("|"))
    pp, v, first, last = facts["pp"], max(1, facts["virtual"]), facts["first"], facts["last"]
    inner = layers + facts["embedding"] + facts["loss"]
    if facts["virtual_layers"]:
        v = max(1, inner // (pp * facts["virtual_layers"]))
    inner, between = inner - first - last, pp * v - bool(first) - bool(last)
    if between < 0 or (between and inner % between) or (not between and inner):
        raise ConfigError(
            f"{layers} layers do not divide over {pp * v} stages; Megatron asks for "
            f"--pipeline-model-parallel-layout or --decoder-first-pipeline-num-layers"
        )
    middle = [inner // between] * between if between else []
    cut = [first] * bool(first) + middle + [last] * bool(last)
    cut[0] -= facts["embedding"]
    cut[-1] -= facts["loss"]
    return tuple(cut)


def _unrolled(text: str) -> str:
    """A pipeline layout with its products written out: "(tt|)*2L" is "tt|tt|L"."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]*)\)\*(\d{1,4})", r"(.)\*(\d{1,4})"):
        grows = sum(len(of) * int(times) for of, times in re.findall(pattern, text))
        if re.search(r"[^EtmL|()*0-9]", text) or grows > 100_000:
            break
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    if re.search(r"[^EtmL|]", text):
        raise ConfigError(
            f"--pipeline-model-parallel-layout has E, t, m, L and | in it, got {short(text)}"
        )
    return text


def _model_of(found: Read, given: Model | None) -> Model:
    """The model of the flags; or the one ``given``, and that the flags describe another."""
    if given is None:
        return _read_model(found)
    said = len(found.assumed)
    try:
        read = _read_model(found)
    except ConfigError:
        return given  # the flags that are there do not describe one
    del found.assumed[said:]
    if read.parameters != given.parameters:
        found.assumed.append(
            f"the model is the one given, of {given.parameters:,} parameters; the flags describe "
            f"one of {read.parameters:,}"
        )
    return given


def _read_model(found: Read) -> Model:
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        found.whole(name)
    others = "|".join(TABLE["other_layers"])
    other = [key for key in sorted(found.settings) if re.fullmatch(others, key)]
    if other := [key for key in other if found.get(key) is not None]:
        raise ConfigError(
            f"{found.where} has --{other[0].replace('_', '-')}, which makes other layers than are "
            f"read here; describe the model by hand, td.Model(...) or its config.json"
        )
    f = found.facts("model")
    if f["mtp"]:
        raise ConfigError("--mtp-num-layers: modules for more tokens are not counted; leave it out")
    gated, hidden, latent = any(f[flag] for flag in TABLE["gated"]), f["hidden"], f["latent"]
    f["ffn"] = f["ffn"] or (hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden)
    usual = 50257 if f["tokenizer"] == "GPT2BPETokenizer" else 32000
    words = f"no --vocab-size: {usual:,} assumed"
    f["vocab"] = f["padded_vocab"] or found.assume("vocab_size", usual, words)
    if not latent:
        f["head_dim"] = f["head_dim"] or hidden // max(1, f["heads"])
    if f["experts"]:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", f["capacity"]):
            got = short(f["capacity"])
            raise ConfigError(f"--moe-expert-capacity-factor is a number, got {got}")
        f["imbalance"] = max(1.0, float(f["capacity"]))
        f["dense_layers"] = _dense(f["frequency"], f["layers"])
    learned = f["position_embedding"] == "learned_absolute" and not f["rotary"]
    norms = {theirs: ours for ours, theirs in NORMS.items()}
    f |= {
        "mlp": "swiglu" if gated else "gelu",
        "norm": norms.get(f["normalization"], "rmsnorm" if latent else "layernorm"),
        "qkv_bias": not f["plain"] or f["biased"],
        **dict.fromkeys(("out_bias", "mlp_bias"), not f["plain"]),
        "tied": not f["untied"],
        "learned_pos": f["longest"] if learned else 0,
        "qk_norm": "per_head" if f["normed"] and not latent else None,
        "dropout": any(f[name].strip("0.") for name in ("attention_dropout", "hidden_dropout")),
    }
    return Model(**{each.name: f[each.name] for each in fields(Model) if each.name in f})


def _dense(freq: str, layers: int) -> tuple[int, ...]:
    """Layers without experts: all but every n-th, or the 0s of "([0]*3+[1]*58)"."""
    if re.fullmatch("[0-9]{1,4}", freq):
        return tuple(i for i in range(layers) if i % max(1, int(freq)))
    runs = re.findall(r"\[([01, ]{1,9999})\](?:\*(\d{1,4}))?", freq[:20_000].strip("()"))
    few = sum(len(each) * int(n or 1) for each, n in runs) <= 1_000_000
    ones = [int(one) for each, n in runs if few for one in re.findall("[01]", each) * int(n or 1)]
    if len(ones) != layers:
        raise ConfigError(
            f"--moe-layer-freq is a number or a list of {layers} zeros and ones such as "
            f"([0]*3+[1]*{layers - 3}); got {short(freq)}"
        )
    return tuple(i for i, one in enumerate(ones) if not one)
