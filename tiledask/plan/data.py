"""Descriptions in JSON, read strictly: what cannot be read without guessing is an error."""

import difflib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from tiledask.errors import ConfigError, short
from tiledask.plan.whole import is_whole, whole_rule

__all__ = ["Fields", "data_file", "meant", "names", "read", "read_named", "shipped", "shipped_json"]

LARGEST = 4 * 2**20
"""Bytes of the largest file that is read: a description takes some thousand."""
T = TypeVar("T")
_READ: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("text", lambda value: isinstance(value, str)),
    list: ("a list", lambda value: isinstance(value, list)),
    dict: ("a JSON object", lambda value: isinstance(value, dict)),
    float: (
        "a finite number of 0 or more",
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value <= sys.float_info.max
        ),
    ),
    tuple[str, ...]: (
        "a list of texts",
        lambda value: isinstance(value, list | tuple) and all(isinstance(v, str) for v in value),
    ),
}
"""Type of a value -> (the rule, whether JSON's keeps it); others are whole numbers."""


@cache
def shipped(folder: str) -> Path:
    """The folder "data" or "nbs": inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / f"_{folder}"
    return installed if installed.is_dir() else package.parent / folder


def data_file(*parts: str) -> Path:
    """A file of the data folder, such as data_file("published", "runs.json")."""
    return shipped("data").joinpath(*parts)


def shipped_json(*parts: str) -> Any:
    """What is in a JSON file of the data folder, as it is: of our own making, so unchecked."""
    return json.loads(data_file(*parts).read_text(encoding="utf-8"))


@cache
def names(kind: str) -> tuple[str, ...]:
    """Names of the shipped descriptions of one kind, such as "models"."""
    return tuple(sorted(path.stem for path in data_file(kind).glob("*.json")))


_OWN = {
    "models": "one of your own is td.Model(...), the path of its Hugging Face config.json, or a "
    "number of parameters such as '70B'; ",
    "hardware": "a cluster of your own is a JSON file with its device in it; ",
    "recipes": "the usual one is 'mixed-adam-16', one of your own a JSON file; ",
}


def read_named(kind: str, name: str) -> "Fields":
    """The shipped description ``name`` of one kind."""
    known = names(kind)
    if name.lower() not in known:
        raise ConfigError(
            f"no {kind.removesuffix('s')} description is called {short(name)}; "
            f"{meant(name.rsplit('/', 1)[-1], known)}{_OWN.get(kind, '')}tiledask has "
            f"{', '.join(known)}"
        )
    return read(data_file(kind, f"{name.lower()}.json"))


def meant(name: str, known: Iterable[str]) -> str:
    """The question whether the closest of ``known`` was meant by ``name``; empty if none is close.

    >>> meant("zbh1", ("zb-h1", "zb-h2", "zb-v"))
    "did you mean 'zb-h1'? "
    """
    close = difflib.get_close_matches(name[:200].lower(), known, 1)
    return f"did you mean {close[0]!r}? " if close else ""


def read(path: str | os.PathLike[str]) -> "Fields":
    """The JSON object in a regular file of at most 4 MiB, which repeats no key."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        if len({*keys}) < len(keys):
            twice = short(max(keys, key=keys.count))
            raise ValueError(f"key {twice} stands there twice; keep one of them")
        return dict(pairs)

    try:
        found = Path(path).stat()  # neither a huge file nor one without an end is read
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            what = "a folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size:,} bytes"
            raise ConfigError(
                f"{path}: is {what}; a description is a regular .json file of at most {LARGEST:,}"
            )
        values = json.loads(Path(path).read_text("utf-8-sig"), object_pairs_hook=unique)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (RecursionError, ValueError) as error:  # also of a path with a null character
        raise ConfigError(f"{path}: cannot be read as JSON in UTF-8: {error}") from None
    return Fields(values, str(path))


class Fields:
    """A JSON object whose values are taken out by type; every error names file and key."""

    def __init__(self, values: object, where: str):
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {_kind(values)}")
        self.values, self.where, self._taken = values, where, set[str]()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def left(self) -> tuple[str, ...]:
        """Keys that nothing has asked for yet."""
        return tuple(key for key in self.values if key not in self._taken)

    def fail(self, key: str, rule: str) -> ConfigError:
        return ConfigError(f"{self.where}: key {key!r} {rule}")

    def take(self, kind: type[T], key: str, default: object = None, minimum: int = 1) -> T:
        """The value of ``key``, a ``kind`` of those in _READ or a whole number from ``minimum`` on;
        the default where there is none, which may be any value."""
        self._taken.add(key)
        rule, good = _READ.get(kind, (whole_rule(minimum), partial(is_whole, least=minimum)))
        value = self.values[key] if key in self else default
        if value is None:
            raise self.fail(key, "is missing; add it")
        if not good(value):
            raise self.fail(key, f"must be {rule}, got {_kind(value)}")
        return kind(value)  # type: ignore[call-arg]

    def object(self, key: str) -> "Fields":
        return Fields(self.take(dict, key), f"{self.where}: key {key!r}")

    def need(self, missing: Iterable[str]) -> None:
        """Refuse an object in which keys are missing, and name them all."""
        if keys := [*map(repr, missing)]:
            words = ("keys", "are", "them") if len(keys) > 1 else ("key", "is", "it")
            listed = f"{words[0]} {', '.join(keys)} {words[1]} missing"
            raise ConfigError(f"{self.where}: {listed}; add {words[2]}")

    def record(self, kind: type[T]) -> T:
        """The dataclass ``kind``, each field read by its type, dataclasses within it too. Whole
        numbers are 1 or more where they must be there or are by default; a field's metadata may
        have the "words" that it can be. What else is there is an error."""
        own: Any = kind
        objects = [("", own, self.values)]
        for each in fields(own):
            if is_dataclass(each.type) and isinstance(found := self.values.get(each.name), dict):
                objects.append((f"{each.name}.", each.type, found))
        self.need(
            f"{within}{each.name}"
            for within, of, found in objects
            for each in fields(of)
            if each.default is MISSING and found.get(each.name) is None
        )
        values: dict[str, Any] = {}
        for field in fields(kind):  # type: ignore[arg-type]
            key, default = field.name, field.default
            inner: Any = next(filter(is_dataclass, (field.type, *get_args(field.type))), None)
            if default is not MISSING and key not in self:
                self._taken.add(key)
                continue
            if inner and get_origin(field.type) is tuple:
                where = f"{self.where}: key {key!r}"
                parts = [Fields(v, f"{where}[{i}]") for i, v in enumerate(self.take(list, key))]
                value: Any = tuple(part.record(inner) for part in parts)
                if not value:
                    raise self.fail(key, "must be a list of objects, got none; add one")
            elif inner:
                value = self.object(key).record(inner)
            elif field.type == tuple[tuple[str, float], ...]:
                numbers = self.object(key)
                value = tuple((name, numbers.take(float, name)) for name in numbers.values)
            else:
                least = int(default in (MISSING, None) or (field.type is int and default > 0))
                typed: Any = field.type if field.type in _READ else int
                value = self.take(typed, key, minimum=least)
            if value not in (words := field.metadata.get("words", (value,))):
                raise self.fail(key, f"must be one of {words}, got {short(value)}")
            values[key] = value
        self.done()
        return kind(**values)

    def done(self) -> None:
        """Refuse keys that nothing asked for: a misspelt key must not be ignored."""
        if left := self.left():
            raise self.fail(left[0], f"is not known here; known: {sorted(self._taken)}")


def _kind(value: object) -> str:
    words = {bool: "a boolean", int: "an integer", float: "a number", str: "text"}
    words |= {list: "a list", dict: "an object", type(None): "null"}
    return f"{words.get(type(value), type(value).__name__)} ({short(value)})"
