"""Damaged inputs: seeds changed at random, and readers run on them in a process with bounds.

    mutants(seed, number)          the seed's text or bytes, changed by the number
    survey("config.json", 500)     what a reader said that it had not declared, and what was slow

A reader runs in a process of its own, which may take a gigabyte more than it has at first, and
six seconds for one mutant: what neither ends nor answers is ended, and is found too.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 20.0
BYTES = 10**9
LONGEST = 600
"""Characters of a message."""

NUMBERS = (
    "-1", "0", "1", "2", "0.5", "1e9", "1e400", "-1e400", "1e-400", "99999999", "10000000000",
    "18446744073709551616", "9" * 40, "9" * 5000, "NaN", "Infinity", "-Infinity", "²", "٣", "0x10",
    "1_000", "007", "+5", "1e26", "4611686018427387904",
)  # fmt: skip
WORDS = (
    '"x"', '""', "null", "true", "false", "[]", "{}", "[[]]", '[{"a": 1}]',
    '"' + "y" * 10_000 + '"',
    '"\\u0000"', '"../../../etc/passwd"', '"<script>"', '"\\ud800"', "[" * 50_000, "{" * 50_000,
)  # fmt: skip
PIECES = (
    "\0", "\x1b[2J", "\ufeff", "\r", "\n\n", ",", ";", ":", '"', "'", "(", ")", "[", "]", "{", "}",
    "|", "@", "-", "..", "/", "\\", "%s", "{0}", "é", "𝟙", "\u202e", " " * 5_000, "A" * 20_000,
)  # fmt: skip


def mutant(seed: str | bytes, number: int) -> str | bytes:
    """``seed``, changed in one to three places; the same number changes it in the same way."""
    rng = random.Random(number)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if isinstance(seed, bytes):
            seed = _bytes(seed, rng)
        elif rng.random() < 0.5 and (changed := _value(seed, rng)) is not None:
            seed = changed
        else:
            seed = _text(seed, rng)
    return seed


def _value(seed: str, rng: random.Random) -> str | None:
    """JSON with one value in it replaced, gone, doubled or renamed; None for other text."""
    try:
        whole = json.loads(seed)
    except (ValueError, RecursionError):
        return None
    places = list(_places(whole))
    if not places:
        return None
    holder, key = rng.choice(places)
    mark = "\ue000"
    what = rng.random()
    if what < 0.6:
        holder[key] = mark
    elif what < 0.75:
        del holder[key]
    elif what < 0.85 and isinstance(holder, dict):
        holder[f"{key}{rng.choice(('', 's', '_', chr(0)))}"] = holder.pop(key)
    else:
        other, there = rng.choice(places)
        with_other = other[there] if there in other or isinstance(other, list) else None
        holder[key] = json.loads(json.dumps(with_other))
    return json.dumps(whole).replace('"\\ue000"', rng.choice(NUMBERS + WORDS))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of all values within."""
    if not isinstance(value, dict | list):
        return
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def _text(seed: str, rng: random.Random) -> str:
    """Text with a number replaced, or a span of it gone, doubled, or something put into it."""
    what, at = rng.random(), rng.randrange(len(seed) + 1)
    runs = [n for n, char in enumerate(seed) if char.isdigit()]
    if what < 0.35 and runs:
        start = stop = rng.choice(runs)
        while stop < len(seed) and (seed[stop].isdigit() or seed[stop] in ".e"):
            stop += 1
        return seed[:start] + rng.choice(NUMBERS) + seed[stop:]
    if what < 0.5:
        return seed[:at] + rng.choice(PIECES + WORDS) + seed[at:]
    stop = min(len(seed), at + rng.choice((1, 1, 2, 5, 20, len(seed))))
    if what < 0.75:
        return seed[:at] + seed[stop:]
    if what < 0.9:
        return seed[:stop] + seed[at:stop] * rng.choice((1, 1, 2, 50)) + seed[stop:]
    return seed[:at]


def _bytes(seed: bytes, rng: random.Random) -> bytes:
    """Bytes with some flipped, zeroed, gone, doubled, or a length replaced."""
    what, at = rng.random(), rng.randrange(len(seed) + 1)
    if rng.random() < 0.5:  # heads are where lengths and types are
        at = rng.randrange(min(len(seed), 128) + 1)
    stop = min(len(seed), at + rng.choice((1, 1, 2, 4, 8, 64, len(seed))))
    if what < 0.4:
        flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in seed[at : at + 1])
        return seed[:at] + flipped + seed[at + 1 :]
    if what < 0.55:
        return seed[:at] + rng.choice((b"\0", b"\xff")) * (stop - at) + seed[stop:]
    if what < 0.7:
        return seed[:at] + seed[stop:]
    if what < 0.8:
        return seed[:at]
    if what < 0.9:
        return seed[:at] + rng.choice(NUMBERS).encode() + seed[at:]
    return seed + rng.randbytes(rng.choice((1, 100, 5_000)))


@dataclass(frozen=True)
class Found:
    """A mutant that was not answered as it should be: the same number makes it again."""

    number: int
    what: str
    """The undeclared error and its words, or what was slow, large or long."""


class _TooSlowError(BaseException):
    """A mutant took more than SECONDS."""


def survey(reader: str, numbers: range) -> list[Found]:
    """What ``reader`` of `tests/twins/readers.py` did wrong with the mutants of these numbers."""
    found: list[Found] = []
    waiting = list(numbers)
    while waiting:
        asked = [sys.executable, __file__, reader, f"{waiting[0]}:{waiting[-1] + 1}"]
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=30 + 2 * SECONDS * len(waiting)
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        last = max((line["number"] for line in lines), default=waiting[0] - 1)
        found += [Found(line["number"], line["what"]) for line in lines if line["what"]]
        if last == waiting[-1]:
            break
        if last < waiting[0] and not lines and done.returncode == 1:
            raise RuntimeError(done.stderr[-2_000:])
        ended = f"ended the process: {done.returncode}, {done.stderr[-200:]}"
        found.append(Found(last + 1, ended))
        waiting = waiting[last + 2 - waiting[0] :]
    return found


def _answer(read: Callable[[Path, Any], object], path: Path, given: str | bytes) -> str:
    """What was wrong in how ``read`` took ``given``; empty if nothing."""
    import tiledask.errors as errors

    declared = tuple(getattr(errors, name) for name in errors.__all__ if name.endswith("Error"))
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)  # what waits takes no time of its own
    try:
        read(path, given)
    except declared as error:
        said = str(error)
        if len(said) > LONGEST:
            return f"a message of {len(said)} characters: {said[:100]} ... {said[-100:]}"
        if not said.isprintable() and any(ord(c) < 32 and c not in "\n\t" for c in said):
            return f"control characters in {said!r}"[:300]
    except _TooSlowError:
        return f"more than {SECONDS:g} s"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
    took = time.process_time() - begun
    return f"{took:.1f} s" if took > SECONDS else ""


def _main(reader: str, span: str) -> None:
    from twins.readers import READERS

    def too_slow(number: int, frame: object) -> None:
        raise _TooSlowError

    for of_timer in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(of_timer, too_slow)
    first, stop = map(int, span.split(":"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        seeds, read = READERS[reader]()
        for number, seed in enumerate(seeds):  # whole: nothing may be said against it
            read(Path(folder) / f"seed{number}", seed)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.RLIM_INFINITY))
        for number in range(first, stop):
            given = mutant(seeds[number % len(seeds)], number)
            what = _answer(read, Path(folder) / f"m{number}", given)
            sys.__stdout__.write(json.dumps({"number": number, "what": what}) + "\n")
            sys.__stdout__.flush()


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
    _main(*sys.argv[1:])
