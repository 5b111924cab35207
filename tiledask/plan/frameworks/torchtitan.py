"""torchtitan's TOML, as its releases up to 0.2.2 take it, both ways."""

import json
import re
import tomllib

from tiledask.errors import ConfigError, short
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.table import Imported, Read, Settings, flat, is_even
from tiledask.plan.inputs.layout import Layout, expert_slices
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
    each = -(-model.layers // layout.chunks)
    counted = layout.interleave <= 2 or -(-model.layers // each) == layout.chunks
    even = is_even(layout, layout.chunk_layers(model.layers))
    return {
        "known": model.name in FLAVORS,
        "family": family,
        "flavor": flavor,
        "local": layout.microbatch * (layout.microbatches if layout.pp > 1 else 1),
        "replicas": layout.dp // shards,
        "shards": shards,
        "expert_slices": expert_slices(layout),
        "other_slices": expert_slices(layout) not in (1, layout.tp),
        "order": order,
        "named": NAMES.get(order, NAMES["interleaved" if layout.interleave > 1 else "1f1b"]),
        "other_order": layout.pp > 1 and order not in NAMES,
        "each": each * (layout.interleave > 2 and counted),
        "uneven": not (even and counted),
        "uncounted": not counted,
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
    found = Read("the TOML", dict(flat(tables)), devices, TABLE)
    if not any(key.startswith(f"{table}.") for table in TABLES for key in found.settings):
        raise ConfigError(f"a torchtitan TOML has tables such as [{'], ['.join(TABLES)}]")
    named = found.facts("model")
    flavor = named["family"], named["flavor"]
    if model is None and flavor not in FLAVORS.values():
        raise ConfigError(
            f"the sizes of torchtitan's {flavor[0]} {short(flavor[1])} are not known here; give "
            f"the model beside the file"
        )
    model = model or load_model(next(ours for ours, each in FLAVORS.items() if each == flavor))
    converters = " ".join(map(str, found.get("model.converters", ())))
    fp8 = re.search("float8|mx", converters) or found.get("float8.enable_float8_linear")
    if not fp8:  # its tables do nothing
        found.used |= {key for key in found.settings if re.match("(quantize|float8|mx)[.]", key)}
    parts = dict.fromkeys(found.get("compile.components", ("model", "loss")), True)
    f = found.facts("layout", **parts, fp8=bool(fp8))
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
    f["schedule"], sizes = _stages(f, model.layers)
    f = found.facts("precision", **f, hsdp=1 < f["shards"] < f["dp"])
    return found.imported(model, f, sizes, "optimizer.name")


def _stages(f: Settings, layers: int) -> tuple[str, tuple[int, ...]]:
    """The schedule, and the layers of each chunk."""
    if f["pp"] == 1:
        return "1f1b", (layers,)
    asked = f["asked"].replace("_", "")  # as names were written once
    if asked.lower() not in OF_PYTORCH:
        names = ", ".join(NAMES.values())
        raise ConfigError(f"torch's schedules are {names}; got {short(f['asked'])}")
    name = called(asked)
    several = name in ("interleaved", "looped-bfs", "interleaved-zb", *V_SHAPED)
    first, last = (1 if f[end] == -1 else f[end] for end in ("first", "last"))
    effective = layers + first + last
    chunks = -(-effective // f["each"]) if f["each"] else f["pp"] * (2 if several else 1)
    cut = list(even(effective, chunks)) if chunks <= effective else []
    if cut:
        cut[0] -= first
        cut[-1] -= last
    return "1f1b" if name == "interleaved" else name, tuple(cut)
