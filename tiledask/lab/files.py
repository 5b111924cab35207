"""Figures as files, checked before the work begins; answers that were typed or stand in files."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError, short
from tiledask.extras import needs

if TYPE_CHECKING:
    from tiledask.lab.plots.primitives import Figure

__all__ = ["answer_of", "check_figure", "save_figure"]


def check_figure(path: str | os.PathLike[str]) -> str:
    """The format that the name of ``path`` says; a ConfigError if it is none of these, or if
    there is no such folder; ModuleNotFoundError without matplotlib. It loads nothing and is quick:
    ask before the work begins."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(
            f"figures are written as .png, .svg or .pdf, by the end of the name; got "
            f"{short(str(path))}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {short(str(path.parent))} for a figure; make it")
    if not find_spec("matplotlib"):
        raise needs("a figure", ModuleNotFoundError(name="matplotlib"))
    return kind


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write ``figure`` to ``path``, as what its name says; ConfigError as in `check_figure`."""
    kind = check_figure(path)
    if kind == "png" and hasattr(figure, "to_png"):
        Path(path).write_bytes(figure.to_png())
        return
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, format=kind, facecolor="white")


def answer_of(word: str) -> str:
    """The answer itself, from a file or standard input ("-") where the word names one."""
    if word == "-":
        return sys.stdin.read()
    try:
        return Path(word).read_text(encoding="utf-8")
    except OSError:  # no file, or too long for a name
        return word
