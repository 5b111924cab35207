"""Figures as files, and the versions of the libraries behind results."""

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError, short
from tiledask.extras import needs

if TYPE_CHECKING:
    from tiledask.lab.plots.primitives import Figure

__all__ = ["FORMATS", "check_figure", "library_versions", "save_figure"]

_PACKAGES = ("tiledask", "dask", "distributed", "numpy", "cupy-cuda13x", "dask-cuda", "matplotlib")


def library_versions() -> dict[str, str]:
    """The versions of Python and of the libraries installed that decide the results."""
    found = {"Python": python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


_UNDATED = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
FORMATS = tuple(_UNDATED)
"""What figures are written as: the ends of their files' names."""


def check_figure(path: str | os.PathLike[str]) -> str:
    """The format that the name of ``path`` says; a ConfigError if it is none of FORMATS, or if
    there is no such folder; ModuleNotFoundError without matplotlib. It loads nothing and is quick:
    ask before the work begins."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        *others, last = (f".{name}" for name in FORMATS)
        raise ConfigError(
            f"figures are written as {', '.join(others)} or {last}, by the end of the name; got "
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

    with matplotlib.rc_context({"svg.hashsalt": "tiledask", "svg.fonttype": "none"}):
        figure.savefig(path, format=kind, facecolor="white", metadata=_UNDATED[kind])
