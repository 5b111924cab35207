"""tiledask: split large models over devices; predict, simulate and run it on Dask.

A public name stands once, in ``__init__.pyi``, for editors and type checkers as for this module;
it is loaded when it is first used, so that ``import tiledask`` brings in neither Dask nor CuPy nor
matplotlib nor Bokeh.

formulas     closed forms: idle time, memory, bytes of a product
collectives  who sends which chunks to whom, and which heads a rank holds
tile         one device: kernels, layers, optimizers
stages       pipeline stages that really compute
tensor       layers split over ranks
convolution  convolutions split over ranks, and LeNet
training     what td.train is made of, to look into
plots        figures
tasks        puzzles and exercises that judge answers
studies      comparisons that are worked out or run at one call
precision    half precision, and how far two losses may drift apart
doctor       what this machine has and lacks
accuracy     published numbers, by their id
errors       what is raised
plan, distributed, lab  the rest, room by room
"""

import re
from importlib import import_module

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """Public name -> the module that it is imported from in ``__init__.pyi``, where it stands."""
    with open(__file__.rpartition(".")[0] + ".pyi", encoding="utf-8") as stub:
        lines = re.findall(r"^from (\S+) import \S+ as (\S+)$", stub.read(), re.MULTILINE)
    return {name: home for home, name in lines}


_HOME = _homes()
__all__ = sorted(_HOME)


def _load(name: str) -> object:
    """The value of a public name: of its home, or a module there."""
    home = _HOME[name]
    try:
        if home != "tiledask" and hasattr(module := import_module(home), name):
            return getattr(module, name)
        return import_module(f"{home}.{name}")
    except ModuleNotFoundError as error:
        from tiledask.extras import needs

        raise needs(f"td.{name}", error) from None


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"tiledask has no {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = _load(name)
    return value


def __dir__() -> list[str]:
    return __all__
