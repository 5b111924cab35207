"""A memory ledger: one row per place, tensor class and moment, predicted and measured alike."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledask.plan import html
from tiledask.plan.frames import frame
from tiledask.plan.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ALWAYS", "Ledger", "Row"]

ALWAYS = "always"
"""The moment of what is resident from the first step to the last."""


@dataclass(frozen=True)
class Row:
    """One line of a ledger."""

    place: int
    """Pipeline stage, rank or worker slot."""
    tensor: str
    """Tensor class: "weights", "gradients", "activations", "panels", ..."""
    moment: str
    """When the bytes are there: ALWAYS, or a name such as "forward", "backward", "step 3"."""
    bytes: int
    """Size in bytes."""
    formula: str = ""
    """How the size follows from the inputs, in words and symbols; empty if measured."""
    source: str = ""
    """Where the formula or the measurement comes from."""


@dataclass(frozen=True, repr=False)
class Ledger:
    """Rows, and what follows from them: a place's peak is what is always there
    plus its largest moment.

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
    def _rows_of(self) -> dict[int, list[Row]]:
        """The rows of each place: there may be thousands of places."""
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.place, []).append(row)
        return found

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(sorted(self._rows_of))

    def moments(self, place: int) -> dict[str, int]:
        """Bytes on ``place`` at each of its moments, what is always there included."""
        mine = self._rows_of.get(place, [])
        always = sum(row.bytes for row in mine if row.moment == ALWAYS)
        totals = {row.moment: always for row in mine}
        for row in mine:
            if row.moment != ALWAYS:
                totals[row.moment] += row.bytes
        return totals

    @property
    def per_place(self) -> dict[int, int]:
        """Peak bytes of every place."""
        return {place: max(self.moments(place).values()) for place in self.places}

    @property
    def peak(self) -> int:
        """Bytes of the fullest place at its fullest moment; 0 for an empty ledger."""
        return max(self.per_place.values(), default=0)

    @property
    def binding(self) -> tuple[int, str, str]:
        """(place, moment, tensor class) that decide the peak: the largest class of that moment."""
        per_place = self.per_place
        place = max(per_place, key=per_place.__getitem__)
        moments = self.moments(place)
        moment = max(moments, key=moments.__getitem__)
        classes = self.by_tensor(place, moment)
        return place, moment, max(classes, key=classes.__getitem__)

    def by_tensor(self, place: int, moment: str | None = None) -> dict[str, int]:
        """Bytes of each tensor class on ``place`` at ``moment`` (default: its fullest)."""
        if moment is None:
            moments = self.moments(place)
            moment = max(moments, key=moments.__getitem__)
        totals: dict[str, int] = {}
        for row in self.rows:
            if row.place == place and row.moment in (ALWAYS, moment):
                totals[row.tensor] = totals.get(row.tensor, 0) + row.bytes
        return totals

    def to_dict(self) -> dict[str, Any]:
        """The peak of every place and every row, as plain values for JSON."""
        return {"per_place": self.per_place, "rows": [vars(row) for row in self.rows]}

    def to_frame(self) -> "pd.DataFrame":
        """A row each: place, tensor, moment, bytes, formula, source."""
        return frame([vars(row) for row in self.rows], [field.name for field in fields(Row)])

    def __repr__(self) -> str:
        if not self.rows:
            return "Ledger(empty)"
        place, moment, tensor = self.binding
        return (
            f"Ledger({len(self.places)} place{'s'[: len(self.places) > 1]}, peak "
            f"{format_bytes(self.peak)} on place {place} at {moment}, mostly {tensor})"
        )

    def _repr_html_(self) -> str:
        head = ("place", "tensor", "moment", "bytes", "formula", "source")
        rows = [
            (r.place, r.tensor, r.moment, format_bytes(r.bytes), r.formula, r.source)
            for r in self.rows
        ]
        return html.table(head, rows, repr(self), style={3: "text-align:right"})
