"""The architecture: imports point down, heavy libraries stay where they belong.

    __main__       the cli
    cli            anything
    lab            what people look at; heavy libraries inside functions only where asked
    distributed -> tile, plan
    tile  ->       plan
    plan  ->       the standard library and NumPy; Numba for what is large, OR-tools for the best
    errors, extras

The rules are read from the source by `ast`, and then a fresh process imports the modules.

"""

import ast
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from oracles.finished import ROOT, python

STDLIB = sys.stdlib_module_names

BELOW = {
    "errors": set(),
    "extras": set(),
    "plan": {"errors", "extras"},
    "tile": {"errors", "extras", "plan"},
    "distributed": {"errors", "extras", "plan", "tile"},
    "lab": {"errors", "extras", "plan", "tile", "distributed"},
    "cli": {"errors", "extras", "plan", "tile", "distributed", "lab"},
    "__main__": {"cli"},
}
"""What each layer may import besides itself."""

AT_IMPORT = {"": set(), "errors": set(), "extras": set(), "plan": {"numpy"}, "tile": {"numpy"}}
"""The only outside packages these layers may import when they are imported themselves."""
INSIDE_FUNCTIONS = {
    "": set(),
    "errors": set(),
    "extras": set(),
    "plan": {"numpy", "ortools", "pandas"},
}
"""The only outside packages these layers may import at all."""
NEVER = {
    "tile": {"dask", "distributed", "dask_cuda", "bokeh", "matplotlib", "IPython"},
    "distributed": {"matplotlib", "IPython"},
}
CUPY = {"cupy", "cupyx", "cupy_backends"}
CUPY_HOME = "tile/backend.py"
HEAVY = ("dask", "distributed", "cupy", "matplotlib", "bokeh", "pandas", "ortools")


class Import(NamedTuple):
    module: str
    """Absolute dotted name."""
    lazy: bool
    """Inside a function or under TYPE_CHECKING: not executed when the file is imported."""
    line: int


class Read(NamedTuple):
    """What a file says."""

    imports: list[Import]
    """Every import, ``from a import b`` as a.b, import_module("a") included."""
    classes: list[str]
    """Names of the public ones."""


def read(path: Path, root: Path) -> Read:
    return _read(path.read_text("utf-8"), path.relative_to(root).parent.parts)


@cache
def _read(text: str, package: tuple[str, ...]) -> Read:
    found = Read([], [])
    stack = [(node, False) for node in ast.parse(text).body]
    while stack:
        node, lazy = stack.pop()
        found.imports.extend(Import(name, lazy, node.lineno) for name in named(node, package))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.classes.append(node.name)
        for child in ast.iter_child_nodes(node):
            stack.append((child, lazy or defers(node, child)))
    return found


def defers(node: ast.AST, child: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return True
    return (
        isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING" and child in node.body
    )


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


def violations(package: Path) -> list[str]:
    """Every broken rule under the folder ``package`` (the one called tiledask), by file and line.

    A sentence each, for example "plan/x.py:3 plan imports tile (tiledask.tile.backend)".
    """
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        layer = where.parts[0].removesuffix(".py")
        layer = "" if layer == "__init__" else layer
        if layer not in (*BELOW, ""):
            found.append(f"{where} belongs to no layer")
            continue
        for what in read(path, package.parent).imports:
            broken = inner(layer, what) or outer(layer, where.as_posix(), what)
            if broken:
                found.append(f"{where}:{what.line} {broken} ({what.module})")
    return found


def inner(layer: str, what: Import) -> str:
    """The broken rule if an import of tiledask's own points up; the package points nowhere."""
    top, target, *_ = [*what.module.split("."), ""]
    if top != "tiledask" or target == "__version__":
        return ""
    if target not in BELOW:  # the package itself gives every public name: for the top only
        return "" if layer in ("lab", "cli") else f"{layer or '__init__'} imports td"
    if layer == target or target in BELOW.get(layer, {"extras"}):
        return ""
    return f"{layer or '__init__'} imports {target}"


def outer(layer: str, where: str, what: Import) -> str:
    """The broken rule if an outside package is imported where it does not belong."""
    top = what.module.split(".")[0]
    if top in STDLIB or top == "tiledask":
        return ""
    if top in CUPY and (where != CUPY_HOME or not what.lazy):
        return f"CuPy outside a function of {CUPY_HOME}"
    if top in NEVER.get(layer, set()):
        return f"{layer} never imports {top}"
    if not what.lazy and layer in AT_IMPORT and top not in AT_IMPORT[layer]:
        return f"{layer or '__init__'} imports {top} at import time"
    if layer in INSIDE_FUNCTIONS and top not in INSIDE_FUNCTIONS[layer]:
        return f"{layer or '__init__'} imports {top}"
    return ""


def loaded(code: str) -> list[str]:
    """The heavy packages in sys.modules after a fresh process ran ``code``."""
    report = f"import sys; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = python("-c", f"{code}\n{report}", check=True)
    return done.stdout.split()


def modules(layer: str) -> list[str]:
    files = (ROOT / "tiledask" / layer).rglob("*.py")
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files]
    return sorted(name.removesuffix(".__init__") for name in names)


# -- the package ---------------------------------------------------------------------------------


@pytest.mark.long
def test_imports_point_down():
    assert violations(ROOT / "tiledask") == []
    found = {i.module for i in read(ROOT / "tiledask/plan/ledger.py", ROOT).imports}
    assert {"dataclasses.dataclass", "tiledask.plan.units.format_bytes"} <= found


ROOMS = {
    "choosing": {"inputs", "fitting", "timing", "pipelines", "program", "frameworks"},
    "frameworks": {"inputs", "pipelines"},
    "fitting": {"inputs", "timing", "pipelines"},
    "timing": {"inputs", "pipelines", "diagnosis", "collectives"},
    "diagnosis": {"pipelines", "splitting"},
    "inputs": {"pipelines"},
    "program": {"pipelines", "products", "collectives", "inputs", "timing"},
    "pipelines": set(),
    "splitting": set(),
    "products": set(),
    "collectives": {"products"},
}
"""What each folder of plan may import of the others."""


@pytest.mark.long
def test_the_rooms_of_plan_import_as_they_are_drawn():
    folder = ROOT / "tiledask" / "plan"
    assert {path.name for path in folder.iterdir() if (path / "__init__.py").exists()} == set(ROOMS)
    for room, allowed in ROOMS.items():
        for path in (folder / room).glob("*.py"):
            used = {
                i.module.split(".")[2]
                for i in read(path, ROOT).imports
                if i.module.startswith("tiledask.plan.")
            }
            assert used & set(ROOMS) <= allowed | {room}, path


def circle(package: Path) -> list[str]:
    """Modules that import each other in turn, also in functions or for types."""
    files = {}
    for path in package.rglob("*.py"):
        dotted = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        files[dotted.removesuffix(".__init__")] = path
    graph = {}
    for module, path in files.items():
        names = [what.module for what in read(path, package.parent).imports]
        homes = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = homes & files.keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def crowded(package: Path, most: int = 15) -> list[str]:
    """Folders with more files than a reader takes in at a glance."""
    files = Counter(path.parent for path in package.rglob("*.py"))
    return [f"{folder}: {n} files" for folder, n in files.items() if n > most]


def homonyms(package: Path) -> list[str]:
    """Public classes whose name stands for two."""
    names = Counter(
        name for path in package.rglob("*.py") for name in read(path, package.parent).classes
    )
    return [name for name, n in names.items() if n > 1]


@pytest.mark.long
def test_no_circle_no_crowd_and_no_homonym():
    package = ROOT / "tiledask"
    assert circle(package) == []
    assert crowded(package) == []
    assert homonyms(package) == []


@pytest.mark.parametrize(
    "late", ["    from tiledask.plan.b import B", "    import tiledask.plan.b as b\n    b.B"]
)
def test_a_circle_a_crowd_and_a_homonym_are_seen(tmp_path, late):
    write(tmp_path, "plan/a.py", f"class A: ...\ndef f():\n{late}")
    package = write(tmp_path, "plan/b.py", "from tiledask.plan.a import A\nclass B: ...")
    assert set(circle(package)) == {"tiledask.plan.a", "tiledask.plan.b"}
    assert homonyms(package) == crowded(package) == []
    write(tmp_path, "plan/a.py", "class B: ...")
    assert circle(package) == []
    assert homonyms(package) == ["B"]
    for n in range(14):
        write(tmp_path, f"plan/n{n}.py", "")
    assert crowded(package) == [f"{package / 'plan'}: 16 files"]


@pytest.mark.long
def test_the_names_of_the_package_load_nothing_heavy():
    lists = "td.__all__, dir(td), dir(td.lab), dir(td.distributed), td.errors"
    assert loaded(f"import tiledask as td; {lists}") == []


@pytest.mark.long
def test_the_package_runs_as_a_program():
    done = python("-m", "tiledask", "partition", "24", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "layers of each device: 6, 6, 6, 6" in done.stdout


@pytest.mark.long
def test_a_plan_loads_neither_a_compiler_nor_figures_nor_the_makers_of_programs():
    ask = "import tiledask.cli as c; c.main('plan deepseek-v3 2048xH100 8192 --json'.split())"
    report = "import sys; print(*sys.modules, file=sys.stderr)"
    there = set(python("-c", f"{ask}; {report}", check=True).stderr.split())
    assert there.isdisjoint({*HEAVY, "scipy", "tiledask.tile", "tiledask.lab.plots"})
    assert not [name for name in there if name.startswith("tiledask.plan.program.")]


@pytest.mark.long
def test_plan_tile_and_the_doctor_before_it_is_asked_load_nothing_heavy():
    names = [*modules("plan"), *modules("tile"), "tiledask.lab.doctor"]
    assert loaded(f"import {', '.join(names)}") == []
    assert loaded("import pandas") == ["pandas"], "heavy packages are noticed"


# -- the checker ---------------------------------------------------------------------------------

PLANTED = [
    ("plan/bad.py", "from tiledask.distributed.mesh import Mesh", "plan imports distributed"),
    ("plan/bad.py", "from tiledask import distributed", "plan imports distributed"),
    ("plan/bad.py", "from ..distributed import cluster", "plan imports distributed"),
    ("plan/bad.py", "def f():\n    import tiledask.tile", "plan imports tile"),
    ("plan/bad.py", "import tiledask as td", "plan imports td"),
    ("plan/bad.py", "from tiledask import matmul", "plan imports td"),
    ("plan/bad.py", "import pandas", "plan imports pandas at import time"),
    ("plan/bad.py", "try:\n    import scipy\nexcept ImportError:\n    pass", "plan imports scipy"),
    ("plan/bad.py", "class A:\n    import pandas", "plan imports pandas at import time"),
    ("plan/bad.py", "def f():\n    import dask", "plan imports dask"),
    ("tile/bad.py", "import cupy as cp", "CuPy outside"),
    ("tile/bad.py", "def f():\n    from cupy import cuda", "CuPy outside"),
    ("tile/backend.py", "import cupy", "CuPy outside a function"),
    ("tile/bad.py", "from importlib import import_module\nimport_module('cupyx')", "CuPy outside"),
    ("tile/bad.py", "def f():\n    import dask.array", "tile never imports dask"),
    ("tile/bad.py", "from tiledask.distributed import mesh", "tile imports distributed"),
    ("tile/bad.py", "import scipy", "tile imports scipy at import time"),
    ("distributed/bad.py", "from tiledask.lab import table", "distributed imports lab"),
    ("distributed/bad.py", "if TYPE_CHECKING:\n    import tiledask.lab.x", "imports lab"),
    ("distributed/bad.py", "async def f():\n    import cupy", "CuPy outside"),
    ("distributed/bad.py", "def f():\n    import matplotlib as m", "distributed never imports"),
    ("lab/bad.py", "import tiledask.cli", "lab imports cli"),
    ("lab/bad.py", "f = lambda: __import__('cupy')", "CuPy outside"),
    ("errors.py", "import numpy", "errors imports numpy"),
    ("extras.py", "from tiledask.errors import ConfigError", "extras imports errors"),
    ("__init__.py", "from tiledask.plan import units", "__init__ imports plan"),
    ("__init__.py", "import numpy", "__init__ imports numpy"),
    ("extra/x.py", "", "belongs to no layer"),
    ("plan/good.py", "import numpy as np\nfrom tiledask.errors import ConfigError", ""),
    ("plan/good.py", "from tiledask.plan.units import format_bytes\nfrom . import units", ""),
    ("plan/good.py", "def f():\n    import pandas as pd", ""),
    ("plan/good.py", "if TYPE_CHECKING:\n    import pandas as pd", ""),
    ("tile/backend.py", "def f():\n    import cupy", ""),
    ("distributed/good.py", "import dask, tiledask.plan\nfrom tiledask.tile.backend import p", ""),
    ("lab/good.py", "import tiledask as td\nfrom tiledask import matmul, plan, distributed", ""),
    ("cli.py", "import tiledask.lab.doctor\nfrom tiledask import __version__", ""),
    ("distributed/good.py", "from tiledask import __version__", ""),
]
"""Where, what stands there, and the rule that it breaks; none: it is allowed."""


def write(root: Path, where: str, code: str) -> Path:
    path = root / "tiledask" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    return root / "tiledask"


@pytest.mark.parametrize(("where", "code", "rule"), PLANTED)
def test_a_planted_violation_is_found_and_nothing_else(tmp_path, where, code, rule):
    found = violations(write(tmp_path, where, code))
    assert len(found) == bool(rule), found
    assert all(said.startswith(where) and rule in said for said in found)


def test_nobody_waits_for_a_simple_queue_with_a_time_limit():
    """In Python 3.11 such a wait may never end: `distributed.transport.mailbox.silent_bell`."""
    for path in (ROOT / "tiledask").rglob("*.py"):
        text = path.read_text()
        assert "SimpleQueue()" not in text or ".get(timeout" not in text, path
