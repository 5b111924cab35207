"""Our kernels are tried in a process of their own first: one that hangs takes nothing with it.

A kernel that never ends cannot be stopped from within its process, and one that writes where it
must not leaves a broken context behind; both would end the whole comparison.
"""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO

from tiledask.lab.bench.tiles.clock import ContestClock, clock_for
from tiledask.lab.bench.tiles.rounds import Gemm, draw
from tiledask.lab.bench.tiles.ways import kernel_way

__all__ = ["ORDERS", "SHAPES", "main", "trial"]

RAGGED = (384, 520, 328)
SHAPES = ((128, 256, 64), RAGGED, (4096, 4096, 512))
"""One tile; edges, with lines on boundaries of 16 bytes; more tiles than a GPU computes at once."""
ORDERS = ("CC", "CF", "FC", "FF")
"""How A and B lie, for one of the shapes: each of them may be code of its own."""


def trial(
    pairs: Sequence[tuple[str, str]],
    arrays: str,
    patience: float = 60.0,
    command: Sequence[str] = (sys.executable, "-m", "tiledask.lab.bench.tiles.trial"),
    say: Callable[[str], None] = lambda _: None,
) -> dict[tuple[str, str], str]:
    """(kernel, precision) -> why it must not be used here, for those that must not.

    Each has ``patience`` seconds, compilation included, for small products, in every layout. After
    one that fails or does not end, the others go on in a new process.
    """
    refused: dict[tuple[str, str], str] = {}
    left = list(pairs)
    while left:
        answers = _answers([*command, arrays, json.dumps(left)], patience)
        for pair in list(left):
            say(f"trying {pair[0]}, {pair[1]}, in a process of its own")
            why = next(answers)
            left.remove(pair)
            if why:
                refused[pair] = why
                break
        answers.close()
    return refused


def _answers(command: Sequence[str], patience: float) -> Iterator[str]:
    """What the child says of one pair after the other: empty, or why not."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    lines: queue.Queue[str] = queue.Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(child.stdout, lines.put), daemon=True),
        threading.Thread(target=_read, args=(child.stderr, errors.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            until = time.monotonic() + patience
            line = None
            while line is None and time.monotonic() < until:
                try:
                    line = lines.get(timeout=0.1)
                except queue.Empty:
                    if child.poll() is not None and lines.empty() and not readers[0].is_alive():
                        break
            if line is None and child.poll() is None:
                yield f"a small product did not end within {patience:g} s"
            elif line is None:
                readers[1].join(1.0)
                last = next((text for text in reversed(errors) if text.strip()), "no message")
                yield f"its process ended with status {child.returncode}: {last.strip()}"
            else:
                yield json.loads(line)
    finally:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # inside the driver it may take its time
            child.wait(5.0)


def _read(stream: IO[str], put: Callable[[str], None]) -> None:
    for line in stream:
        put(line)


def main(arguments: Sequence[str]) -> int:
    """Try the pairs in turn; a line of JSON for each, the reason if it failed."""
    arrays, pairs = arguments[0], json.loads(arguments[1])
    clock = clock_for(arrays)
    for name, precision in pairs:
        print(json.dumps(_tried(name, precision, arrays, clock)), flush=True)
    return 0


def _tried(name: str, precision: str, arrays: str, clock: ContestClock) -> str:
    try:
        for m, n, k in SHAPES:
            for orders in ORDERS if (m, n, k) == RAGGED else ORDERS[:1]:
                work = Gemm(m, n, k, precision, orders)
                way = kernel_way(work, name)
                if way.why_not:
                    return ""  # the contest says so, with the reason
                way.prepare(work, draw(work, 1, arrays, 0))(0)
                clock.wait(f"{name}, {work}")
    except Exception as error:  # whatever it was, it must not happen in the contest
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
