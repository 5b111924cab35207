"""torchtitan's TOML, as its releases up to 0.2.2 take it, both ways."""

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.table import Imported, Read, Settings, is_even
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.intervals import even
from tiledask.plan.pipelines.schedules import OF_PYTORCH, V_SHAPED, called

__all__ = ["TABLE", "facts", "read", "text"]

TABLE = shipped_json("frameworks", "torchtitan.json")
FLAVORS = {ours: tuple(theirs) for ours, theirs in TABLE["flavors"].items()}
"""Our name of a model -> (name, flavor) there."""
NAMES: dict[str, str] = TABLE["schedules"]
"""Our schedules that torch has, by what it calls them."""
TABLES = ("model", "training", "parallelism", "activation_checkpoint")


def facts(model: Model, layout: Layout, sequence: int) -> Settings:
    """What the rows write beside fields."""
    family, flavor = FLAVORS.get(model.name, ("llama3", model.name))
    shards = layout.dp if layout.zero else 1
    interleaved = layout.schedule == "1f1b" and layout.interleave > 1
    order = "interleaved" if interleaved else layout.schedule
    sizes = layout.chunk_layers(model.layers)
    parts: list[list[str]] = []
    if layout.pp > 1 and not (is_even(layout, sizes) and layout.interleave <= 2):
        names = (f"layers.{i}" for i in range(model.layers))
        parts = [[*islice(names, size)] for size in sizes]
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += ["norm", "output"]
    return {
        "known": model.name in FLAVORS,
        "family": family,
        "flavor": flavor,
        "local": layout.microbatch * (layout.microbatches if layout.pp > 1 else 1),
        "replicas": layout.dp // shards,
        "shards": shards,
        "expert_slices": layout.expert_slices,
        "other_slices": layout.expert_slices not in (1, layout.tp),
        "order": order,
        "named": NAMES.get(order, "_PipelineScheduleRuntime"),
        "csv": f"{order}.csv" if layout.pp > 1 and order not in NAMES else "",
        "parts": parts,
    }


def text(parts: list[Settings]) -> str:
    """The TOML: [model], [training], [parallelism] and [activation_checkpoint]."""
    tables: dict[str, list[str]] = {}
    for name, value in (item for part in parts for item in part.items()):
        table, _, key = name.partition(".")
        # what JSON writes of texts, whole numbers, switches and lists of texts is TOML
        tables.setdefault(table, [f"[{table}]"]).append(f"{key} = {json.dumps(value)}")
    return "\n".join("\n".join(lines) + "\n" for lines in tables.values())


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The model, layout and recipe of a torchtitan TOML."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, numbers of 5,000 digits
        raise ConfigError(f"the TOML cannot be read: {error}") from None
    found = Read("the TOML", dict(_flat(tables)), devices, TABLE)
    if not any(key.startswith(f"{table}.") for table in TABLES for key in found.settings):
        raise ConfigError(f"a torchtitan TOML has tables such as [{'], ['.join(TABLES)}]")
    named = found.facts("model")
    model = _known(named["family"], named["flavor"]) if model is None else model
    converters = " ".join(map(str, found.get("model.converters", ())))
    fp8 = re.search("float8|mx", converters) or found.get("float8.enable_float8_linear")
    loss = "loss" in found.get("compile.components", ("model", "loss"))
    f = found.facts("layout", fp8=bool(fp8), loss=loss)
    f["expert_tp"] = f["expert_slices"] if f["ep"] > 1 else 0
    copy = f["tp"] * f["pp"] * f["cp"]
    if f["shards"] == -1:
        way_out = "give devices=, or data_parallel_shard_degree"
        f["shards"] = found.copies(copy * f["replicas"], way_out)
    f["dp"] = f["replicas"] * f["shards"]
    f["zero"] = 3 if f["shards"] * f["cp"] > 1 else 0
    f["batch"] = f["local"] * f["dp"] if f["batch"] == -1 else f["batch"]
    size = max(1, f["local"] // f["older_parts"]) if f["older_parts"] else 1  # before 0.2
    size = size if f["size"] == -1 else f["size"]
    f["microbatch"] = size if f["pp"] > 1 else f["local"]
    f["schedule"], sizes = _stages(found, f, model.layers)
    layout = found.layout(f, sizes, model.layers)
    f = found.facts("precision", **f, hsdp=1 < f["shards"] < f["dp"])
    return found.imported(model, layout, f, "optimizer.name")


def _flat(table: Settings, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a table of tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _known(family: str, flavor: str) -> Model:
    for name, theirs in FLAVORS.items():
        if theirs == (family, flavor):
            return load_model(name)
    raise ConfigError(
        f"the sizes of torchtitan's {family} {short(flavor)} are not known here; give the model "
        f"beside the file"
    )


def _stages(found: Read, f: Settings, layers: int) -> tuple[str, tuple[int, ...]]:
    """The schedule, and the layers of each chunk."""
    parts: Any = found.get("parallelism.module_fqns_per_model_part")
    if f["pp"] == 1:
        return "1f1b", (layers,)
    name, csv = called(f["asked"]), f["asked_csv"]
    if csv:
        name = csv.rpartition("/")[2].removesuffix(".csv")
        found.assumed.append(f"the order in {csv} taken for the schedule of that name, {name}")
    elif f["asked"].lower() not in OF_PYTORCH:
        names = ", ".join(NAMES.values())
        raise ConfigError(f"torch's schedules are {names}; got {short(f['asked'])}")
    schedule = "1f1b" if name == "interleaved" else name
    if isinstance(parts, list):
        return schedule, tuple(sum(str(m).startswith("layers.") for m in part) for part in parts)
    several = name in ("interleaved", "looped-bfs", "interleaved-zb", *V_SHAPED)
    first, last = (1 if f[end] == -1 else f[end] for end in ("first", "last"))
    effective = layers + first + last
    chunks = -(-effective // f["each"]) if f["each"] else f["pp"] * (2 if several else 1)
    cut = list(even(effective, chunks)) if chunks <= effective else []
    if cut:
        cut[0] -= first
        cut[-1] -= last
    return schedule, tuple(cut)
