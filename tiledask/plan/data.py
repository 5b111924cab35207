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
_REQUIRED = object()
T = TypeVar("T")
_READ: dict[Any, str] = {bool: "boolean", float: "number", str: "text", tuple[str, ...]: "texts"}
"""Type of a dataclass's field -> what reads it from JSON; others are whole numbers."""


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


def _getter(kind: type[T], rule: str, good: Callable[[Any], bool]) -> Callable[..., T]:
    """The method of Fields that takes out a ``kind``, by its key, or the default."""

    def get(self: "Fields", key: str, default: object = _REQUIRED) -> T:
        return kind(self._read(key, default, good, rule))  # type: ignore[call-arg]

    return get


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

    def _read(self, key: str, default: object, good: Callable[[Any], bool], rule: str) -> Any:
        self._taken.add(key)
        value = self.values[key] if key in self else default
        if value is _REQUIRED:
            raise self.fail(key, "is missing; add it")
        if not good(value):
            raise self.fail(key, f"must be {rule}, got {_kind(value)}")
        return value

    def integer(self, key: str, default: object = _REQUIRED, minimum: int = 1) -> int:
        rule = partial(is_whole, least=minimum), whole_rule(minimum)
        return int(self._read(key, default, *rule))

    integers = _getter(
        tuple[int, ...],
        "a list of whole numbers",
        lambda value: isinstance(value, list | tuple) and all(map(is_whole, value)),
    )
    texts = _getter(
        tuple[str, ...],
        "a list of texts",
        lambda value: isinstance(value, list | tuple) and all(isinstance(v, str) for v in value),
    )
    number = _getter(
        float,
        "a finite number of 0 or more",
        lambda value: (
            not isinstance(value, bool)
            and isinstance(value, int | float)
            and 0 <= value <= sys.float_info.max
        ),
    )
    boolean = _getter(bool, "true or false", lambda value: isinstance(value, bool))
    text = _getter(str, "text", lambda value: isinstance(value, str))

    def like(self, key: str, default: Any) -> Any:
        """A value of the type that ``default`` is of; of None a whole number that must be there."""
        plain = {bool: self.boolean, str: self.text, float: self.number}
        if default is None or type(default) is int:
            return self.integer(key, _REQUIRED if default is None else default, minimum=0)
        if type(default) in plain:
            return plain[type(default)](key, default)
        rule = f"a {'JSON object' if isinstance(default, dict) else 'list'}"
        return self._read(key, default, lambda v: isinstance(v, type(default)), rule)

    def object(self, key: str) -> "Fields":
        value = self._read(key, _REQUIRED, lambda v: isinstance(v, dict), "a JSON object")
        return Fields(value, f"{self.where}: key {key!r}")

    def record(self, kind: type[T], *, whole: bool = True) -> T:
        """The dataclass ``kind``, each field read by its type, dataclasses within it too. Whole
        numbers are 1 or more where they must be there or are by default; a field's metadata may
        have the "words" that it can be. ``whole``: nothing else is there."""
        values: dict[str, Any] = {}
        for field in fields(kind):  # type: ignore[arg-type]
            key, default, read = field.name, field.default, _READ.get(field.type)
            inner: Any = next(filter(is_dataclass, (field.type, *get_args(field.type))), None)
            if default is not MISSING and key not in self:
                self._taken.add(key)
                continue
            if inner and get_origin(field.type) is tuple:
                some = lambda v: isinstance(v, list) and bool(v)  # noqa: E731
                each = self._read(key, _REQUIRED, some, "a list of objects")
                where = f"{self.where}: key {key!r}"
                parts = (Fields(v, f"{where}[{i}]") for i, v in enumerate(each))
                value: Any = tuple(part.record(inner) for part in parts)
            elif inner:
                value = self.object(key).record(inner)
            elif field.type == tuple[tuple[str, float], ...]:
                numbers = self.object(key)
                value = tuple((name, numbers.number(name)) for name in numbers.values)
            elif read:
                value = getattr(self, read)(key)
            else:
                value = self.integer(key, minimum=int(default in (MISSING, None) or default > 0))
            if value not in (words := field.metadata.get("words", (value,))):
                raise self.fail(key, f"must be one of {words}, got {short(value)}")
            values[key] = value
        if whole:
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
