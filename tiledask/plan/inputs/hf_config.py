"""A Hugging Face config.json as a Model: every key is understood, harmless, noted or refused.

data/families.json has

    aliases    keys of config.json that name a field of a Model, the usual one first
    same       the model_type whose language model has the same weights
    neutral    keys that add or drop weights unless they hold one of these values
    harmless   patterns of keys that no parameter count depends on
    texts      keys of the language model's own config, in that of a model of images or sounds
    others     keys that only other files have, and what these are
    refused    model_types that are known and not planned, and why
    unseen     keys of what is not counted, and the note that says so
    parts      what several families have in common
    families   a row for each model_type, or what it has that others, which it is "like", have not

A row has "fixed" fields of a Model; those that its keys give, "required" and "optional"; its
"switches": a key, its "default", the fields that it "sets" or that are so where it is "true" or
"false"; other "keys" and their defaults, null where there must be one, and those that it "needs" to
hold, if only null; "untyped" ones are a number or text; "dropout" keys and their defaults; whether
the output projection is "tied" by default; the "classes" with exactly these weights; a list that is
as long as there are layers, where nothing else says it, "layers_of"; what is so of a "mixture"
alone. Fields are "derived" from these by expressions, those of "each" layer by its number i;
"rules" say what must be so, of which key, and what else; "class" has what transformers takes where
a wrapper's own config does not say it; "more" weights of a layer, the embedding or the head have
units, size and inputs.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial, reduce
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import Fields, meant, shipped_json
from tiledask.plan.inputs.model import MIXTURE, MOST_LAYERS, Model
from tiledask.plan.inputs.weights import Weight

__all__ = ["families", "model_from_config"]

Row = dict[str, Any]
"""A family of the file, or fields of a Model and their values."""
KEYS: Row = shipped_json("families.json")
families: dict[str, Row] = {}
"""``model_type`` -> its family, of those that are understood."""
ALONE = ", text alone"
BASE = ("hidden", "layers", "heads", "vocab")
"""Fields of a Model that every config gives."""
FIELDS = {field.name for field in fields(Model)}
BUILTINS = {
    each.__name__: each
    for each in (len, min, max, range, any, all, sum, set, int, dict, str, bool, type)
}
"""What expressions of the file can use."""
STRUCTURE = (
    r"(.*_)?(num|n|size|dims?|ranks?|heads?|layers?|experts?|bias|norms?|width|hidden|intermediate"
    r"|mlp|ffn|attn|attention|conv|ssm|mamba|state|lora|adapters?|tied?|gated?|moe|shared|blocks?"
    r"|pattern|kernel|proj|projection|embeddings?|embed|mtp|nextn|indexer|index)(_.*)?"
)
"""Words in the keys that may add or drop weights."""
TYPING_ERROR = 0.75
"""How alike a key that nobody knows is to one that is missing, at least, where that was meant."""
BY_HAND = (
    "A model like one of them is described by hand: "
    "td.Model(layers=..., hidden=..., heads=..., ffn=..., vocab=...)"
)
"""How to go on with a model that is not understood."""


def _merged(one: Any, other: Any, add: bool = False) -> Any:
    """``one`` with what ``other`` has: tables are added to, and lists if ``add``; all else is
    replaced."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {k: _merged(one[k], v, add) if k in one else v for k, v in other.items()}
    return one + other if add and isinstance(one, list) else other


for _name, _own in KEYS["families"].items():
    _like = _own.get("like", [])
    _names = [_like] if isinstance(_like, str) else _like
    _rows = [{**KEYS["parts"], **families}[each] for each in _names]
    families[_name] = reduce(_merged, [*_rows, _own], {})


def model_from_config(config: Fields, name: str) -> Model:
    """The Model that ``config`` describes.

    A family or a key that may change the count and is not understood is a ConfigError, which has
    all of them. Counts are of trainable parameters. The load-balancing bias of DeepSeek-V3's router
    is one, as in its published 671 B; layers that predict further tokens are not counted, and
    ``notes`` say so. Of a model of images and text it is the language model alone, with its output
    projection, as its ``name`` says.

    >>> config = Fields({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...                  "n_positions": 1024, "vocab_size": 50257}, "config.json")
    >>> model_from_config(config, "gpt2").parameters
    124439808
    """
    if (inner := _language(config)) is not None:
        model = model_from_config(inner, f"{name.removesuffix(ALONE)}{ALONE}")
        note = "text alone: what reads images or sounds is not counted"
        return replace(model, notes=(note, *(each for each in model.notes if each != note)))
    known = {key for names in KEYS["aliases"].values() for key in names}
    given = dict(config.values)
    for key, value in given.items():  # a list of equal numbers, of each layer, is that number
        alike = isinstance(value, list) and value and value.count(value[0]) == len(value)
        if alike and key in known:
            given[key] = value[0]
    config = Fields(given, config.where)
    kind = _understood(config)
    source = config.take(str, "source", "") or config.where
    family = families[kind]
    if any(config.values.get(key) for key in KEYS["aliases"]["experts"]):
        family = _merged(family, family.get("mixture", {}), add=True)
    wrong: list[str] = []
    for head in config.take(tuple[str, ...], "architectures", ()):
        if head not in family["classes"]:
            rule = f"key 'architectures' names {short(head)}, whose head may hold other weights; "
            rule += f"for {kind!r} the count is known of {', '.join(family['classes'])}. {BY_HAND}"
            wrong.append(rule)
    values, names = _values(config, family, wrong)
    notes, ignored = _rest(config, family, wrong)
    if wrong:
        raise ConfigError(f"{config.where}: {'; '.join(wrong)}")
    values |= _of_layers(config, family, values, names)
    if not values.get("experts"):  # every layer is dense
        values = {key: value for key, value in values.items() if key not in (*MIXTURE, "top_k")}
    if ignored:
        notes.append(f"not read, as the family's class has no such key: {', '.join(ignored)}")
        source += f"; {notes[-1]}"
    try:
        return Model(**values, name=name, source=source, notes=tuple(notes))
    except ConfigError as error:
        raise ConfigError(f"{config.where}: {error}") from None


def _understood(config: Fields) -> str:
    """The family of a config, by its model_type, or by its class where it has none."""
    classes = {head: kind for kind, family in families.items() for head in family["classes"]}
    for key, what in KEYS["others"].items():
        if made := config.values.get(key):
            raise ConfigError(f"{config.where}: {short(made)} {what}")
    heads = config.values.get("architectures")
    named = [head for head in heads if isinstance(head, str)] if isinstance(heads, list) else []
    guessed = next((classes[head] for head in named if head in classes), "none given")
    kind = _kind(config.take(str, "model_type", guessed))
    if kind in families:
        return str(kind)
    if "model_type" not in config:
        rule = "is missing, and so are architectures; every config.json of transformers has them"
        raise config.fail("model_type", rule)
    if why := KEYS["refused"].get(kind, ""):
        raise config.fail("model_type", f"is {short(kind)}, {why}")
    rule = f"is {short(kind)}; {meant(kind, families)}the families understood are rows of "
    rule += f"data/families.json: {len(families)}, such as llama, deepseek_v3, qwen3. {BY_HAND}"
    raise config.fail("model_type", rule)


def _language(config: Fields) -> Fields | None:
    """The config of the language model in that of a model of images and text, if it is one that is
    understood: under "text_config", or in older files among the others' keys."""
    outer = config.values
    kind = _kind(outer.get("model_type"))
    where = next((key for key in KEYS["texts"] if isinstance(outer.get(key), dict)), "")
    inner: Row = outer[where] if where else {}
    within = _kind(inner.get("model_type", f"{kind}_text"))
    flat = any(outer.get(key) for key in KEYS["aliases"]["layers"])
    if inner and not flat and (within in families or kind not in families):
        # which of both says whether the output projection is the embedding's table
        shared = ["quantization_config", *["tie_word_embeddings"] * (kind != "llama4")]
        inner = inner | {key: outer[key] for key in shared if outer.get(key) is not None}
        own = {key for key, value in inner.items() if value is not None}
        usual = families.get(within, {}).get("class", {})  # the file has what differs from it
        taken = {key: value for key, value in usual.items() if key not in own}
        inner = inner | taken | ({"_taken": ", ".join(taken)} if taken else {})
        return Fields(inner | {"model_type": within}, f"{config.where}, {where}")
    if not inner and "vision_config" in outer and kind not in families and within in families:
        others = {"architectures": None, "vision_config": None, "model_type": within}
        return Fields({k: v for k, v in (outer | others).items() if v is not None}, config.where)
    return None


def _kind(model_type: Any) -> Any:
    return KEYS["same"].get(model_type, model_type) if isinstance(model_type, str) else None


def _aliased(config: Fields, key: str, default: int | None = None) -> int:
    first, *others = names = KEYS["aliases"][key]
    least = int(default is None)
    found = {name: config.take(int, name, minimum=least) for name in names if name in config}
    if key == "learned_pos":
        found = dict(list(found.items())[:1])  # n_ctx repeats n_positions in old configs
    if len(set(found.values())) > 1:
        shown = {name: short(value) for name, value in found.items()}
        rule = f"says otherwise than another: {shown}; keep one of them"
        raise config.fail([*found][1], rule)
    if not found and default is None:
        either = f", or write it as {' or '.join(others)}" if others else ""
        raise config.fail(first, f"is missing; add it{either}")
    return next(iter(found.values()), default or 0)


def _values(config: Fields, family: Row, wrong: list[str]) -> tuple[Row, Row]:
    """(the fields of a Model, all names of expressions), and what is wrong of their keys."""

    def ask(read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except ConfigError as error:
            wrong.append(str(error).removeprefix(f"{config.where}: "))
            return 0

    values: Row = dict(family["fixed"])
    listed = config.values.get(family.get("layers_of"))  # as many as this list is long
    for key in (*BASE, *family.get("required", ())):
        many = len(listed) if key == "layers" and isinstance(listed, list) else None
        values[key] = ask(_aliased, config, key, many)
    for key in family.get("optional", ()):
        values[key] = ask(_aliased, config, key, 0)
    values["ffn"] = values.get("ffn") or 4 * values["hidden"]
    for key, switch in family.get("switches", {}).items():
        on = bool(ask(config.take, bool, key, switch["default"]))
        values |= dict.fromkeys(switch.get("sets", ()), on) | switch.get(str(on).lower(), {})
    rates = [ask(config.take, float, key, default) for key, default in family["dropout"].items()]
    values["dropout"] = any(rates)
    values["tied"] = ask(config.take, bool, "tie_word_embeddings", family.get("tied", False))
    if values["layers"] > MOST_LAYERS:  # expressions count through them
        wrong.append(f"layers must be at most {MOST_LAYERS:,}, got {short(values['layers'])}")
    names = dict(values)
    defaults = dict(family.get("keys", {}))
    for key, usual in family.get("untyped", {}).items():
        given = config.values.get(key) if key in config else usual
        defaults[key] = given if isinstance(given, int) else f"{usual}"
    for key, default in defaults.items():  # of the default's type; of none a whole number
        kind = int if default is None else type(default)
        names[key] = ask(config.take, kind, key, default, 0)
    for key in family.get("needs", ()):
        if key not in config.values:
            wrong.append(f"key {key!r} is missing; add it, null if there is none")
    return values, names


def _of_layers(config: Fields, family: Row, values: Row, names: Row) -> Row:
    """The fields that follow from other keys, and those of each layer; ConfigError for all rules
    that are broken."""

    def work_out(text: str) -> Any:
        try:
            return eval(_code(text), names)  # of a row of ours, of names that hold values alone
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            keys = [key for key in dict.fromkeys(re.findall(r"\w+", text)) if key in config.values]
            rule = f"do not go together with {values['layers']} layers: {error}"
            raise ConfigError(f"{config.where}: keys {', '.join(keys)} {rule}") from None

    names["__builtins__"] = BUILTINS
    for field, text in family.get("derived", {}).items():
        names[field] = work_out(text)
        values |= {field: names[field]} if field in FIELDS else {}
    broken = [(key, rule) for text, key, rule in family.get("rules", ()) if not work_out(text)]
    if broken:
        words = (f"key {key!r} {rule.format_map(names)}" for key, rule in broken)
        raise ConfigError(f"{config.where}: {'; '.join(words)}")
    for place, weights in family.get("more", {}).items():
        sized = [(name, *map(work_out, sizes)) for name, sizes in weights.items()]
        values[place] = tuple(
            Weight(name, units, size, False, "matrix" if inputs else "bias", inputs=inputs)
            for name, units, size, inputs in sized
            if units * size
        )
    each = []
    for layer in range(values["layers"] if "each" in family else 0):
        names["i"] = layer
        each.append({field: work_out(text) for field, text in family["each"].items()})
    # which layers are dense, how many have a window, and kinds where they differ in anything else
    layers = values["layers"]
    found: Row = {"dense_layers": tuple(i for i, row in enumerate(each) if row.pop("dense", False))}
    windows = [row.pop("window", 0) for row in each]
    if {*map(str, each)} <= {"{}"} and len({*windows} - {0}) < 2:
        near = sum(map(bool, windows))
        return found | ({"window": max(windows), "windowed_layers": near} if near else {})
    for row, window in zip(each, windows, strict=True):
        row |= {"window": window, "windowed_layers": layers if window else 0}
    kinds = list({str(row): row for row in each}.values())
    if len(kinds) == 1:
        return found | kinds[0]
    return found | {"kinds": tuple(kinds), "pattern": tuple(map(kinds.index, each))}


_code = cache(partial(compile, filename="data/families.json", mode="eval"))


def _rest(config: Fields, family: Row, wrong: list[str]) -> tuple[list[str], list[str]]:
    """(what of the file is not counted, keys that are ignored); into ``wrong`` those of the other
    keys that may change weights."""
    neutral, harmless = KEYS["neutral"] | family.get("neutral", {}), "|".join(KEYS["harmless"])
    absent = {*family.get("keys", ()), *family.get("switches", ())} - {*config.values}
    for field in (*BASE, *family.get("required", ()), *family.get("optional", ())):
        names = {*KEYS["aliases"][field]}
        absent |= set() if any(name in config for name in names) else names
    unseen = ((key, config.values.get(key)) for key in KEYS["unseen"])
    notes = [KEYS["unseen"][key].format(f"{value}"[:150]) for key, value in unseen if value]
    ignored = []
    for key in config.left():
        value = config.values[key]
        if key in KEYS["unseen"]:
            continue
        if key in neutral:
            every = [value, *value] if isinstance(value, list) else [value]  # or of each layer
            good = [any(each is held or each == held for held in neutral[key]) for each in every]
            if value is not None and not (good[0] or all(good[1:] or [False])):
                rule = f"is {short(value)}, which changes the parameter count here"
                wrong.append(f"key {key!r} {rule}")
        elif value and not re.fullmatch(harmless, key):
            near = difflib.get_close_matches(key, absent, 1, TYPING_ERROR)
            if near and re.fullmatch(STRUCTURE, key):
                what = "is not understood and may change the parameter count; did you mean"
                wrong.append(f"key {key!r} {what} {near[0]!r}? Remove what does not")
            else:
                ignored.append(key)
    return notes, ignored
