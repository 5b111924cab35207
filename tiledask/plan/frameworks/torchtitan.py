"""torchtitan's TOML, as its releases up to 0.2.2 take it, both ways."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.job import Imported, Job, Read, Settings
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.intervals import even
from tiledask.plan.pipelines.schedules import OF_PYTORCH, V_SHAPED, called

__all__ = ["read", "write"]

TABLE = shipped_json("frameworks", "torchtitan.json")
FLAVORS = {ours: tuple(theirs) for ours, theirs in TABLE["flavors"].items()}
"""Our name of a model -> (name, flavor) there."""
NAMES: dict[str, str] = TABLE["schedules"]
"""Our schedules that torch has, by what it calls them."""
TABLES = ("model", "training", "parallelism", "activation_checkpoint")


def write(job: Job) -> str:
    """The TOML: [model], [training], [parallelism] and [activation_checkpoint]."""
    layout, lost = job.layout, job.lost
    name, flavor = FLAVORS.get(job.model.name, ("llama3", job.model.name))
    if job.model.name not in FLAVORS:
        lost["model"] = f"torchtitan has no flavor of {job.model.name}: add it by its sizes"
    local = layout.microbatch * (layout.microbatches if layout.pp > 1 else 1)
    training = job.of_recipe(TABLE["recipes"], "fsdp-adam") | {
        "seq_len": job.sequence,
        "local_batch_size": local,
        "global_batch_size": job.batch,
    }
    copies = layout.dp * layout.cp
    shards = layout.dp if layout.zero else 1
    if layout.zero and copies == 1:
        lost["zero"] = "one copy has nobody to share weights with"
    elif not layout.zero and layout.cp > 1:
        lost["zero"] = "context parallelism shards weights over its ranks there"
    if job.recipe.name == "fsdp-adam-pipeline" and (layout.pp == 1 or layout.zero < 3):
        lost["recipe"] = "weights stay gathered in pipelines with ZeRO 3 only: as fsdp-adam"
    unsharded = layout.pp > 1 or layout.zero < 3 or copies == 1
    if job.recipe.name == "fsdp-adam-no-reshard" and unsharded:
        lost["recipe"] = "weights stay gathered with ZeRO 3 outside of pipelines only: as fsdp-adam"
    parallel: Settings = {
        "data_parallel_replicate_degree": layout.dp // shards,
        "data_parallel_shard_degree": shards,
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
    }
    if layout.ep > 1:
        parallel["expert_parallel_degree"] = layout.ep
        parallel["expert_tensor_parallel_degree"] = layout.expert_slices
        if layout.expert_slices not in (1, layout.tp):
            lost["expert_tp"] = "torchtitan slices experts by 1 or tp"
    if layout.zero and copies > 1:
        parallel["fsdp_reshard_after_forward"] = _reshard(job)
    if layout.pp > 1:
        parallel |= _pipeline(job)
    if layout.tp > 1 and not layout.sequence_parallel:
        lost["sequence_parallel"] = "torchtitan's tensor parallelism cuts the sequence too"
    elif layout.sequence_parallel and layout.tp == 1:
        lost["sequence_parallel"] = "sequence_parallel does nothing with tp=1: left out"
    if not layout.flash_attention:
        lost["flash_attention"] = "torchtitan's attention keeps no scores"
    saved = TABLE["recompute"]
    if layout.recompute not in saved:
        lost["recompute"] = "attention's core alone is not recomputed there, nor are scores kept"
    job.said.append("for torchtitan up to 0.2.2; from 0.3 the same names are fields in Python")
    return _toml(
        {
            "model": {"name": name, "flavor": flavor},
            "training": training,
            "parallelism": parallel,
            "activation_checkpoint": saved.get(layout.recompute, saved["none"]),
        }
    )


def _reshard(job: Job) -> str:
    """When weights that were gathered are dropped: after each forward, or never before the
    backward, which makes ZeRO 3 into ZeRO 2."""
    layout = job.layout
    if layout.zero < 3:
        words = f"FSDP2 shards weights too: zero={layout.zero} is nearest to never dropping them"
        job.lost["zero"] = words
        if job.recipe.name == "fsdp-adam":
            name = "fsdp-adam-no-reshard" if layout.pp == 1 else "fsdp-adam-pipeline"
            job.lost["recipe"] = f"weights are never dropped: as recipe {name}"
        return "never"
    if job.recipe.name == "fsdp-adam-pipeline":
        return "default"
    if job.recipe.name == "fsdp-adam-no-reshard" and "recipe" not in job.lost:
        return "never"
    return "always"


def _pipeline(job: Job) -> Settings:
    layout = job.layout
    name = "interleaved" if layout.schedule == "1f1b" and layout.interleave > 1 else layout.schedule
    found: Settings = {
        "pipeline_parallel_schedule": NAMES.get(name, "_PipelineScheduleRuntime"),
        "pipeline_parallel_microbatch_size": layout.microbatch,
    }
    if name not in NAMES:
        found["pipeline_parallel_schedule_csv"] = f"{name}.csv"
        words = f"write td.schedule({name!r}, ...).to_text() to {name}.csv: torch has no such name"
        job.lost["schedule"] = words
    if job.is_even and layout.interleave <= 2:
        found["pipeline_parallel_first_stage_less_layers"] = 0
        found["pipeline_parallel_last_stage_less_layers"] = 0
        return found
    parts, start = [], 0
    for size in layout.chunk_layers(job.model.layers):
        parts.append([f"layers.{i}" for i in range(start, start + size)])
        start += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return found | {"module_fqns_per_model_part": parts}


def _toml(tables: dict[str, Settings]) -> str:
    """What JSON writes of texts, whole numbers, switches and lists of texts is TOML."""
    return "\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        + "\n"
        for name, table in tables.items()
    )


# --- TOML to a layout -----------------------------------------------------------------------


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The model, layout and recipe of a torchtitan TOML."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, numbers of 5,000 digits
        raise ConfigError(f"the TOML cannot be read: {error}") from None
    flat = _today(dict(_flat(tables)))
    if not any(key.startswith(f"{table}.") for table in TABLES for key in flat):
        raise ConfigError(f"a torchtitan TOML has tables such as [{'], ['.join(TABLES)}]")
    found = Read("the TOML", flat, devices, TABLE)
    model = _known(found) if model is None else model
    found.used |= {"model.name", "model.flavor"}
    parallel = found.degrees()
    slices = found.whole("parallelism.expert_tensor_parallel_degree", 1, least=1)
    folded = parallel["ep"] > 1 and slices != parallel["tp"]  # else experts have tp slices
    parallel["expert_tp"] = slices if folded else 0
    replicas = found.whole("parallelism.data_parallel_replicate_degree", 1, least=1)
    shards = found.open_number("parallelism.data_parallel_shard_degree")
    copy = parallel["tp"] * parallel["pp"] * parallel["cp"]
    if shards is None:
        shards = found.copies(copy * replicas, "give devices=, or data_parallel_shard_degree")
    layout: Settings = parallel | {"dp": replicas * shards}
    layout["zero"] = 3 if shards * parallel["cp"] > 1 else 0
    if 1 < shards < layout["dp"]:
        words = f"HSDP: weights are sharded over {shards}, here over all {layout['dp']} copies"
        found.assumed.append(words)
    local = found.whole("training.local_batch_size", 8, least=1)
    batch = found.open_number("training.global_batch_size")
    batch = local * layout["dp"] if batch is None else batch
    parts = found.whole("parallelism.pipeline_parallel_microbatches", 0)  # before 0.2
    size = found.whole(
        "parallelism.pipeline_parallel_microbatch_size", local // parts or 1 if parts else 1
    )
    layout["microbatch"] = size if parallel["pp"] > 1 else local
    layout["microbatches"] = found.microbatches(batch, layout["dp"], layout["microbatch"])
    layout |= {"sequence_parallel": parallel["tp"] > 1, "flash_attention": True}
    layout["recompute"] = _saved(found)
    layout["schedule"], sizes = _stages(found, layout["pp"], model.layers)
    cut = found.cut(layout, sizes, model.layers)
    recipe = _precision(found, layout)
    sequence = found.whole("training.seq_len", model.usual_sequence)
    framework = _framework(found)
    assumed, uncounted = found.rest(recipe, "optimizer.name")
    return Imported(model, cut, recipe, sequence, assumed, uncounted, framework)


def _flat(table: Settings, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a table of tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _today(flat: Settings) -> Settings:
    """The names of 0.2 for those of the releases before it."""
    found: Settings = {}
    for name, value in flat.items():
        table, _, key = name.rpartition(".")
        if table in ("training", "experimental") and "_parallel" in key:
            name = (
                f"parallelism.{key.replace('data_parallel_degree', 'data_parallel_shard_degree')}"
            )
        elif name == "training.batch_size":
            name = "training.local_batch_size"
        found[name] = value
    return found


def _framework(found: Read) -> str:
    """Whose measurements: layers compiled or not, their loss too, tensor parallelism in pieces."""
    compiles = found.get("compile.enable", found.get("training.compile", False))
    parts = found.get("compile.components", ["model", "loss"])
    if found.get("parallelism.enable_async_tensor_parallel"):
        return "torchtitan-async-tp"
    if not compiles:
        return "torchtitan-eager"
    fused = "loss" in parts and "compile.enable" in found.settings  # training.compile: layers alone
    return "torchtitan-fused-loss" if fused else "torchtitan"


def _known(found: Read) -> Model:
    asked = (found.get("model.name", "llama3"), found.get("model.flavor", "debugmodel"))
    name = next((name for name, flavor in FLAVORS.items() if flavor == asked), None)
    if name is None:
        raise ConfigError(
            f"the sizes of torchtitan's {asked[0]} {short(asked[1])} are not known here; give the "
            f"model beside the file"
        )
    return load_model(name)


def _saved(found: Read) -> str:
    mode = found.get("activation_checkpoint.mode", "selective")
    option = str(found.get("activation_checkpoint.selective_ac_option", "2"))
    for name, settings in TABLE["recompute"].items():
        if settings["mode"] == mode and settings.get("selective_ac_option", option) == option:
            return str(name)
    found.assumed.append(f"activation checkpointing {mode} {option} has no word here: as full")
    return "full"


def _stages(found: Read, pp: int, layers: int) -> tuple[str, tuple[int, ...]]:
    """The schedule, and the layers of each chunk."""
    asked = str(found.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    csv = found.get("parallelism.pipeline_parallel_schedule_csv")
    ends = [
        found.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1)
        for end in ("first", "last")
    ]
    each = found.whole("parallelism.pipeline_parallel_layers_per_stage", 0)
    parts: Any = found.get("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return "1f1b", (layers,)
    name = called(asked)
    if csv:
        name = str(csv).rpartition("/")[2].removesuffix(".csv")
        found.assumed.append(f"the order in {csv} taken for the schedule of that name, {name}")
    elif asked.lower() not in OF_PYTORCH:
        raise ConfigError(f"torch's schedules are {', '.join(NAMES.values())}; got {short(asked)}")
    schedule = "1f1b" if name == "interleaved" else name
    if isinstance(parts, list):
        return schedule, tuple(sum(str(m).startswith("layers.") for m in part) for part in parts)
    several = name in ("interleaved", "looped-bfs", "interleaved-zb", *V_SHAPED)
    effective = layers + sum(ends)
    chunks = -(-effective // each) if each else pp * (2 if several else 1)
    cut = list(even(effective, chunks)) if chunks <= effective else []
    if cut:
        cut[0] -= ends[0]
        cut[-1] -= ends[1]
    return schedule, tuple(cut)


def _precision(found: Read, layout: Settings) -> str:
    converters = " ".join(map(str, found.get("model.converters", ())))
    if re.search("float8|mx", converters) or found.get("float8.enable_float8_linear"):
        found.assumed.append("layers' products in FP8, weights gathered in half precision")
        return "fsdp-adam-fp8"
    weights = found.get("training.dtype", "float32")
    compute = found.get("training.mixed_precision_param", "bfloat16")
    reshard = found.get("parallelism.fsdp_reshard_after_forward", "default")
    kept = layout["zero"] == 3 and reshard != "always"
    if weights == "bfloat16" or compute == "float32":
        recipe = "bf16-adam" if weights == "bfloat16" else "fp32-adam"
        if kept and reshard == "never":
            found.assumed.append(f"recipe {recipe} gathers weights for each layer, again and again")
        return recipe
    if kept and layout["pp"] > 1:
        return "fsdp-adam-pipeline"
    return "fsdp-adam-no-reshard" if kept and reshard == "never" else "fsdp-adam"
