"""A memory ledger: one row per place, tensor class and moment, predicted and measured alike."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from tiledask.plan import html
from tiledask.plan.tables import frame
from tiledask.plan.units import format_bytes

__all__ = ["ALWAYS", "Ledger", "Row"]

ALWAYS = "always"
"""The moment of what is resident from the first step to the last."""


@dataclass(frozen=True)
class Row:
    """One line of a ledger."""

    place: int  # pipeline stage, rank or worker slot
    tensor: str  # tensor class: "weights", "gradients", "activations", "panels", ...
    moment: str  # when the bytes are there: ALWAYS, or a name such as "forward", "step 3"
    bytes: int
    formula: str = ""  # how the size follows from the inputs; empty if measured
    source: str = ""  # where the formula or the measurement comes from


@dataclass(frozen=True, repr=False)
class Ledger:
    """Rows; a place's peak is what is always there plus its largest moment.

    >>> ledger = Ledger.of([Row(0, "weights", ALWAYS, 10), Row(0, "activations", "forward", 5),
    ...                     Row(0, "activations", "backward", 7), Row(1, "weights", ALWAYS, 12)])
    >>> ledger.per_place, ledger.peak, ledger.binding
    ({0: 17, 1: 12}, 17, (0, 'backward', 'weights'))
    """

    rows: tuple[Row, ...]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Ledger":
        return cls(tuple(rows))

    @cached_property
    def moments(self) -> dict[int, dict[str, int]]:
        """By place the bytes at each of its moments, what is always there included."""
        found: dict[int, Counter[str]] = {}
        for row in sorted(self.rows, key=lambda row: row.place):
            found.setdefault(row.place, Counter())[row.moment] += row.bytes
        return {
            place: {m: n + (m != ALWAYS) * mine[ALWAYS] for m, n in mine.items()}
            for place, mine in found.items()
        }

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(self.moments)

    @property
    def per_place(self) -> dict[int, int]:
        """Peak bytes of every place."""
        return {place: max(mine.values()) for place, mine in self.moments.items()}

    @property
    def peak(self) -> int:
        """Bytes of the fullest place at its fullest moment; 0 for an empty ledger."""
        return max(self.per_place.values(), default=0)

    @property
    def binding(self) -> tuple[int, str, str]:
        """(place, moment, tensor class) that decide the peak: the largest class of that moment."""
        place = max(peaks := self.per_place, key=peaks.__getitem__)
        moment = max(held := self.moments[place], key=held.__getitem__)
        return place, moment, max(sizes := self.by_tensor(place, moment), key=sizes.__getitem__)

    def by_tensor(self, place: int, moment: str | None = None) -> dict[str, int]:
        """Bytes of each tensor class on ``place`` at ``moment`` (default: its fullest)."""
        held, totals = self.moments[place], Counter[str]()
        moment = moment or max(held, key=held.__getitem__)
        for row in self.rows:
            if row.place == place and row.moment in (ALWAYS, moment):
                totals[row.tensor] += row.bytes
        return dict(totals)

    def to_dict(self) -> dict[str, Any]:
        """The peak of every place and every row, as plain values for JSON."""
        return {"per_place": self.per_place, "rows": [vars(row) for row in self.rows]}

    def to_frame(self) -> Any:
        """A row each: place, tensor, moment, bytes, formula, source."""
        names = [field.name for field in fields(Row)]
        return frame({name: [getattr(row, name) for row in self.rows] for name in names})

    def __repr__(self) -> str:
        if not self.rows:
            return "Ledger(empty)"
        place, moment, tensor = self.binding
        return (
            f"Ledger({len(self.places)} place{'s'[: len(self.places) > 1]}, peak "
            f"{format_bytes(self.peak)} on place {place} at {moment}, mostly {tensor})"
        )

    def _repr_html_(self) -> str:
        head = [field.name for field in fields(Row)]
        rows = ({**vars(row), "bytes": format_bytes(row.bytes)}.values() for row in self.rows)
        return html.table(head, rows, repr(self), style={3: "text-align:right"})
