"""Options of a command as lines of a text, and what is typed for them."""

import argparse
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.extras import needed_for
from tiledask.plan.whole import whole_rule

__all__ = ["Run", "add_options", "check_figure", "numbers"]

Run = Generator[Any, None, tuple[int, Any]]
"""A command: it yields parts that are printed (`tiledask.plan.tables`), and returns the exit code
and what --json prints."""


def whole(text: str) -> int:
    """A whole number, as argparse reads one."""
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise argparse.ArgumentTypeError(f"must be {whole_rule()}, got {short(text)}")
    return int(text)


WHOLE = ("N", "TOKENS", "R", "V", "SEED", "DEVICES", "MICROBATCHES", "BATCH")
KINDS: dict[str, Any] = dict.fromkeys(WHOLE, whole) | {"AMOUNT": float}
KINDS["NUMBERS"] = lambda text: [whole(each.strip()) for each in text.split(",")]
"""What is read as a number, by the name of its value."""


def add_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the options of a command: a line each, its name and its words two spaces apart.

    NAME  NAME?  NAME*  NAME+     one, perhaps one, any number, one or more
    --flag                        on or off
    --name N  --name N=8          a number (KINDS), and what it is unless typed
    --name a|b|c  --name WORD+    one of these; one or more
    --name REST...                all that follows
    # title -- words               begins a part of the help; "examples:" ends it
    """
    options, examples, rest = text.strip().partition("\nexamples:")
    parser.epilog = (examples + rest).strip()
    into: Any = parser
    for block in filter(None, re.split(r"\n(?=\S)", options.strip())):
        names, _, words = block.partition("  ")
        if names.startswith("# "):
            title, _, words = " ".join(block[2:].split()).partition(" -- ")
            into = parser.add_argument_group(title, words or None)
            continue
        flags = [name for name in names.split() if name.startswith("--")]
        settings: dict[str, Any] = {"help": " ".join(words.split())}
        if value := "".join(name for name in names.split() if name not in flags):
            found = re.fullmatch(r"(.*?)(\.\.\.|[?*+]?)(?:=([^A-Z]\S*))?", value)
            name, many, default = found.groups() if found else (value, "", None)
            settings |= {"nargs": many or None, "default": default, "metavar": name}
            settings["type"] = kind = whole if name[0].isdigit() else KINDS.get(name, str)
            if "|" in name:
                settings |= {"metavar": None, "choices": [kind(each) for each in name.split("|")]}
            if many == "+" and flags:
                settings |= {"action": "extend", "default": []}
        else:
            settings["action"] = "store_true"
        into.add_argument(*(flags or [name.lower()]), **settings)


def check_figure(name: str) -> None:
    """Refuse a figure that could not be written, before the work begins."""
    if Path(name).suffix.lower() != ".png":
        raise ConfigError(f"a figure is written as a .png; got {short(name)}")
    if not (folder := Path(name).parent).is_dir():
        raise ConfigError(f"there is no folder {short(str(folder))} for a figure; make it")
    with needed_for("a figure"):
        import matplotlib  # noqa: F401


def numbers(text: str, what: str, kind: Callable[[str], Any] = float) -> list[Any]:
    """Numbers between commas."""
    try:
        return [kind(word) for word in text.split(",")]
    except (ValueError, ArithmeticError):
        raise ConfigError(
            f"{what} numbers between commas, such as 1,1,2; got {short(text)}"
        ) from None
