"""Modules that load when they are first named: `td.lab.plots` needs no import of its own."""

from collections.abc import Callable, Iterable
from importlib import import_module

from tiledask.extras import needed_for

__all__ = ["submodules"]


def submodules(
    package: str, path: Iterable[str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, by which its modules are attributes.

    >>> get, names = submodules("tiledask.lab", import_module("tiledask.lab").__path__)
    >>> get("claim").Claim.__name__, "plots" in names()
    ('Claim', True)
    """

    def names() -> list[str]:
        from pkgutil import iter_modules

        return sorted(found.name for found in iter_modules(path) if found.name != "__main__")

    def get(name: str) -> object:
        if name.startswith("_") or name not in names():
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(names())}")
        with needed_for(f"{package}.{name}"):
            return import_module(f"{package}.{name}")

    return get, names
