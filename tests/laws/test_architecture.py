"""The architecture: imports point down, heavy libraries stay where they belong.

    cli, __main__ -> anything
    lab           -> distributed, tile, plan
    distributed   -> tile, plan
    tile          -> plan
    plan          -> the standard library and NumPy; others inside functions
    errors, extras

Read from the source by `ast`; then a fresh process imports the modules.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from oracles.finished import ROOT, python

PACKAGE = ROOT / "tiledask"
BASE = {"errors", "extras", "files"}
BELOW = {
    "plan": BASE,
    "tile": {*BASE, "plan"},
    "distributed": {*BASE, "plan", "tile"},
    "lab": {*BASE, "plan", "tile", "distributed"},
    "cli": {*BASE, "plan", "tile", "distributed", "lab"},
    "__main__": {"cli"},
    **{key: {"extras"} for key in BASE},
    "": {"extras"},
}
"""What each layer may import besides itself; "" is the package's own __init__."""
AT_IMPORT = {"plan": {"numpy"}, "tile": {"numpy"}, "": set(), **{key: set() for key in BASE}}
"""The outside packages that these layers may import when they are imported themselves."""
NEVER = {
    "plan": {"dask", "distributed", "bokeh", "matplotlib", "IPython", "scipy"},
    "tile": {"dask", "distributed", "dask_cuda", "bokeh", "matplotlib", "IPython"},
    "distributed": {"matplotlib", "IPython"},
}
CUPY, CUPY_HOME = {"cupy", "cupyx", "cupy_backends"}, "tile/backend.py"
SHOWN = ("tiledask.lab.doctor", "tiledask.lab.plots", "tiledask.lab.check")
HEAVY = ("dask", "distributed", "cupy", "matplotlib", "bokeh", "pandas", "numba", "ortools")


class Import(NamedTuple):
    module: str
    """Absolute dotted name."""
    lazy: bool
    """Inside a function or under TYPE_CHECKING: not executed when the file is imported."""


@cache
def imports(path: Path, root: Path = ROOT) -> list[Import]:
    """Every import of a file, ``from a import b`` as a.b, import_module("a") included."""
    package, body = path.relative_to(root).parent.parts, ast.parse(path.read_text("utf-8")).body
    found, stack = [], [(node, False) for node in body]
    while stack:
        node, lazy = stack.pop()
        found += [Import(name, lazy) for name in named(node, package)]
        for child in ast.iter_child_nodes(node):
            stack.append((child, lazy or defers(node, child)))
    return found


def defers(node: ast.AST, child: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return last_name(node.test) == "TYPE_CHECKING" and child in node.body
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def last_name(node: ast.AST) -> str:
    """ "b" of b and of a.b."""
    return getattr(node, "attr", getattr(node, "id", ""))


def named(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        up = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join([*up, *filter(None, [node.module])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and last_name(node.func) in ("import_module", "__import__"):
        return [str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)]
    return []


def violations(package: Path) -> Iterator[str]:
    """Every broken rule under the folder ``package``, such as "plan/x.py: plan imports tile"."""
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        layer = where.split("/")[0].removesuffix(".py").replace("__init__", "")
        for what in imports(path, package.parent):
            if broken := rule(layer, where, what):
                yield f"{where}: {broken}"


def rule(layer: str, where: str, what: Import) -> str:
    top, target, *_ = [*what.module.split("."), ""]
    if top == "tiledask":
        if not target or target not in BELOW:  # td gives every public name: for the top only
            return "imports td" * (layer not in ("lab", "cli") and target != "__version__")
        return f"imports {target}" * (target != layer and target not in BELOW.get(layer, set()))
    if top in CUPY:
        return "CuPy outside a function of the backend" * (where != CUPY_HOME or not what.lazy)
    if top in NEVER.get(layer, ()):
        return f"{layer} never imports {top}"
    allowed = sys.stdlib_module_names | AT_IMPORT.get(layer, set())
    early = not what.lazy and layer in AT_IMPORT and top not in allowed
    return f"imports {top} at import time" * early


def test_imports_point_down():
    assert list(violations(PACKAGE)) == []
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(BELOW)


def modules(layer: str = "") -> dict[str, Path]:
    """Dotted name -> file."""
    files = sorted((PACKAGE / layer).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, files, strict=True)}


def test_no_circle_no_crowd_and_no_homonym():
    there = modules()
    graph = {}
    for module, path in there.items():
        names = [what.module for what in imports(path)]
        homes = {name if name in there else name.rpartition(".")[0] for name in names}
        graph[module] = homes & there.keys() - {module}
    TopologicalSorter(graph).prepare()  # or it names those that import each other
    assert max(Counter(path.parent for path in there.values()).values()) <= 15
    texts = "".join(path.read_text("utf-8") for path in there.values())
    classes = Counter(re.findall(r"^ *class ([^_]\w*)[(:]", texts, re.M))
    assert [name for name, n in classes.items() if n > 1] == []


def loaded(code: str) -> list[str]:
    """The heavy packages in sys.modules after a fresh process ran ``code``."""
    report = f"import sys; print('loaded', *(m for m in {HEAVY!r} if m in sys.modules))"
    return python("-c", f"{code}\n{report}", check=True).stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    "code",
    [
        "import tiledask as td; td.__all__, dir(td), td.errors",
        "import tiledask.cli as c; c.main('plan deepseek-v3 2048xH100 8192 --json'.split())",
        f"import {', '.join([*modules('plan'), *modules('tile'), *SHOWN])}",
    ],
    ids=("td", "plan", "modules"),
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    assert loaded(code) == []


def test_a_scheduler_draws_the_page_without_matplotlib():
    assert "matplotlib" not in loaded("import tiledask.lab.dashboard.board")


def test_nobody_waits_for_a_simple_queue_with_a_time_limit():
    """In Python 3.11 such a wait may never end."""
    texts = [path.read_text() for path in modules().values()]
    assert not [t for t in texts if "SimpleQueue()" in t and ".get(timeout" in t]
