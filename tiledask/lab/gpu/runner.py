"""Parts in their order, within the minutes there are; what befalls one costs that one only.

Where a part's process ends in the middle of a measurement, that is noted as failed and the part
goes on behind it in a new process.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.gpu.process import End, guard, run_process
from tiledask.lab.gpu.record import DeviceRecord

__all__ = ["MODULES", "Lost", "Runner", "find_parts", "shares"]

MODULES = tuple(
    f"tiledask.lab.gpu.parts.{name}"
    for name in ("machine", "kernels", "speed", "product", "fit", "train", "tests")
)
"""In the order of what is learnt per minute."""

_AGAIN = 5.0
"""Seconds of its time that a part must have left to go on in another process."""


@dataclass(frozen=True)
class Lost:
    """A module of parts that cannot be imported."""

    name: str
    why: str


def find_parts(modules: Sequence[str] = MODULES) -> list[tuple[str, GpuPart] | Lost]:
    """(module, part) for every part of ``modules``; in its place what stands against it."""
    found: list[tuple[str, GpuPart] | Lost] = []
    for module in modules:
        try:
            found += [(module, part) for part in import_module(module).PARTS]
        except Exception as error:  # whatever is wrong with one module is no matter of the others
            why = f"{module} cannot be imported: {type(error).__name__}: {error}"
            found.append(Lost(module.rpartition(".")[2], why))
    return found


def shares(parts: Sequence[GpuPart], seconds: float) -> dict[str, float]:
    """Part -> its seconds, for those that fit into ``seconds``, the first ones first.

    Each gets the least that makes sense, then all get as much more as is there, in proportion to
    what they would like.

    >>> def part(name, minutes, least):
    ...     return GpuPart(name, "", minutes, least, (), print)
    >>> some = [part("first", 1, 0.5), part("long", 9, 5), part("last", 2, 1)]
    >>> shares(some, 120)
    {'first': 40.0, 'last': 80.0}
    >>> shares(some, 1440)
    {'first': 120.0, 'long': 1080.0, 'last': 240.0}
    """
    chosen: list[GpuPart] = []
    least = liked = 0.0
    for part in parts:
        if least + 60 * part.least <= seconds:
            chosen.append(part)
            least, liked = least + 60 * part.least, liked + 60 * part.minutes
    if seconds >= liked:
        return {p.name: 60 * p.minutes * seconds / liked for p in chosen}
    more = (seconds - least) / (liked - least)
    return {p.name: 60 * (p.least + more * (p.minutes - p.least)) for p in chosen}


class Runner:
    """A run over parts that ends ``seconds`` from now, into ``record``."""

    def __init__(
        self,
        record: DeviceRecord,
        seconds: float,
        say: Callable[[str], None],
        show: Callable[[], None] = lambda: None,
    ) -> None:
        """``say`` gets every line for whoever watches; ``show`` is called after each part."""
        self.record, self.say, self.show = record, say, show
        self.until = time.time() + seconds
        self.mark = uuid.uuid4().hex

    def run(self, parts: Sequence[tuple[str, GpuPart] | Lost]) -> None:
        """None, once every part has run or was left out; the record says what came of it."""
        left = list(parts)
        try:
            with guard(self.mark):
                while left:
                    self._one(left)
                    left.pop(0)
        except BaseException as error:
            name = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else type(error).__name__
            first, *others = [p.name if isinstance(p, Lost) else p[1].name for p in left]
            self.record.end_part(first, "cut off", f"by {name}")
            for other in others:
                self.record.leave_out(other, f"the run was ended by {name}")
            raise

    def _one(self, left: Sequence[tuple[str, GpuPart] | Lost]) -> None:
        """Run the first part of ``left``, or leave it out."""
        if isinstance(left[0], Lost):
            self._leave_out(left[0].name, left[0].why)
            return
        module, part = left[0]
        rest = self.until - time.time()
        # what earlier parts did not use is there for those that come
        fits = shares([p[1] for p in left if not isinstance(p, Lost)], rest)
        missing = [name for name in part.needs if find_spec(name) is None]
        if missing:
            are = "is" if len(missing) == 1 else "are"
            self._leave_out(part.name, f"{' and '.join(missing)} {are} not installed")
        elif self.record.resumes and self.record.done(part.name):
            self.say(f"{part.name}: done before, by the same code")
        elif part.name not in fits:
            why = f"it needs {part.least:g} minutes or more, and {max(0, rest) / 60:.1f} are left"
            self._leave_out(part.name, why)
        else:
            self._run(module, part, fits[part.name])
            self.show()

    def _leave_out(self, name: str, why: str) -> None:
        self.say(f"{name}: left out: {why}")
        self.record.leave_out(name, why)
        self.record.write()

    def _run(self, module: str, part: GpuPart, seconds: float) -> None:
        """Run ``part``, in as many processes as it takes."""
        begun, processes, damaged = time.time(), 0, len(self.record.journal.damaged)
        facts = {"limit": round(seconds, 1)}
        self.say(f"{part.name}, {seconds:.0f} s at most: {part.title}")
        self.record.start(part.name)
        self.record.end_part(part.name, "running", **facts)
        self.record.write()
        again = True
        while again:
            before = self.record.kept(part.name)
            given = {"until": begun + seconds, "before": sorted(before)}
            end = run_process(
                module, part.name, given, self.record.journal, self.mark, self._take, self.say
            )
            processes += 1
            again = end.how and end.row["key"] not in before
            if again:
                self._fail(part.name, end)
                again = begun + seconds - time.time() > _AGAIN
        why = f"{end.row['key']}: {end.why}" if end.how else end.why
        if lost := len(self.record.journal.damaged) - damaged:
            why += "; " * bool(why) + f"lines of its notes that cannot be read: {lost}"
        facts |= {"took": round(time.time() - begun, 1), "processes": processes}
        self.record.end_part(part.name, end.state, why, **facts)
        self.record.write()
        self.say(f"{part.name}: {end.state}{': ' * bool(why)}{why}, {facts['took']:.0f} s")

    def _take(self, lines: Sequence[dict]) -> None:
        for line in lines:
            self.record.take(line)
        self.record.write()

    def _fail(self, part: str, end: End) -> None:
        """Note the measurement that was under way as failed, as its process would have."""
        facts = {k: v for k, v in end.row.items() if k not in ("key", "part", "seconds")}
        key = end.row["key"]
        if key in self.record.kept(part):  # it came to its end after all
            return
        self.say(f"{part}: {key}: {end.why}")
        notes = Notes(part, self.record.journal.path, until=0.0, folder=Path())
        notes.add(key, "failed", why=end.why, how=end.how, **facts)
        self._take(self.record.journal.read())
