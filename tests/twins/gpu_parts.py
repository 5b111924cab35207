"""Parts of `make gpu` that go wrong in every way, for tests of what runs them."""

import os
import time

from tiledask.lab.gpu.part import GpuPart, PartTable


def goes_wrong(notes, arrays):
    for key, end in {
        "dies": os.abort,
        "hangs": lambda: time.sleep(600),
        "raises": lambda: 1 / 0,
        "fine": lambda: notes.add("fine", "right", error=float("nan")),
    }.items():
        if notes.begin(key, seconds=2, step=key):
            end()
    notes.judge("a product", "a relative error of 0.5")


def goes_on(notes, arrays):
    notes.add("first", "right")
    time.sleep(600)


def tables(rows):
    return [PartTable(("key", ""), [(row["key"], row["state"]) for row in rows])]


PARTS = (
    GpuPart("wrong", "goes wrong", 1, (), goes_wrong, tables),
    GpuPart("long", "goes on", 1, (), goes_on, tables),
    GpuPart("missing", "needs more", 1, ("no_such_package",), goes_on, tables),
)
