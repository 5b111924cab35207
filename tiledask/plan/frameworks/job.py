"""What is trained, and how, between our words and a framework's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.intervals import even
from tiledask.plan.whole import is_whole

__all__ = ["Exported", "Imported", "Job", "Read", "fitting_recipe"]

Settings = dict[str, Any]
"""A framework's own names, and their values."""


@dataclass(frozen=True)
class Job:
    """What is written: a run, and what is found to say of it meanwhile."""

    model: Model
    layout: Layout
    recipe: Recipe
    sequence: int
    lost: dict[str, str] = field(default_factory=dict)
    """What the framework has no counterpart of: name of the field -> a sentence."""
    said: list[str] = field(default_factory=list)

    @property
    def batch(self) -> int:
        return self.layout.sequences

    @property
    def is_even(self) -> bool:
        """Whether the layers are cut as they are where nobody says how."""
        given = self.layout.chunk_layers(self.model.layers)
        return given == even_cut(self.layout, self.model.layers)

    def of_recipe(self, table: Mapping[str, Settings], nearest: str) -> Settings:
        """The settings of the recipe; those of the ``nearest`` that there is, and that is said."""
        if self.recipe.name not in table:
            self.lost["recipe"] = f"recipe {self.recipe.name} has no counterpart: as {nearest}"
        return table.get(self.recipe.name, table[nearest])


@dataclass(frozen=True)
class Exported:
    """A framework's configuration of a layout; ``str()`` of it is its text."""

    framework: str
    text: str
    lost: Mapping[str, str]
    """What the text does not say, for want of a counterpart: name of the field -> a sentence."""
    said: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing that differs, or that the framework does otherwise."""
        return (*self.lost.values(), *self.said)

    def __str__(self) -> str:
        return self.text


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
    """A configuration that is read: flat settings, the values found in them, what was assumed.

    ``table``: the framework's, of data/frameworks.
    """

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

    def degrees(self) -> Settings:
        """The fields of a layout that stand there as plain numbers; 1 where they do not."""
        return {field: self.whole(name, 1, least=1) for field, name in self.table["layout"].items()}

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
        if tuple(sizes) == even_cut(plain, layers):
            return plain
        return Layout(**found, partition=(0, *accumulate(sizes)))

    def rest(self, recipe: str, optimizer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(all that is assumed, what of it is not counted), once all is read that can be.

        The table says which names memory depends on and nobody reads, "decides"; of the others
        those that neither memory nor layers depend on, "harmless", are not listed.
        ``optimizer``: the name under which it stands, beside the ``recipe`` that was found.
        """
        uncounted = []
        kind = str(self.get(optimizer, "Adam"))
        if "adam" in recipe and "adam" not in kind.lower():
            uncounted.append(f"computed with Adam's states ({optimizer} is {short(kind)})")
        for what, patterns in self.table["decides"].items():
            names = [key for key in self._left() if re.fullmatch("|".join(patterns), key)]
            if names:
                uncounted.append(f"computed without {what} ({', '.join(names)})")
                self.used.update(names)
        harmless = [*self.table["harmless"]]
        harmless += [f"{word}(_.*)?" for word in self.table.get("harmless_words", ())]
        left = [key for key in self._left() if not re.fullmatch("|".join(harmless), key)]
        if left:
            self.assumed.append(f"not looked at: {', '.join(left)}")
        return (*uncounted, *self.assumed), tuple(uncounted)

    def _left(self) -> list[str]:
        """Names that nobody asked for, and that are not switched off."""
        rest = sorted(self.settings.keys() - self.used)
        return [key for key in rest if self._value(key) not in (False, None, "none", "", "auto")]


def even_cut(layout: Layout, layers: int) -> tuple[int, ...] | None:
    """Layers of each chunk where nobody says how; None if there are too few for one each."""
    return even(layers, layout.chunks) if layout.chunks <= layers else None


def fitting_recipe(table: Sequence[tuple[str, Settings]], settings: Mapping[str, Any]) -> str:
    """The name of that recipe of which most is said in ``settings``, and nothing otherwise."""
    held = [
        (len(each), -at, name)
        for at, (name, each) in enumerate(table)
        if all(str(settings.get(key)) == str(value) for key, value in each.items())
    ]
    return max(held)[2]
