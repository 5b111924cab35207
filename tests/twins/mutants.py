"""Damaged inputs: seeds changed at random, and readers run on them in a process with bounds.

    mutant(seed, number)           the seed's text or bytes, changed by the number
    survey("config.json", 500)     what a reader said that it had not declared, and what was slow

A reader runs in a process of its own, which may take a gigabyte more than it has at first, and
twenty seconds for one mutant: what neither ends nor answers is ended, and is found too.
"""

import json
import os
import random
import resource
import signal
import sys
import tempfile
from pathlib import Path

from oracles.finished import ROOT, python

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


def mutant(seed, number):
    """``seed``, changed in one to three places; the same number changes it in the same way."""
    rng = random.Random(number)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = _bytes if isinstance(seed, bytes) else rng.choice((_value, _text))
        seed = change(seed, rng)
    return seed


def _value(seed, rng):
    """JSON with a value in it replaced, gone, doubled or renamed; other text as `_text` has it."""
    try:
        places = list(_places(whole := json.loads(seed)))
    except (ValueError, RecursionError):
        places = []
    if not places:
        return _text(seed, rng)
    (holder, key), (other, there) = rng.choice(places), rng.choice(places)
    mark, what = "\ue000", rng.random()
    if what < 0.6:
        holder[key] = mark
    elif what < 0.75:
        del holder[key]
    elif what < 0.85 and isinstance(holder, dict):
        holder[f"{key}{rng.choice(('', 's', '_', chr(0)))}"] = holder.pop(key)
    else:
        holder[key] = json.loads(json.dumps(other[there]))
    return json.dumps(whole).replace('"\\ue000"', rng.choice(NUMBERS + WORDS))


def _places(value):
    """(holder, key) of all values within."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(each)


def _text(seed, rng):
    """Text with a number replaced, or a span of it gone, doubled, or something put into it."""
    what, at = rng.random(), rng.randrange(len(seed) + 1)
    digits = [n for n, char in enumerate(seed) if char.isdigit()]
    if what < 0.35 and digits:
        start = rng.choice(digits)
        rest = seed[start:].lstrip("0123456789.e")
        return seed[:start] + rng.choice(NUMBERS) + rest
    if what < 0.5:
        return seed[:at] + rng.choice(PIECES + WORDS) + seed[at:]
    stop = min(len(seed), at + rng.choice((1, 1, 2, 5, 20, len(seed))))
    again = seed[at:stop] * rng.choice((1, 1, 2, 50)) if what < 0.75 else ""
    return seed[: stop if again else at] + again + (seed[stop:] if what < 0.9 else "")


def _bytes(seed, rng):
    """Bytes with some flipped, zeroed, gone, doubled, or a length replaced."""
    what, at = rng.random(), rng.randrange(len(seed) + 1)
    if rng.random() < 0.5:  # heads are where lengths and types are
        at = rng.randrange(min(len(seed), 128) + 1)
    stop = min(len(seed), at + rng.choice((1, 1, 2, 4, 8, 64, len(seed))))
    if what < 0.4:
        flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in seed[at : at + 1])
        return seed[:at] + flipped + seed[at + 1 :]
    if what < 0.7:
        other = b"" if what > 0.55 else rng.choice((b"\0", b"\xff")) * (stop - at)
        return seed[:at] + other + seed[stop:]
    if what < 0.8:
        return seed[:at]
    if what < 0.9:
        return seed[:at] + rng.choice(NUMBERS).encode() + seed[at:]
    return seed + rng.randbytes(rng.choice((1, 100, 5_000)))


class _TooSlowError(BaseException):
    """A mutant took more than SECONDS."""


START = f"""import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]}
from twins.mutants import main
main(*sys.argv[1:])"""


def survey(reader, numbers):
    """{number: what ``reader`` of `tests/twins/readers.py` did wrong with that mutant}."""
    found, first = {}, numbers.start
    while first < numbers.stop:
        limit = 30 + 2 * SECONDS * (numbers.stop - first)
        done = python("-c", START, reader, first, numbers.stop, timeout=limit)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        found |= {number: what for number, what in lines if what}
        first += len(lines)
        if not lines and done.returncode == 1:
            raise RuntimeError(done.stderr[-2_000:])
        if first < numbers.stop:
            found[first] = f"ended the process: {done.returncode}, {done.stderr[-200:]}"
            first += 1
    return found


def _answer(read, path, given):
    """What was wrong in how ``read`` took ``given``; empty if nothing."""
    import tiledask.errors as errors

    declared = tuple(getattr(errors, name) for name in errors.__all__ if name.endswith("Error"))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)  # what waits takes no time of its own
    try:
        read(path, given)
    except declared as error:
        said = str(error)
        if len(said) > LONGEST:
            return f"a message of {len(said)} characters: {said[:100]} ... {said[-100:]}"
        if any(ord(c) < 32 and c not in "\n\t" for c in said):
            return f"control characters in {said!r}"[:300]
    except _TooSlowError:
        return f"more than {SECONDS:g} s"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
    return ""


def main(reader, first, stop):
    """Print [number, what was wrong] of each mutant."""
    from twins.readers import READERS

    def too_slow(number, frame):
        raise _TooSlowError

    for of_timer in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(of_timer, too_slow)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        seeds, read = READERS[reader]()
        for number, seed in enumerate(seeds):  # whole: nothing may be said against it
            read(Path(folder) / f"seed{number}", seed)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, resource.RLIM_INFINITY))
        for number in range(int(first), int(stop)):
            given = mutant(seeds[number % len(seeds)], number)
            what = _answer(read, Path(folder) / f"m{number}", given)
            print(json.dumps([number, what]), file=sys.__stdout__, flush=True)
