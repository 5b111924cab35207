"""Pages of the reference: one for td's own names, one for each of its rooms."""

import inspect
import re
from types import ModuleType
from typing import Any

import tiledask as td

__all__ = ["defined", "pages"]

_ROW = re.compile(r"(\w[\w ,.*]*?) {2,}(\S.*)")
"""Of a docstring's table: names, and in the next column what they are."""


def pages() -> dict[str, str]:
    """Name of a page -> its reStructuredText; "index" lists the others."""
    rooms = {name: getattr(td, name) for name in td.__all__}
    rooms = {name: room for name, room in rooms.items() if isinstance(room, ModuleType)}
    own = [name for name in td.__all__ if name not in rooms]
    found, shown = {}, set[int]()
    for name, room in {"": td, **rooms}.items():
        # what td has itself is there, and not in its room too
        names = [n for n in (_names(room) if name else own) if id(getattr(room, n)) not in shown]
        shown.update(id(getattr(room, n)) for n in names)
        found[name or "td"] = _page(f"td.{name}".rstrip("."), room, names)
    entries = "\n".join(f"   {name}" for name in found)
    head = "Reference\n=========\n\nAll that ``import tiledask as td`` offers.\n\n"
    found["index"] = f"{head}.. toctree::\n   :maxdepth: 1\n\n{entries}\n"
    return found


def _names(room: ModuleType) -> list[str]:
    names = getattr(room, "__all__", ())
    return [name for name in names if not isinstance(getattr(room, name), ModuleType)]


def _page(title: str, room: ModuleType, names: list[str]) -> str:
    words = (inspect.getdoc(room) or "").partition("\n")[0]
    module = f"tiledask{title.removeprefix('td')}"
    entries = (_entry(f"{module}.{name}", getattr(room, name)) for name in names)
    return "\n".join((title, "=" * len(title), "", words, "", *entries))


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    else:
        # what is neither has no words of its own: its type's would be shown
        kind = "autofunction" if callable(value) else "py:data"
    return f".. {kind}:: {name}\n"


def defined(lines: list[str]) -> list[str]:
    """A docstring's ``lines``, its tables of names as lists of definitions.

    >>> defined(["layers   costs of them,", "         from the first", "", "More."])
    ['layers', '    costs of them,', '    from the first', '', 'More.']
    """
    made, inside = [], False
    for line in lines:
        if row := _ROW.fullmatch(line):
            if inside and made[-1]:
                made.append("")
            made += [row[1], f"    {row[2]}"]
            inside = True
        elif inside and line.startswith("  "):
            made.append(f"    {line.strip()}")
        else:
            if inside and line and made[-1]:
                made.append("")
            inside = inside and not line
            made.append(line)
    return made
