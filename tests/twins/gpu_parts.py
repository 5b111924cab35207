"""Parts of `make gpu` that go wrong in every way there is, with good neighbours."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tiledask.lab.gpu.part import GpuPart
from tiledask.lab.gpu.parts import tests
from tiledask.lab.table import Grid

SURVIVOR = "import os, sys, time; {}open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def good(notes):
    notes.say(f"{notes.left():.0f} s left")
    if notes.begin("one", kernel="tiled"):
        notes.add("one", "right", error=1e-7, limit=1e-6)
    notes.add("two", "timed", begin=0.0, end=0.5, goal="bf16", reached=1.02)
    notes.add("three", "skipped", why="torch is not installed")


def crashes(notes):
    for key in ("before", "illegal address", "behind"):
        if notes.begin(key, kernel="wgmma", step="cluster"):
            if key == "illegal address":
                os.kill(os.getpid(), signal.SIGSEGV)
            notes.add(key, "right")


def hangs(notes):
    for key in ("before", "never ends", "behind"):
        if notes.begin(key, seconds=0.6, kernel="wgmma", step="one tile"):
            while key == "never ends":
                signal.pause()
            notes.add(key, "right")


def gives_up(notes):
    new = 0
    for number in range(6):
        if notes.begin(f"row {number}"):
            notes.add(f"row {number}", "right", process=os.getpid())
            new += 1
        if new == 3 and number < 5:
            os._exit(1)


def hangs_wholly(notes):
    notes.add("before", "right")
    time.sleep(600)


def wrong(notes):
    notes.begin("product", step="layouts", orders="CF")
    notes.add("product", "wrong", error=float("nan"), limit=1e-3)
    notes.add("other", "right", step="layouts", orders="CC", error=1e-9, limit=1e-3)


def raises(notes):
    notes.add("before", "right")
    raise RuntimeError("no room for\n 3 | 4 bytes")


def exits(notes):
    os._exit(0)


def talks(notes):
    os.write(1, b"\x1b[31mred\x1b[0m \xff\xfe\x00 [bold]x[/] | y\n" + b"z" * 100_000 + b"\n")
    for number in range(10_000):
        print(number)
    notes.add("said", "right")


def half(notes):
    notes.add("whole", "right")
    with open(notes.journal, "ab") as file:
        file.write(b'no JSON\n{"part": "half", "key": "torn", "sta')
    os._exit(3)


def _survivor(notes, name, code=""):
    file = Path(os.environ["SURVIVORS"]) / name
    subprocess.Popen([sys.executable, "-c", SURVIVOR.format(code), str(file)])
    while not file.exists() or not file.read_text():
        time.sleep(0.01)


def leaves_workers(notes):
    _survivor(notes, "same-session")
    _survivor(notes, "own-session", "os.setsid(); ")
    notes.add("started", "right")


def gone(file):
    """Whether the process that wrote its number there is no more, or waits to be buried."""
    try:
        status = Path(f"/proc/{file.read_text()}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def is_alone(notes):
    """Whether the workers of the part before are gone."""
    for name in ("same-session", "own-session"):
        notes.add(name, "right" if gone(Path(os.environ["SURVIVORS"]) / name) else "wrong")


def waits(notes):
    leaves_workers(notes)
    notes.begin("under way", seconds=300)
    time.sleep(600)


def suite(notes):
    """The tests of a checkout of its own, in as many processes as it is told."""
    tests._ROOT = Path(os.environ["SUITE"])
    tests._RUNS = (("gpu", 2, int(os.environ["SUITE_PROCESSES"])),)
    tests.run(notes)


def tables(rows):
    return [Grid(("key", "state"), [(row["key"], row["state"]) for row in rows], "All of it")]


def broken(rows):
    raise KeyError("median")


def figure(rows):
    from matplotlib.figure import Figure

    drawn = Figure((4, 3))
    drawn.subplots().bar([row["key"] for row in rows], range(len(rows)))
    return drawn


def _part(run, minutes=1.0, **shown):
    name = run.__name__.replace("_", "-")
    return GpuPart(name, f"a part that {run.__name__}", minutes, 0.01, (), run, **shown)


PARTS = (
    _part(good, tables=tables, figure=figure),
    _part(crashes, tables=broken, figure=broken),
    _part(hangs),
    _part(hangs_wholly, 0.15),
    _part(wrong),
    _part(raises),
    _part(exits),
    _part(talks),
    _part(half),
    _part(leaves_workers),
    _part(is_alone),
    _part(waits),
    _part(gives_up),
    GpuPart("lacks", "what is not installed", 1, 0.1, ("numpy", "no_such_package"), good),
    GpuPart("too-long", "what takes hours", 600, 500, (), good),
    GpuPart("tests", "a small suite", 1, 0.01, ("pytest",), suite, tests.tables),
    GpuPart("last", "the last neighbour", 1, 0.01, (), good),
)
