"""A part of `make gpu`, and the notes it takes: a line of JSON per measurement, on disk at once.

    def run(notes):
        for key, m, n, k in shapes:
            if not notes.begin(key, seconds=60, kernel="wgmma", step="one tile"):
                continue  # measured before
            error = largest_error(m, n, k)
            notes.add(key, "right" if error < limit else "wrong", error=error, limit=limit)

    PARTS = (GpuPart("kernels", "every kernel against float64", 6, 2, ("cupy",), run),)

Where the process ends between `begin` and `add`, or the key takes longer than its seconds, the key
is noted as failed, and ``run`` goes on behind it in a new process.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.store import append
from tiledask.lab.table import Grid

__all__ = ["GOALS", "STATES", "GpuPart", "Notes"]

STATES = ("right", "wrong", "timed", "skipped", "failed")
"""What a measurement came to: right and wrong were compared with a reference, timed is a number,
skipped could not be asked, with the reason, and failed broke, with the message."""

GOALS = {
    "bf16": ("bfloat16 at 8192 x 8192 x 8192, beside cuBLAS", 1.00),
    "fp32": ("float32 at 8192 x 8192 x 8192, beside cuBLAS", 0.95),
    "two-level": ("two-level product at 32768 x 32768 x 32768, beside cupy.matmul", 0.95),
    "host": ("two-level product from host memory, beside its bound", 0.80),
}
"""What `make gpu` wants to know first, as ratios of speeds: a row with ``goal=`` one of these and
``reached=`` is marked against the number."""


def _no_figure(rows: list[dict[str, Any]]) -> Figure | None:
    return None


def _no_tables(rows: list[dict[str, Any]]) -> Sequence[Grid]:
    return ()


@dataclass(frozen=True)
class GpuPart:
    """One subject of `make gpu`; its module names it in PARTS and loads no GPU library."""

    name: str
    """A word: "kernels"."""
    title: str
    """What it finds out, for the page."""
    minutes: float
    """What it takes where everything is well."""
    least: float
    """Minutes below which starting it is a waste."""
    needs: tuple[str, ...]
    """Packages that it cannot do without, as they are imported: ("cupy", "distributed")."""
    run: Callable[["Notes"], None]
    """The work, in a process of its own; what it raises ends the part, or the key under way."""
    tables: Callable[[list[dict[str, Any]]], Sequence[Grid]] = _no_tables
    """Tables for the page, of the part's rows; those without a row are left out."""
    figure: Callable[[list[dict[str, Any]]], Figure | None] = _no_figure
    """A figure for the page, of the part's rows."""


@dataclass
class Notes:
    """What a part has measured so far, and what it is given to go by."""

    part: str
    journal: Path
    """Its lines survive the process (`tiledask.lab.store`)."""
    until: float
    """When the part is cut off, by time.time()."""
    folder: Path
    """For scratch files; gone after the part."""
    before: frozenset[str] = frozenset()
    """Keys that need not be measured again."""
    _begun: dict[str, Any] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until this part is cut off."""
        return self.until - time.time()

    def has(self, key: str) -> bool:
        """Whether ``key`` was measured before: leave it out."""
        return key in self.before

    def begin(self, key: str, seconds: float = 60.0, **facts: Any) -> bool:
        """Whether to measure ``key`` now; it has ``seconds`` from here to `add`.

        ``facts`` go into its row however it ends: what kernel, which layout. A key may begin again
        before it is added: it has its seconds anew, and the last facts count.
        """
        if self.has(key):
            return False
        self._write({"begin": key, "seconds": seconds, **facts})
        if self._begun.get("key") != key:
            self._last = time.monotonic()
        self._begun = {"key": key, **facts}
        return True

    def add(self, key: str, state: str, **facts: Any) -> None:
        """Note one measurement, with all that JSON can say of it; on disk when this returns.

        ``why`` says what is behind skipped, failed and wrong; ``goal`` and ``reached`` belong
        together (`GOALS`). NumPy's numbers become Python's, and infinity and NaN their names.
        """
        if state not in STATES:
            raise ConfigError(f"{key}: a measurement is {' or '.join(STATES)}, got {state!r}")
        if state in ("skipped", "failed") and not facts.get("why"):
            raise ConfigError(
                f"{key} is {state} and why= is not given: say what a reader must know"
            )
        begun = self._begun if self._begun.get("key") == key else {}
        took = time.monotonic() - self._last
        self._write({"key": key, "state": state, "took": round(took, 3), **begun, **facts})
        self._begun, self._last = {}, time.monotonic()

    def judge(self, key: str, wrong: str, **facts: Any) -> None:
        """Note ``key`` as right, or as wrong for the reason ``wrong``."""
        self.add(key, "wrong" if wrong else "right", why=wrong, **facts)

    def late(self, key: str, seconds: float, **facts: Any) -> bool:
        """Whether fewer than ``seconds`` are left; ``key`` is then noted as skipped."""
        late = self.left() < seconds
        if late:
            self.add(key, "skipped", why="there was no time for it", **facts)
        return late

    @contextmanager
    def failing(self, key: str, *kinds: type[Exception]) -> Iterator[None]:
        """Note ``key`` as failed where what is within raises one of ``kinds``, by default any."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, kinds or Exception):
                raise
            self.add(key, "failed", why=f"{type(error).__name__}: {error}")

    def say(self, line: str) -> None:
        """One line for whoever watches."""
        print(" ".join(str(line).split()), flush=True)

    def end(self, why: str = "") -> None:
        """Note that the part came to its end, or what it raised; its process does this."""
        self._write({"end": " ".join(why.split())[:500]})

    def _write(self, facts: dict[str, Any]) -> None:
        append(self.journal, _plain({"part": self.part, **facts}), sync=False)


def _plain(value: Any) -> Any:
    """``value`` as JSON has it: NumPy's numbers as Python's, NaN and infinity by name."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "item"):  # of NumPy and CuPy
        return _plain(value.item())
    return str(value)
