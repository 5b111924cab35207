"""torchtitan's TOML, as its releases up to 0.2.2 take it, both ways."""

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.job import Imported, Job, Read, Settings
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.intervals import even
from tiledask.plan.pipelines.schedules import OF_PYTORCH, V_SHAPED, called

__all__ = ["TABLE", "read", "write"]

TABLE = shipped_json("frameworks", "torchtitan.json")
FLAVORS = {ours: tuple(theirs) for ours, theirs in TABLE["flavors"].items()}
"""Our name of a model -> (name, flavor) there."""
NAMES: dict[str, str] = TABLE["schedules"]
"""Our schedules that torch has, by what it calls them."""
TABLES = ("model", "training", "parallelism", "activation_checkpoint")


def write(job: Job) -> str:
    """The TOML: [model], [training], [parallelism] and [activation_checkpoint]."""
    facts = job.facts(_facts(job))
    saved = TABLE["recompute"]
    flat = job.settings("model", facts) | job.of_recipe | job.settings("layout", facts)
    flat |= saved.get(job.layout.recompute, saved["none"])
    tables: dict[str, list[str]] = {}
    for name, value in flat.items():
        table, _, key = name.partition(".")
        # what JSON writes of texts, whole numbers, switches and lists of texts is TOML
        tables.setdefault(table, [f"[{table}]"]).append(f"{key} = {json.dumps(value)}")
    return "\n".join("\n".join(lines) + "\n" for lines in tables.values())


def _facts(job: Job) -> Settings:
    layout, recipe = job.layout, job.recipe.name
    family, flavor = FLAVORS.get(job.model.name, ("llama3", job.model.name))
    shards, copies = layout.dp if layout.zero else 1, layout.dp * layout.cp
    interleaved = layout.schedule == "1f1b" and layout.interleave > 1
    order = "interleaved" if interleaved else layout.schedule
    never = layout.pp == 1 and layout.zero == 3 and copies > 1
    reshard = {"fsdp-adam-pipeline": "default"}.get(recipe, "always")
    if layout.zero < 3 or (never and recipe == "fsdp-adam-no-reshard"):
        reshard = "never"
    parts: list[list[str]] = []
    if layout.pp > 1 and not (job.is_even and layout.interleave <= 2):
        names = (f"layers.{i}" for i in range(job.model.layers))
        parts = [[*islice(names, size)] for size in layout.chunk_layers(job.model.layers)]
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += ["norm", "output"]
    return {
        "known": job.model.name in FLAVORS,
        "family": family,
        "flavor": flavor,
        "local": layout.microbatch * (layout.microbatches if layout.pp > 1 else 1),
        "replicas": layout.dp // shards,
        "shards": shards,
        "alone": copies == 1,
        "expert_slices": layout.expert_slices,
        "other_slices": layout.expert_slices not in (1, layout.tp),
        "gathers_late": layout.pp > 1 and layout.zero == 3,
        "never_reshards": never,
        # when weights that were gathered are dropped: never, and ZeRO 3 becomes ZeRO 2
        "reshard": layout.zero and copies > 1 and reshard,
        "shards_more": copies > 1 and layout.zero in (1, 2),
        "kept_as": "fsdp-adam-no-reshard" if layout.pp == 1 else "fsdp-adam-pipeline",
        "order": order,
        "named": NAMES.get(order, "_PipelineScheduleRuntime"),
        "csv": f"{order}.csv" if layout.pp > 1 and order not in NAMES else "",
        "parts": parts,
        "saved": layout.recompute in TABLE["recompute"],
    }


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
    facts = found.facts("layout")
    layout: Settings = {name: facts[name] for name in ("tp", "pp", "cp", "ep")}
    slices, replicas = facts["expert_slices"], facts["replicas"]
    folded = layout["ep"] > 1 and slices != layout["tp"]  # else experts have tp slices
    layout["expert_tp"] = slices if folded else 0
    shards = found.open_number("parallelism.data_parallel_shard_degree")
    copy = layout["tp"] * layout["pp"] * layout["cp"]
    if shards is None:
        shards = found.copies(copy * replicas, "give devices=, or data_parallel_shard_degree")
    layout["dp"] = replicas * shards
    layout["zero"] = 3 if shards * layout["cp"] > 1 else 0
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
    layout["microbatch"] = size if layout["pp"] > 1 else local
    layout["microbatches"] = found.microbatches(batch, layout["dp"], layout["microbatch"])
    layout |= {"sequence_parallel": layout["tp"] > 1, "flash_attention": True}
    layout["recompute"] = _saved(found)
    layout["schedule"], sizes = _stages(found, layout["pp"], model.layers)
    cut = found.cut(layout, sizes, model.layers)
    recipe = _precision(found, layout)
    sequence = found.whole("training.seq_len", model.usual_sequence)
    framework = _framework(found)
    return found.imported(model, cut, recipe, sequence, "optimizer.name", framework)


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
    asked = {
        "activation_checkpoint.mode": mode,
        "activation_checkpoint.selective_ac_option": option,
    }
    for name, settings in TABLE["recompute"].items():
        if settings.items() <= asked.items():
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
