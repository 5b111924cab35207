"""Megatron-LM's flags both ways."""

import re
import shlex
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.job import Imported, Job, Read, Settings, fitting_recipe
from tiledask.plan.frameworks.shell import launched
from tiledask.plan.inputs.model import Model

__all__ = ["read", "write"]

TABLE = shipped_json("frameworks", "megatron.json")
RECIPES: dict[str, Settings] = TABLE["recipes"]
READ_AS = (*RECIPES.items(), *TABLE["read_as"])
"""What is read, beside what is written."""
SIZES: dict[str, dict[str, tuple[str, int | None]]] = TABLE["sizes"]
"""Of each group the field of a Model -> (flag, its value where it is not there)."""
IN_FP8 = "mixed-adam-18-fp8"
SHARDING: list[str] = TABLE["sharding"]
"""Megatron-FSDP's strategies, by ZeRO's stage."""


def write(job: Job) -> str:
    """The flags of pretrain_gpt.py, a line for each of model, layout and precision."""
    lines = [
        " ".join(
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")
            for name, value in part.items()
        )
        for part in (_model(job), _layout(job), job.of_recipe(RECIPES, "mixed-adam-18"))
    ]
    return " \\\n".join(filter(None, lines)) + "\n"


def _sizes(model: Model, group: str) -> Settings:
    """The flags of a group of sizes, those that are not 0."""
    fields = {field: getattr(model, field) for field in SIZES[group]}
    return {SIZES[group][field][0]: size for field, size in fields.items() if size}


def _model(job: Job) -> Settings:
    m = job.model
    found = _sizes(m, "all")
    if m.latent:
        found |= {"multi_latent_attention": True, **_sizes(m, "latent")}
    else:
        found["kv_channels"] = m.head_dim
        if m.kv_heads < m.heads:
            found |= {"group_query_attention": True, "num_query_groups": m.kv_heads}
    if m.latent or m.qk_norm == "per_head":
        found["qk_layernorm"] = True
    positions = "learned_absolute" if m.learned_pos else "rope"
    found["position_embedding_type"] = positions
    found["max_position_embeddings"] = m.learned_pos or job.sequence
    found["normalization"] = "RMSNorm" if m.norm == "rmsnorm" else "LayerNorm"
    found |= {"swiglu": True} if m.mlp == "swiglu" else {}
    biases = m.qkv_bias, m.out_bias, m.mlp_bias
    if not m.out_bias and not m.mlp_bias:
        found["disable_bias_linear"] = True
        found |= {"add_qkv_bias": True} if m.qkv_bias and not m.latent else {}
    elif not all(biases):
        job.lost["biases"] = "Megatron has biases everywhere, nowhere or at query, key and value"
    found |= {} if m.tied else {"untie_embeddings_and_output_weights": True}
    found |= {"tokenizer_type": "NullTokenizer", "vocab_size": m.vocab}
    found["make_vocab_size_divisible_by"] = 1
    rate = 0.1 if m.dropout else 0.0
    found |= {"attention_dropout": rate, "hidden_dropout": rate}
    if m.experts:
        found |= {**_sizes(m, "experts"), "moe_token_dispatcher_type": "alltoall"}
        found |= _sizes(m, "shared")
        found |= {"moe_shared_expert_gate": True} if m.shared_gate else {}
        if m.router_bias:
            found |= {"moe_router_score_function": "sigmoid"}
            found |= {"moe_router_enable_expert_bias": True}
        if m.dense_layers:
            found["moe_layer_freq"] = _frequency([i not in m.dense_layers for i in range(m.layers)])
    for name, lost, words in (
        ("norm", m.norm == "none", "Megatron's norms have weights; the model's have none"),
        ("qk_norm", m.qk_norm == "full", "norms of all heads at once: Megatron's are by head"),
        ("embedding_norm", m.embedding_norm, "a norm after the embedding has no flag"),
        ("imbalance", m.imbalance > 1, "how uneven the routing is has no flag"),
        (
            "positions",
            m.embedding_norm and not m.learned_pos,
            "ALiBi positions have no flag: rotary ones stand there",
        ),
    ):
        if lost:
            job.lost[name] = words
    return found


def _frequency(mixtures: list[bool]) -> str:
    """The list of layers that are mixtures, as Megatron takes it: "([0]*3+[1]*58)"."""
    runs = re.findall(r"0+|1+", "".join(str(int(each)) for each in mixtures))
    return "(" + "+".join(f"[{run[0]}]*{len(run)}" for run in runs) + ")"


def _layout(job: Job) -> Settings:
    layout, lost = job.layout, job.lost
    names = TABLE["layout"]
    found = {name: getattr(layout, field) for field, name in names.items() if field != "ep"}
    found |= {"global_batch_size": job.batch, "seq_length": job.sequence}
    found |= {names["ep"]: layout.ep} if layout.ep > 1 else {}
    if layout.expert_tp:
        found["expert_tensor_parallel_size"] = layout.expert_tp
    if layout.sequence_parallel and layout.tp > 1:
        found["sequence_parallel"] = True
    elif layout.sequence_parallel:
        lost["sequence_parallel"] = "sequence_parallel does nothing with tp=1: left out"
    if job.is_even and job.model.layers % layout.chunks == 0:
        if layout.interleave > 1:
            found["num_virtual_stages_per_pipeline_rank"] = layout.interleave
    else:
        sizes = layout.chunk_layers(job.model.layers)
        stages = [f"t*{n}" if n > 1 else "t" * n for n in sizes]
        stages[0] = f"E{stages[0]}"
        found["pipeline_model_parallel_layout"] = "|".join(stages) + "L"
    if layout.schedule != "1f1b" and layout.pp > 1:
        lost["schedule"] = (
            f"Megatron runs 1F1B, plain or interleaved; {layout.schedule} has no flag"
        )
    if layout.recompute == "selective":
        found["recompute_granularity"] = "selective"
    elif layout.recompute == "full":
        found |= {"recompute_granularity": "full", "recompute_method": "uniform"}
        found["recompute_num_layers"] = 1
    elif layout.recompute != "none":
        lost["recompute"] = f"recompute={layout.recompute} is torch's: left out"
    found["attention_backend"] = "flash" if layout.flash_attention else "unfused"
    if layout.zero:
        found["use_distributed_optimizer"] = True
        found |= {"overlap_grad_reduce": True, "overlap_param_gather": True}
    if layout.zero > 1:
        found |= {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}
        found["data_parallel_sharding_strategy"] = SHARDING[layout.zero]
    if layout.zero < 2 and layout.tp * layout.cp > 1:
        job.said.append("before Blackwell Megatron wants CUDA_DEVICE_MAX_CONNECTIONS=1 set")
    elif layout.zero > 1:
        job.said.append("Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset, or above 1")
    return found


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
    layout = found.degrees()
    layout["expert_tp"] = found.whole("expert_tensor_parallel_size", 0, least=0)
    if not model.experts or layout["expert_tp"] == layout["tp"]:
        layout["expert_tp"] = 0
    copy = layout["tp"] * layout["pp"] * layout["cp"]
    dp = layout["dp"] = found.copies(
        copy, "give devices=, or torchrun's --nproc-per-node, --nnodes"
    )
    batch = found.whole("global_batch_size", dp * layout["microbatch"])
    layout["microbatches"] = found.microbatches(batch, dp, layout["microbatch"])
    layout["sequence_parallel"] = bool(found.get("sequence_parallel")) and layout["tp"] > 1
    layout["zero"] = _zero(found)
    layout["recompute"] = _recompute(found)
    backend = found.get("attention_backend")
    if backend is None and not found.get("use_flash_attn"):
        found.assumed.append("no --attention-backend: one that keeps no scores assumed")
    layout["flash_attention"] = backend not in ("unfused", "local")
    cut = found.cut(layout, _sizes_of_chunks(found, model.layers, layout["pp"]), model.layers)
    recipe = _recipe(found)
    framework = next((each for flag, each in TABLE["programs"].items() if found.get(flag)), None)
    assumed, uncounted = found.rest(recipe, "optimizer")
    return Imported(model, cut, recipe, sequence, assumed, uncounted, framework)


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
    recipe = fitting_recipe(READ_AS, {key: found.get(key) for _, each in READ_AS for key in each})
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


def _sizes_of_chunks(found: Read, layers: int, pp: int) -> tuple[int, ...]:
    """The layers of each chunk, in model order."""
    given = found.get("pipeline_model_parallel_layout")
    first, last = (
        found.whole(f"decoder_{end}_pipeline_num_layers", 0) for end in ("first", "last")
    )
    ends = [
        int(bool(found.get(f"account_for_{end}_in_pipeline_split")))
        for end in ("embedding", "loss")
    ]
    v = max(1, found.whole("num_virtual_stages_per_pipeline_rank", 1))
    each = found.whole("num_layers_per_virtual_pipeline_stage", 0)
    if given is not None:
        return tuple(stage.count("t") for stage in _unrolled(str(given)).split("|"))
    if each:
        v = max(1, (layers + sum(ends)) // (pp * each))
    inner, between = layers + sum(ends) - first - last, pp * v - bool(first) - bool(last)
    if between < 0 or (between and inner % between) or (not between and inner):
        raise ConfigError(
            f"{layers} layers do not divide over {pp * v} stages; Megatron asks for "
            f"--pipeline-model-parallel-layout or --decoder-first-pipeline-num-layers"
        )
    middle = [inner // between] * between if between else []
    cut = [first] * bool(first) + middle + [last] * bool(last)
    cut[0] -= ends[0]
    cut[-1] -= ends[1]
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
    layers, hidden, heads = (
        found.whole(name) for name in ("num_layers", "hidden_size", "num_attention_heads")
    )
    others = "|".join(TABLE["other_layers"])
    other = [key for key in sorted(found.settings) if re.fullmatch(others, key)]
    if other := [key for key in other if found.get(key) is not None]:
        raise ConfigError(
            f"{found.where} has --{other[0].replace('_', '-')}, which makes other layers than are "
            f"read here; describe the model by hand, td.Model(...) or its config.json"
        )
    gated = bool([flag for flag in TABLE["gated"] if found.get(flag)])
    ffn = found.whole("ffn_hidden_size", hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden)
    plain = bool(found.get("disable_bias_linear"))
    latent = bool(found.get("multi_latent_attention"))
    grouped = found.get("group_query_attention") and not latent
    experts = found.whole("num_experts", 0)
    learned = found.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    learned = learned and not found.get("use_rotary_position_embeddings")
    positions = found.whole("max_position_embeddings", 0)
    rates = [str(found.get(f"{name}_dropout", 0.1)) for name in ("attention", "hidden")]
    usual = (
        50257 if found.get("tokenizer_type", "GPT2BPETokenizer") == "GPT2BPETokenizer" else 32000
    )
    words = f"no --vocab-size: {usual:,} assumed"
    vocab = found.whole("padded_vocab_size", 0) or found.assume("vocab_size", usual, words)
    sizes: dict[str, Any] = {}
    if latent:
        sizes |= {field: found.whole(*each) for field, each in SIZES["latent"].items()}
    else:
        sizes["head_dim"] = found.whole("kv_channels", hidden // max(1, heads))
    if experts:
        of_experts = SIZES["experts"] | SIZES["shared"]
        sizes |= {field: found.whole(*each) for field, each in of_experts.items()}
        sizes["expert_ffn"] = found.whole("moe_ffn_hidden_size", ffn)
        sizes["shared_gate"] = bool(found.get("moe_shared_expert_gate"))
        sizes["router_bias"] = bool(found.get("moe_router_enable_expert_bias"))
        factor = str(found.get("moe_expert_capacity_factor", 1))
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", factor):
            raise ConfigError(f"--moe-expert-capacity-factor is a number, got {short(factor)}")
        sizes["imbalance"] = max(1.0, float(factor))
        sizes["dense_layers"] = _dense(str(found.get("moe_layer_freq", 1)), layers)
    if found.whole("mtp_num_layers", 0):
        raise ConfigError("--mtp-num-layers: modules for more tokens are not counted; leave it out")
    norm = "rmsnorm" if latent else "layernorm"
    norm = {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}.get(found.get("normalization"), norm)
    qk_norm = bool(found.get("qk_layernorm")) and not latent
    return Model(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        kv_heads=found.whole("num_query_groups", 1) if grouped else 0,
        mlp="swiglu" if gated else "gelu",
        norm=norm,
        qkv_bias=not plain or bool(found.get("add_qkv_bias")),
        out_bias=not plain,
        mlp_bias=not plain,
        tied=not found.get("untie_embeddings_and_output_weights"),
        learned_pos=positions if learned else 0,
        qk_norm="per_head" if qk_norm else None,
        dropout=any(rate.strip("0.") for rate in rates),
        **sizes,
    )


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
