"""Which extra of the package brings what is not installed, said in one way everywhere.

The base install has NumPy and rich; pyproject.toml says what each extra is for.
"""

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["EXTRAS", "bring", "install", "lacking", "needed_for", "needs"]

EXTRAS = {
    "run": "dask distributed ml_dtypes psutil scipy threadpoolctl tornado",
    "plots": "bokeh matplotlib pandas",
    "files": "zarr numcodecs",
    "optimum": "ortools",
    "lab": "anywidget ipykernel IPython ipywidgets jupyter_server jupyterlab jupyterlab_server "
    "nbclient nbconvert nbformat traitlets",
    "gpu": "cupy cuda dask_cuda rmm pynvml",
    "tls": "cryptography",
}
"""The modules that each extra brings, of those that are imported here."""


def lacking(error: ModuleNotFoundError) -> str:
    """The package that is not installed; raises ``error`` again if it is a module of our own."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "tiledask"):
        raise error
    return package


def install(extra: str) -> str:
    """The command that brings an extra, for a checkout or for an installed package."""
    # whether the package lies in a checkout, with its lists of versions beside it
    root = Path(__file__).resolve().parents[1]
    if all((root / name).is_file() for name in ("pyproject.toml", "constraints.txt")):
        return f"pip install --constraint constraints.txt -e '.[{extra}]'"
    return f"pip install 'tiledask[{extra}]'"


def bring(package: str) -> str:
    """The command that brings a package."""
    extras = [extra for extra, packages in EXTRAS.items() if package in packages.split()]
    return install(extras[0]) if extras else f"pip install {package}"


def needs(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """``error`` in words: what needs which package, and the command that brings it.

    >>> str(needs("a frame", ModuleNotFoundError(name="pandas"))).partition(":")[0]
    'a frame needs pandas, which is not installed'
    """
    package = lacking(error)
    said = f"{what} needs {package}, which is not installed: {bring(package)}"
    if package in sys.stdlib_module_names:  # fcntl, resource: Python's own, but not on Windows
        said = (
            f"{what} needs Python's {package}, which {platform.system()} does not have: use Linux; "
            f"planning, schedules, the simulator and puzzles work here too"
        )
    return ModuleNotFoundError(said, name=error.name)


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Imports of which one that is missing is an error in words."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise needs(what, error) from None
