"""Figures as files, checked before the work begins; answers that were typed or stand in files."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError, short
from tiledask.extras import needs

if TYPE_CHECKING:
    from tiledask.lab.plots.picture import Picture

__all__ = ["answer_of", "check_figure", "save_figure"]


def check_figure(path: str | os.PathLike[str]) -> None:
    """ConfigError if the name of ``path`` is no PNG's, or if there is no such folder;
    ModuleNotFoundError without matplotlib. It is quick: ask before the work begins."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ConfigError(f"a figure is written as a .png; got {short(str(path))}")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {short(str(path.parent))} for a figure; make it")
    if not find_spec("matplotlib"):
        raise needs("a figure", ModuleNotFoundError(name="matplotlib"))


def save_figure(figure: "Picture", path: str | os.PathLike[str]) -> None:
    """Write ``figure`` to ``path``; ConfigError as in `check_figure`."""
    check_figure(path)
    Path(path).write_bytes(figure.to_png())


def answer_of(word: str) -> str:
    """The answer itself, from a file or standard input ("-") where the word names one."""
    if word == "-":
        return sys.stdin.read()
    try:
        return Path(word).read_text(encoding="utf-8")
    except OSError:  # no file, or too long for a name
        return word
