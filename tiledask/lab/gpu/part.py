"""A part of `make gpu`, and the notes it takes: a line of JSON per measurement, written at once.

    def run(notes, arrays):
        for key, m, n, k in shapes:
            if not notes.begin(key, seconds=60, kernel="wgmma", step="one tile"):
                continue  # measured before
            error = largest_error(m, n, k)
            notes.add(key, "right" if error < limit else "wrong", error=error, limit=limit)

Where the process ends between `begin` and `add`, or the key takes longer than its seconds, the key
is noted as failed, and ``run`` goes on behind it in a new process.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["STATES", "GpuPart", "Notes", "PartTable", "read_journal"]

STATES = ("right", "wrong", "timed", "skipped", "failed")
"""What a measurement came to: right and wrong were compared with a reference, timed is a number,
skipped could not be asked, with the reason, and failed broke, with the message."""


class PartTable(NamedTuple):
    """A table for the page."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    left: Sequence[int] = (0,)
    """Columns that begin at the left; numbers end at the right."""


@dataclass(frozen=True)
class GpuPart:
    """One subject of `make gpu`; its module names it in PARTS and loads no GPU library."""

    name: str
    title: str
    """What it finds out, for the page."""
    minutes: float
    """What it takes where everything is well."""
    needs: tuple[str, ...]
    """Packages that it cannot do without, as they are imported: ("cupy", "distributed")."""
    run: Callable[["Notes", str], None]
    """The work on "cupy" or "numpy" arrays, in a process of its own."""
    tables: Callable[[list[dict[str, Any]]], Sequence[PartTable]]
    """Tables for the page, of the part's rows; those without a row are left out."""


@dataclass
class Notes:
    """What a part has measured so far, and what it is given to go by."""

    part: str
    journal: Path
    until: float
    """When the part is cut off, by time.time()."""
    folder: Path
    """For scratch files; gone after the part."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Keys that need not be measured again, and what they came to."""
    _begun: dict[str, Any] = field(default_factory=dict)

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
        self._begun = {"key": key, **facts}
        self._write({"begin": key, "at": time.time(), "seconds": seconds, "facts": facts})
        return True

    def add(self, key: str, state: str, **facts: Any) -> None:
        """Note one measurement, with all that JSON can say of it; it is written on return.

        ``why`` says what is behind skipped, failed and wrong; ``goal`` and ``reached`` belong
        together (page.GOALS). NumPy's numbers become Python's, infinity and NaN their names.
        """
        assert state in STATES, state
        begun = self._begun if self._begun.get("key") == key else {}
        self._write({"key": key, "state": state, **begun, **facts})
        self._begun = {}

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
            if kinds and not isinstance(error, kinds):
                raise
            self.add(key, "failed", why=f"{type(error).__name__}: {error}")

    def say(self, line: str) -> None:
        """One line for whoever watches."""
        print(f"{self.part} | {' '.join(str(line).split())}", flush=True)

    def end(self, why: str = "") -> None:
        """Note that the part came to its end, or what it raised; its process does this."""
        self._write({"end": " ".join(why.split())[:500]})

    def _write(self, facts: dict[str, Any]) -> None:
        line = json.dumps(_plain({"part": self.part, **facts}))
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; half a line has no writer any more."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


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
