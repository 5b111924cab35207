"""Bytes and messages between ranks: one type for predicted and for counted traffic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tiledask.plan import html
from tiledask.plan.units import format_bytes

__all__ = ["Traffic"]


@dataclass(frozen=True, eq=False, repr=False)
class Traffic:
    """What moved from rank to rank.

    >>> t = Traffic.of(2, [(0, 1, 100), (0, 1, 50), (1, 0, 8)])
    >>> t.total, t.count, t.sent, t.received
    (158, 3, (150, 8), (8, 150))
    """

    bytes: np.ndarray
    """int64 [source rank, destination rank], bytes."""
    messages: np.ndarray
    """int64 [source rank, destination rank], blocks sent, whatever their size."""
    hosts: tuple[str, ...] = ()
    """The host of each rank; none if that was not said, and then all are on one."""

    @classmethod
    def of(cls, ranks: int, moves: Iterable[tuple[int, int, int]] = ()) -> "Traffic":
        """The traffic of ``moves`` (source, destination, bytes) among ``ranks`` ranks.

        A move from a rank to itself costs nothing and is not counted.
        """
        nbytes = np.zeros((ranks, ranks), np.int64)
        messages = np.zeros((ranks, ranks), np.int64)
        for source, destination, size in moves:
            if source != destination:
                nbytes[source, destination] += size
                messages[source, destination] += 1
        return cls(nbytes, messages)

    def on(self, hosts: Sequence[str], slots: Sequence[int] | None = None) -> "Traffic":
        """The same between the slots of a cluster, each on its host; rank r is slot ``slots[r]``,
        or r."""
        if slots is None and len(hosts) == self.ranks:
            return Traffic(self.bytes, self.messages, tuple(hosts))
        moved = np.zeros((2, len(hosts), len(hosts)), np.int64)
        at = np.arange(self.ranks) if slots is None else np.array(slots)
        moved[:, at[:, None], at] = self.bytes, self.messages
        return Traffic(moved[0], moved[1], tuple(hosts))

    @property
    def ranks(self) -> int:
        return len(self.bytes)

    @property
    def between_hosts(self) -> int:
        """Bytes moved between ranks on different hosts, which are part of ``total``."""
        hosts = np.array(self.hosts or [""] * self.ranks)
        return int(self.bytes[hosts[:, None] != hosts].sum())

    @property
    def total(self) -> int:
        """Bytes moved between different ranks, all together."""
        return int(self.bytes.sum())

    @property
    def count(self) -> int:
        """Messages (blocks) between different ranks, all together."""
        return int(self.messages.sum())

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that left each rank."""
        return tuple(self.bytes.sum(axis=1).tolist())

    @property
    def received(self) -> tuple[int, ...]:
        """Bytes that reached each rank."""
        return tuple(self.bytes.sum(axis=0).tolist())

    def __add__(self, other: "Traffic") -> "Traffic":
        hosts = self.hosts or other.hosts
        return Traffic(self.bytes + other.bytes, self.messages + other.messages, hosts)

    def __eq__(self, other: object) -> bool:
        """Equal to the byte and to the message, for every pair of ranks."""
        if not isinstance(other, Traffic):
            return NotImplemented
        return np.array_equal(self.bytes, other.bytes) and np.array_equal(
            self.messages, other.messages
        )

    def __repr__(self) -> str:
        words = f"{self.total:,} bytes in {self.count} messages among {self.ranks} ranks"
        return f"Traffic({words}{self.crossed()})"

    def crossed(self) -> str:
        """What of it goes between hosts, in words; nothing if there is one."""
        hosts = len(set(self.hosts))
        return f", {self.between_hosts:,} bytes between {hosts} hosts" if hosts > 1 else ""

    def _repr_html_(self) -> str:
        head = ("", *(f"to {j}" for j in range(self.ranks)))
        rows = [
            (f"from {i}", *(format_bytes(n) if n else "·" for n in row))
            for i, row in enumerate(self.bytes.tolist())
        ]
        words = f"{self.total:,} bytes in {self.count} messages{self.crossed()}"
        return html.table(head, rows, words, first="th")
