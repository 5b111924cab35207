"""Between our fields and a framework's settings, by one table that is read both ways.

Facts are the fields of a Model and a Layout, and a framework's own. A part of a table, of those in
data/frameworks, has settings by the value of a fact, "choices", or

    "rows":          [["when", [["their name", "our fact", default], ...]], ...]    both ways
    "write", "read": {"fact": [[value, "when"], ...], ...}          a fact, the first that holds
    "refused", "assumed": [["when", "sentence"], ...]               of what is read

A row is written if its fact is neither 0, false nor empty; it is read as its default is: a whole
number (null: it has to be there; -1: it may be left open), a switch or text. A row without a
default is only written, and so is one whose fact is null: always, as its default. "when" is all
that has to hold: "fact, fact=value|value, fact!=value". "lost" has what is not written: the field,
or null for what the framework does otherwise, when, and a sentence.

Of what is read, "renamed" has older names, "implied" what a name brings along. Of the names that no
row has, memory depends on those that "decides" lists by what they are, and not on "harmless" ones.
The facts "bytes of" and "place of" a state alter the recipe.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, State, load_recipe
from tiledask.plan.intervals import even
from tiledask.plan.whole import is_whole

__all__ = ["Imported", "Read", "Settings", "flat", "is_even", "written"]

_WHOLE = r"-1|[0-9]{1,18}|[0-9]{1,3}(_[0-9]{3}){1,5}"  # as YAML and shells write them
Settings = dict[str, Any]
"""A framework's own names, or facts, and their values."""


def _holds(when: str, facts: Settings) -> bool:
    for name, sign, values in re.findall(r"(\w+)(?:(!?=)([^, ]*))?", when):
        same = str(facts.get(name)) in values.split("|") if sign else bool(facts.get(name))
        if same == (sign == "!="):
            return False
    return True


def _derive(rules: dict[str, list[tuple[Any, str]]], facts: Settings) -> None:
    for fact, rows in rules.items():
        held = (value for value, when in rows if _holds(when, facts))
        facts[fact] = next(held, facts.get(fact))


def written(table: Settings, facts: Settings) -> tuple[list[Settings], dict[str, str], list[str]]:
    """The settings of each part, what is lost by field, and what the framework does otherwise."""
    parts: list[Settings] = []
    for name, part in table["parts"].items():
        if choices := part.get("choices"):
            facts[f"no_{name}"] = str(facts[name]) not in choices
            parts.append(choices.get(str(facts[name]), choices[part["nearest"]]))
            continue
        _derive(part.get("write", {}), facts)
        found: Settings = {}
        for row in (row for when, rows in part["rows"] if _holds(when, facts) for row in rows):
            value = facts.get(row[1]) if row[1] else row[2]
            found |= {row[0]: value} if value or not row[1] else {}
        parts.append(found)
    rows = [(name, words) for name, when, words in table["lost"] if _holds(when, facts)]
    notes = [(name, words.format(**facts)) for name, words in rows]
    lost = {name: words for name, words in notes if name}
    return parts, lost, [words for name, words in notes if not name]


def is_even(layout: Layout, sizes: Sequence[int]) -> bool:
    """Whether chunks of these sizes are those of a layout where nobody says how layers are cut."""
    return layout.chunks <= sum(sizes) and tuple(sizes) == even(sum(sizes), layout.chunks)


@dataclass(frozen=True)
class Imported:
    """What a framework's configuration trains, in our words."""

    model: Model
    layout: Layout
    recipe: str | Recipe  # its name; the Recipe itself where none is shipped that is like it
    sequence: int
    assumed: tuple[str, ...]  # a sentence for each thing that is not said or not counted
    framework: str | None = None  # whose measurements estimate it, where that is said


class Read:
    """A configuration that is read: flat settings, which of them are used, what was assumed."""

    def __init__(self, where: str, settings: Settings, devices: int | None, table: Settings):
        self.where, self.devices, self.table, self.settings = where, devices, table, settings
        self.used: set[str] = set()
        self.assumed: list[str] = []
        for names, implied, words in table.get("implied", ()):
            if any(re.fullmatch(names, name) for name in self.settings):
                self.settings = implied | self.settings
                self.assumed += [words] * bool(words)
        for older, name in table.get("renamed", ()):
            self.settings = {re.sub(f"^{older}$", name, k): v for k, v in self.settings.items()}

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        value = self.settings.get(name)
        value = {"true": True, "false": False, "auto": None}.get(str(value).lower(), value)
        return default if value is None else value

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number; without a default it has to be there, and -1 is one that is left open."""
        value, least = self.get(name, default), int(default not in (0, -1, None))
        if value is None:
            raise ConfigError(f"{self.where} has no {name}, which says the layout; add it")
        digits = isinstance(value, str) and re.fullmatch(_WHOLE, value)
        number = int(value) if digits else value
        if not is_whole(number, least) and not number == -1 == default:
            unset = "; nothing in it sets that variable" if "$" in str(value) else ""
            raise ConfigError(
                f"{self.where}: {name} is a whole number from {least} on, got {short(value)}{unset}"
            )
        return int(number)

    def facts(self, part: str, **known: Any) -> Settings:
        """Our facts of what a part of the table reads, beside those that are ``known``."""
        facts, own = known, self.table["parts"][part]
        for when, rows in own["rows"]:
            for name, fact, *default in rows if _holds(when, facts) else ():
                if not fact or not default:
                    continue
                if isinstance(usual := default[0], bool):
                    facts[fact] = bool(self.get(name))
                elif isinstance(usual, str):
                    facts[fact] = str(self.get(name, usual))
                else:
                    facts[fact] = self.whole(name, usual)
        _derive(own.get("read", {}), facts)
        for when, words in own.get("refused", ()):
            if _holds(when, facts):
                raise ConfigError(words.format(**facts))
        said = own.get("assumed", ())
        self.assumed += [words.format(**facts) for when, words in said if _holds(when, facts)]
        return facts

    def choice(self, part: str) -> str:
        """The one of which most is said, and nothing otherwise."""
        rows = [*self.table["parts"][part]["choices"].items(), *self.table.get("read_as", ())]
        found = {key: str(self.get(key)) for _, settings in rows for key in settings}
        held = [
            (name, len(settings))
            for name, settings in rows
            if {key: str(value) for key, value in settings.items()}.items() <= found.items()
        ]
        return str(max(held, key=lambda row: row[1])[0])

    def copies(self, each: int, way_out: str) -> int:
        """Data-parallel copies of ``each`` devices."""
        if self.devices is None:
            raise ConfigError(f"{self.where} does not say on how many devices it runs; {way_out}")
        if self.devices % each:
            raise ConfigError(
                f"{self.where} has copies of {each} devices, which do not divide {self.devices}; "
                f"give it on a multiple of {each}"
            )
        return self.devices // each

    def imported(
        self, model: Model, facts: Settings, sizes: Sequence[int], optimizer: str
    ) -> Imported:
        """What was found, in chunks of ``sizes`` layers, cut by hand where these are not even.
        ``optimizer``: the name under which it stands."""
        dp, microbatch, batch = facts["dp"], facts["microbatch"], facts["batch"]
        if not dp * microbatch or batch % (dp * microbatch):
            raise ConfigError(
                f"{self.where} has {batch} sequences a step, no multiple of {dp} copies x "
                f"{microbatch} in a micro-batch; change one of them"
            )
        chunks, pp = len(sizes), facts["pp"]
        if not chunks or chunks % pp or sum(sizes) != model.layers or min(sizes) < 0:
            raise ConfigError(
                f"{self.where} has {chunks} stages with {sum(sizes)} layers, and the run {pp} "
                f"pipeline ranks and {model.layers} layers; every rank has as many stages"
            )
        own = {each.name: facts[each.name] for each in fields(Layout) if each.name in facts}
        if own.get("expert_tp") == own["tp"]:
            own["expert_tp"] = 0  # as without it
        own |= {"microbatches": batch // (dp * microbatch), "interleave": chunks // pp}
        layout = Layout(**own)
        if not is_even(layout, sizes):
            layout = Layout(**own, partition=(0, *accumulate(sizes)))
        uncounted, recipe = [], load_recipe(facts["recipe"])
        kind = str(self.get(optimizer, "Adam"))
        if "adam" in recipe.name and "adam" not in kind.lower():
            uncounted.append(f"computed with Adam's states ({optimizer} is {short(kind)})")
        uncounted += self.unread()
        sequence = model.usual_sequence if facts["sequence"] == -1 else facts["sequence"]
        said, by = (*uncounted, *self.assumed), facts.get("framework")
        states, changes = list[State](), dict[str, None]()
        for state in recipe.states:  # with the "bytes of" one and the "place of" one that are said
            part = "optimizer" if state.zero == 1 else state.tensor
            width = facts.get(f"bytes of {state.tensor}") or state.bytes
            place = facts.get(f"place of {part}") or state.place
            states.append(replace(state, bytes=width, place=place))
            changes |= {f"{state.tensor} of {width} B": None} if width != state.bytes else {}
            changes |= {f"{part} on {place}": None} if place != state.place else {}
        name = f"{recipe.name} with {', '.join(changes)}"
        other = replace(recipe, name=name, states=tuple(states)) if changes else facts["recipe"]
        return Imported(model, layout, other, sequence, said, by)

    def unread(self) -> list[str]:
        """A sentence for each thing on which memory depends, and which nobody reads: the names in
        "decides". Those that are not "harmless" either are assumed to be."""
        uncounted = []
        off = (False, None, "none", "")
        left = [n for n in sorted(self.settings.keys() - self.used) if self.get(n) not in off]
        left = [n for n in left if not n.endswith("_size") or self.get(n) not in (1, "1")]
        for what, patterns in self.table["decides"].items():
            if names := [name for name in left if re.fullmatch("|".join(patterns), name)]:
                uncounted.append(f"computed without {what} ({', '.join(names)})")
                left = [name for name in left if name not in names]
        harmless = [*self.table["harmless"]]
        harmless += [f"{word}(_.*)?" for word in self.table.get("harmless_words", ())]
        if left := [name for name in left if not re.fullmatch("|".join(harmless), name)]:
            self.assumed.append(f"not looked at: {', '.join(left)}")
        return uncounted


def flat(table: Settings, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a table of tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
