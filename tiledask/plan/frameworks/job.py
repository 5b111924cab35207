"""What is trained, and how, between our fields and a framework's settings, by one table both ways.

    "layout": [["when", [["their name", "our fact", default], ...]], ...]       data/frameworks
    "lost":   [["field", "when", "sentence"], ...]

Facts are the fields of a Model and a Layout, and a framework's own. A row is written if its fact is
neither 0, false nor empty; it is read as its default is: a whole number (null: it has to be there),
a switch or text. A row without a default is only written, and so is one whose fact is null: always,
as its default. "when" is "", or what has to hold: "fact, fact=value, fact!=value". A sentence of
no field says what the framework does otherwise.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.intervals import even
from tiledask.plan.whole import is_whole

__all__ = ["Imported", "Job", "Read", "fitting_recipe"]

Settings = dict[str, Any]
"""A framework's own names, or facts, and their values."""


@dataclass(frozen=True)
class Job:
    """What is written: a run, and what is found to say of it meanwhile."""

    model: Model
    layout: Layout
    recipe: Recipe
    sequence: int
    table: Settings
    lost: dict[str, str] = field(default_factory=dict)
    """What the framework has no counterpart of: name of the field -> a sentence."""
    said: list[str] = field(default_factory=list)

    @property
    def is_even(self) -> bool:
        """Whether the layers are cut as they are where nobody says how."""
        layers = self.model.layers
        return self.layout.chunk_layers(layers) == _even_cut(self.layout, layers)

    @property
    def of_recipe(self) -> Settings:
        """The settings of the recipe, or of the nearest that there is."""
        recipes = self.table["recipes"]
        found: Settings = recipes.get(self.recipe.name, recipes[self.table["nearest"]])
        return found

    def facts(self, own: Settings) -> Settings:
        """All facts, with a framework's ``own``; and what the table has to say of them."""
        facts = {
            **vars(self.model),
            **vars(self.layout),
            "sequence": self.sequence,
            "batch": self.layout.sequences,
            "recipe": self.recipe.name,
            "nearest": self.table["nearest"],
            "no_recipe": self.recipe.name not in self.table["recipes"],
        }
        for name, when, words in self.table["lost"]:
            if _holds(when, facts | own):
                sentence = words.format(**facts | own)
                if name:
                    self.lost[name] = sentence
                else:
                    self.said.append(sentence)
        return facts | own

    def settings(self, part: str, facts: Settings) -> Settings:
        """The settings that a part of the table writes of ``facts``."""
        found: Settings = {}
        for when, rows in self.table[part]:
            for name, fact, *default in rows if _holds(when, facts) else ():
                value = facts.get(fact) if fact else default[0]
                if value or not fact:
                    found[name] = value
        return found


def _holds(when: str, facts: Settings) -> bool:
    """Whether every condition holds: "tp!=1, latent" of more than one slice of latent attention."""
    for name, sign, value in re.findall(r"(\w+)(!?=)?([^, ]*)", when):
        same = str(facts.get(name)) == value if sign else bool(facts.get(name))
        if same == (sign == "!="):
            return False
    return True


@dataclass(frozen=True)
class Imported:
    """What a framework's configuration trains, in our words."""

    model: Model
    layout: Layout
    recipe: str
    sequence: int
    assumed: tuple[str, ...]
    """A sentence for each thing that the configuration does not say, and what is taken."""
    uncounted: tuple[str, ...] = ()
    """A sentence for each thing that it says, that memory or time depends on, and that is not
    counted here; they stand in ``assumed`` too, first."""
    framework: str | None = None
    """Whose measurements estimate it, where the configuration says more than its program."""


class Read:
    """A configuration that is read: flat settings, the values found in them, what was assumed."""

    def __init__(self, where: str, settings: Settings, devices: int | None, table: Settings):
        self.where, self.settings, self.devices, self.table = where, settings, devices, table
        self.used: set[str] = set()
        self.assumed: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        value = self._value(name)
        return default if value is None or value == "auto" else value

    def _value(self, name: str) -> Any:
        value = self.settings.get(name)
        return {"true": True, "false": False}.get(str(value).lower(), value)

    def whole(self, name: str, default: int | None = None, least: int = 0) -> int:
        """A whole number of ``least`` or more; without a default it has to be there."""
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where} has no {name}, which says the layout; add it")
        digits = isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value)
        number = int(value) if digits else value
        if not is_whole(number, least):
            unset = "; nothing in it sets that variable" if "$" in str(value) else ""
            raise ConfigError(
                f"{self.where}: {name} is a whole number from {least} on, got {short(value)}{unset}"
            )
        return int(number)

    def open_number(self, name: str) -> int | None:
        """A whole number, or None where it is left out or -1."""
        return None if self.get(name, -1) == -1 else self.whole(name)

    def assume(self, name: str, default: int, words: str) -> int:
        """The whole number; or the default, and that it was assumed."""
        if self.get(name) is None:
            self.assumed.append(words)
        return self.whole(name, default)

    def facts(self, part: str) -> Settings:
        """Our facts of what a part of the table reads; a number that is 1 by default is 1 or
        more."""
        found: Settings = {}
        for when, rows in self.table[part]:
            for name, fact, *default in rows if _holds(when, found) else ():
                if not fact or not default:
                    continue
                usual = default[0]
                if isinstance(usual, bool):
                    found[fact] = bool(self.get(name))
                elif isinstance(usual, str):
                    found[fact] = str(self.get(name, usual))
                else:
                    found[fact] = self.whole(name, usual, least=int(usual == 1))
        return found

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

    def microbatches(self, batch: int, dp: int, microbatch: int) -> int:
        """Micro-batches of a copy in a step of ``batch`` sequences."""
        if not dp * microbatch or batch % (dp * microbatch):
            raise ConfigError(
                f"{self.where} has {batch} sequences a step, no multiple of {dp} copies x "
                f"{microbatch} in a micro-batch; change one of them"
            )
        return batch // (dp * microbatch)

    def cut(self, layout: Settings, sizes: Sequence[int], layers: int) -> Layout:
        """The Layout with chunks of ``sizes`` layers; without a partition where they are even."""
        chunks, pp = len(sizes), layout["pp"]
        if not chunks or chunks % pp or sum(sizes) != layers or min(sizes) < 0:
            raise ConfigError(
                f"{self.where} has {chunks} stages with {sum(sizes)} layers, and the run {pp} "
                f"pipeline ranks and {layers} layers; every rank has as many stages"
            )
        found = {**layout, "interleave": chunks // pp}
        plain = Layout(**found)
        if tuple(sizes) == _even_cut(plain, layers):
            return plain
        return Layout(**found, partition=(0, *accumulate(sizes)))

    def imported(
        self,
        model: Model,
        layout: Layout,
        recipe: str,
        sequence: int,
        optimizer: str,
        framework: str | None = None,
    ) -> Imported:
        """What was found, once all is read that can be.

        The table says which names memory depends on and nobody reads, "decides"; of the others
        those that neither memory nor layers depend on, "harmless", are not listed.
        ``optimizer``: the name under which it stands, beside the ``recipe`` that was found.
        """
        uncounted = []
        kind = str(self.get(optimizer, "Adam"))
        if "adam" in recipe and "adam" not in kind.lower():
            uncounted.append(f"computed with Adam's states ({optimizer} is {short(kind)})")
        off = False, None, "none", "", "auto"
        left = sorted(self.settings.keys() - self.used)
        left = [name for name in left if self._value(name) not in off]
        for what, patterns in self.table["decides"].items():
            if names := [name for name in left if re.fullmatch("|".join(patterns), name)]:
                uncounted.append(f"computed without {what} ({', '.join(names)})")
                left = [name for name in left if name not in names]
        harmless = [*self.table["harmless"]]
        harmless += [f"{word}(_.*)?" for word in self.table.get("harmless_words", ())]
        if left := [name for name in left if not re.fullmatch("|".join(harmless), name)]:
            self.assumed.append(f"not looked at: {', '.join(left)}")
        assumed = *uncounted, *self.assumed
        return Imported(model, layout, recipe, sequence, assumed, tuple(uncounted), framework)


def _even_cut(layout: Layout, layers: int) -> tuple[int, ...] | None:
    """Layers of each chunk where nobody says how; None if there are too few for one each."""
    return even(layers, layout.chunks) if layout.chunks <= layers else None


def fitting_recipe(table: Iterable[tuple[str, Settings]], settings: Mapping[str, Any]) -> str:
    """The name of that recipe of which most is said in ``settings``, and nothing otherwise."""
    held = [row for row in table if all(str(settings.get(k)) == str(v) for k, v in row[1].items())]
    return max(held, key=lambda row: len(row[1]))[0]
