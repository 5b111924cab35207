"""What was sent to one device of a run: it lies here until it is taken, or the run is over."""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CancelledError", "Mailbox"]


class CancelledError(RuntimeError):
    """The run or the exchange was ended while a device still worked for it."""


@dataclass
class Mailbox:
    """What comes to one device in one run; others put things in, one thread takes them out."""

    run: str
    device: int
    over: BaseException | None = field(default=None, kw_only=True)
    """Why nothing is to be done here any more."""
    parcels: dict[Hashable, Any] = field(default_factory=dict, kw_only=True)
    """What was put in, by its key."""
    doing: Any = field(default=None, kw_only=True)
    """What the device does, for others that wonder."""
    at_end: list[Callable[[], None]] = field(default_factory=list, kw_only=True)
    """What is to be called when the run is closed here."""
    changed: threading.Condition = field(default_factory=threading.Condition, kw_only=True)

    def tell(self, **news: Any) -> None:
        """Set what is news, once, and wake who waits for it."""
        with self.changed:
            for name, value in news.items():
                if getattr(self, name) is None:
                    setattr(self, name, value)
            self.changed.notify_all()

    def put(self, key: Hashable, parcel: Any) -> None:
        """Put ``parcel`` in, and wake who waits for it."""
        with self.changed:
            self.parcels[key] = parcel
            self.changed.notify_all()

    def check(self) -> None:
        """Raise why this run is over, if it is."""
        if self.over is not None:
            raise self.over

    def wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Whether ``ready`` came true before ``deadline`` (time.monotonic); see `check`."""
        with self.changed:
            left = deadline - time.monotonic()
            done = self.changed.wait_for(lambda: self.over is not None or ready(), left)
        self.check()
        return done
