"""Golden values: what a set is, how it lies in its file, and how two of its rows are compared.

    ledgers.json.gz  {"machine": "9f0c...", "rows": {
    given, values    "llama-2-7b 3": [{"model": ..., "layout": ...}, {"peak": 123, ...}],

`zcat` shows one, and `git diff` too after `git config diff.gz.textconv zcat`.

A row has what it was computed from, and what came out. Whole numbers and texts are compared
exactly, other numbers to 1e-12, and what stands under MACHINE, bits that libraries of another
machine may round otherwise, only where the machine makes the same bits of a probe as the one that
wrote the file. A new row is written by its key and what is given, with null for its values, and
renewed.
"""

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import tiledask as td

FOLDER = Path(__file__).parent
NEAR = 1e-12
"""The largest relative difference of two numbers that are not whole."""
NOTHING = 1e-15
"""Numbers that are not whole and differ by less are rounding around zero."""
MACHINE = "machine"
"""The key of values that are compared only on a machine like the one that wrote them."""


@dataclass(frozen=True)
class GoldenSet:
    """Rows that one function computes, each from plain values."""

    name: str
    values: Callable[..., Any]
    """``values(given)``, or ``values(given, cluster)`` where it runs on workers."""
    mark: str = ""
    """"slow", or "cluster" where four CPU workers are needed."""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.json.gz"

    def stored(self) -> dict[str, list[Any]]:
        """Key -> [given, values]."""
        return read(self.path)["rows"]

    @property
    def alike(self) -> bool:
        """Whether a machine like this one has written the file."""
        return read(self.path)["machine"] == machine()

    def compute(self, given: Any, cluster: Any = None) -> Any:
        """The values of one row, or the kind of error that they are refused with."""
        try:
            found = self.values(given, cluster) if self.mark == "cluster" else self.values(given)
        except ValueError as refused:
            if type(refused).__module__ != td.errors.__name__:
                raise  # a mistake of a set
            found = {"refused": type(refused).__name__}
        return plain(found)

    def write(self, rows: Mapping[str, Any]) -> None:
        """A line a row, so that two versions can be compared by eye."""
        lines = (f"{compact(key)}: {compact(row)}" for key, row in rows.items())
        text = f'{{"machine": "{machine()}", "rows": {{\n' + ",\n".join(lines) + "\n}}\n"
        self.path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """``value`` as JSON has it: tuples as lists, arrays' numbers as numbers, keys as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):  # to 15 digits, which is far within NEAR
        return float(f"{value:.15g}") if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{type(value).__name__} is no plain value: {value!r}")


def picked(found: Any, names: str) -> dict[str, Any]:
    """These attributes of it, by name."""
    return {name: getattr(found, name) for name in names.split()}


def moved(traffic: Any) -> dict[str, Any]:
    """Bytes by rank, and messages."""
    return picked(traffic, "sent received") | {"messages": traffic.count}


def digest(*values: Any) -> str:
    """Of text, or of plain values: 48 bits of their SHA-256, enough to see a change."""
    text = "\n".join(v if isinstance(v, str) else compact(plain(v)) for v in values)
    return sha256(text.encode()).hexdigest()[:12]


def bits(*arrays: Any) -> str:
    """Of the type, shape and every bit of arrays; signs of zero count."""
    found = sha256()
    for x in arrays:
        x = np.ascontiguousarray(x)
        found.update(f"{x.dtype} {x.shape} ".encode() + x.tobytes())
    return found.hexdigest()[:12]


def summary(array: Any) -> list[Any]:
    """[shape, a sum that weighs every element otherwise, the sum of all sizes]."""
    x = np.asarray(array, "float64").ravel()
    weights = np.cos(np.arange(x.size))
    return [list(np.shape(array)), float(x @ weights), float(np.abs(x).sum())]


def numbers(seed: int, *shape: int, dtype: str = "float64") -> np.ndarray:
    """Numbers in [-1, 1) that need no generator: the fractions of multiples of the golden ratio,
    of 12 bits, so that their products are exact in single precision."""
    n = np.arange(1, math.prod(shape) + 1, dtype="float64")
    x = np.floor(4096 * ((n * 0.6180339887498949 + seed * 0.7548776662466927) % 1))
    return ((x - 2048) / 2048).reshape(shape).astype(dtype)


@cache
def machine() -> str:
    """Bits of a probe: of functions and sums that libraries round by the processor."""
    x, y = 3 * numbers(1, 40, 60), numbers(2, 60, 50)
    found = [np.exp(x), np.tanh(x), np.log(np.abs(x) + 1), np.sin(x), x @ y]
    a, b = x.astype("float32"), y.astype("float32")
    found += [np.exp(a), np.tanh(a), a @ b, np.einsum("ij,jk->ik", a, b)]
    return bits(*found, np.einsum("ij,jk->ik", x, y), np.square(x).sum(-1))


def differences(old: Any, new: Any, where: str = "", exactly: bool = True) -> Iterator[tuple]:
    """(where, old, new) of all that differs; ``exactly``: what depends on the machine, too."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if key != MACHINE or exactly:
                at = f"{where}.{key}" if where else key
                yield from differences(old.get(key, "-"), new.get(key, "-"), at, exactly)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for n, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{where}[{n}]", exactly)
    elif not same(old, new):
        yield where, old, new


def same(old: Any, new: Any) -> bool:
    kinds = {type(old), type(new)}
    if float in kinds and kinds <= {int, float}:
        return math.isclose(old, new, rel_tol=NEAR, abs_tol=NOTHING)
    return len(kinds) == 1 and old == new
