"""Descriptions in JSON, read strictly: what cannot be read without guessing is an error."""

import difflib
import json
import math
import os
from pathlib import Path

from tiledask.errors import ConfigError

__all__ = ["Fields", "names", "read", "read_named"]

_REQUIRED = object()


def _root() -> Path:
    """The data folder: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data"
    return installed if installed.is_dir() else package.parent / "data"


def names(kind: str) -> tuple[str, ...]:
    """Names of the shipped descriptions of one kind: "models", "hardware" or "recipes".

    >>> "fp32-adam" in names("recipes")
    True
    """
    return tuple(sorted(path.stem for path in (_root() / kind).glob("*.json")))


def read_named(kind: str, name: str) -> "Fields":
    """The shipped description ``name`` of one kind; unknown names are a ConfigError."""
    if name.lower() not in names(kind):
        near = difflib.get_close_matches(name.lower(), names(kind), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"no {kind} description is called {name!r}; {hint}tiledask has {', '.join(names(kind))}"
        )
    return read(_root() / kind / f"{name.lower()}.json")


def read(path: str | os.PathLike) -> "Fields":
    """The JSON object in the file ``path``.

    A file that is missing, is not JSON, is not an object, repeats a key or holds NaN or
    Infinity is a ConfigError that names the file.
    """
    where = str(path)

    def unique(pairs: list) -> dict:
        seen = [key for key, _ in pairs]
        twice = sorted({key for key in seen if seen.count(key) > 1})
        if twice:
            raise ConfigError(f"{where}: key {twice[0]!r} stands there twice; keep one of them")
        return dict(pairs)

    def no_constant(text: str) -> float:
        raise ConfigError(f"{where}: {text} is not JSON; write a finite number")

    try:
        text = Path(path).read_text(encoding="utf-8")
        values = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    except ConfigError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise ConfigError(f"{where}: {error}") from None
    return Fields(values, where)


class Fields:
    """A JSON object whose values are taken out by type; every error names file and key.

    >>> f = Fields({"layers": 24, "tied": True}, "model.json")
    >>> f.integer("layers"), f.boolean("tied"), f.left()
    (24, True, ())
    """

    def __init__(self, values: object, where: str):
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {_kind(values)}")
        self.values = values
        self.where = where
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def left(self) -> tuple[str, ...]:
        """Keys that nothing has asked for yet."""
        return tuple(key for key in self.values if key not in self._taken)

    def fail(self, key: str, rule: str) -> ConfigError:
        return ConfigError(f"{self.where}: key {key!r} {rule}")

    def _take(self, key: str, default: object) -> object:
        self._taken.add(key)
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.fail(key, "is missing; add it")
        return default

    def integer(self, key: str, default: object = _REQUIRED, minimum: int = 1) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"must be an integer of {minimum} or more, got {_kind(value)}")
        if value < minimum:
            raise self.fail(key, f"must be {minimum} or more, got {value}")
        return value

    def number(self, key: str, default: object = _REQUIRED) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, f"must be a number of 0 or more, got {_kind(value)}")
        if not (math.isfinite(value) and value >= 0):
            raise self.fail(key, f"must be a finite number of 0 or more, got {value}")
        return float(value)

    def boolean(self, key: str, default: object = _REQUIRED) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, got {_kind(value)}")
        return value

    def text(self, key: str, default: object = _REQUIRED) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be text, got {_kind(value)}")
        return value

    def texts(self, key: str, default: object = _REQUIRED) -> tuple[str, ...]:
        value = self._take(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self.fail(key, f"must be a list of texts, got {_kind(value)}")
        return tuple(value)

    def object(self, key: str) -> "Fields":
        return Fields(self._take(key, _REQUIRED), f"{self.where}: key {key!r}")

    def objects(self, key: str) -> tuple["Fields", ...]:
        value = self._take(key, _REQUIRED)
        if not isinstance(value, list) or not value:
            raise self.fail(key, f"must be a list of objects, got {_kind(value)}")
        return tuple(Fields(v, f"{self.where}: key {key!r}[{i}]") for i, v in enumerate(value))

    def numbers(self, key: str) -> tuple[tuple[str, float], ...]:
        """The object under ``key`` as (name, number) pairs."""
        inner = self.object(key)
        return tuple((name, inner.number(name)) for name in inner.values)

    def done(self) -> None:
        """Refuse keys that nothing asked for: a misspelt key must not be ignored."""
        if self.left():
            raise self.fail(self.left()[0], f"is not known here; known: {sorted(self._taken)}")


def _kind(value: object) -> str:
    words = {bool: "a boolean", int: "an integer", float: "a number", str: "text"}
    words |= {list: "a list", dict: "an object", type(None): "null"}
    shown = repr(value)
    return f"{words.get(type(value), type(value).__name__)} ({shown[:40]})"
