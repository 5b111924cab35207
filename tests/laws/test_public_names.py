"""What td gives: the table that loads it, the stub that editors read, the walkthroughs, the wheel.

tiledask/__init__.py   name -> module          loaded when it is first used
tiledask/__init__.pyi  the same, as imports    read by editors and type checkers
nbs/*.ipynb, README    td.name.name            every one of them is there
the wheel              all of it but what is for a checkout

Of the modules that only gather names: `tiledask.plan.formulas`.
"""

import ast
import json
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from oracles.finished import ROOT, python

import tiledask as td

"""Submodules whose names are their modules."""


# -- the table and the stub ----------------------------------------------------------------------


def homes(stub: str) -> dict[str, str]:
    """Public name -> what it is, dotted, of a stub in which every line is one import."""
    found = {}
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom):
            for each in node.names:
                assert each.asname, f"{each.name} is not public in a stub without `as {each.name}`"
                found[each.asname] = f"{node.module}.{each.name}"
    return found


def test_the_stub_says_what_the_table_says():
    table = {name: f"{home}.{name}" for name, home in td._HOME.items()} | td._MODULES
    said = homes((ROOT / "tiledask/__init__.pyi").read_text("utf-8"))
    assert said == table, "write the stub's line as `from HOME import NAME as NAME`"


def test_every_public_name_is_there_without_a_warning_at_home_where_the_table_says():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert td.distributed.__name__ == "tiledask.distributed"
    for name in td.__all__:
        value = getattr(td, name)
        if isinstance(value, ModuleType):
            assert value.__name__ == td._MODULES[name]
        elif hasattr(value, "__module__"):
            assert value.__module__.startswith(td._HOME[name].rpartition(".")[0]), name


# -- who uses them -------------------------------------------------------------------------------


def resolve(name: str) -> object:
    """What td.``name`` is, or the value that it is of; AttributeError if it isn't there."""
    value: object = td
    for part in name.split("."):
        if not isinstance(value, ModuleType):
            break
        value = getattr(value, part)
    return value


def used(source: str) -> Iterator[str]:
    """The dotted names behind td in Python code, those behind `X = td.name` too."""
    short = {"td": ""}
    nodes = list(ast.walk(ast.parse(source)))
    for _ in range(2):
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                whole = dotted(node.value, short)
                if whole and isinstance(resolve(whole), ModuleType):
                    short[node.targets[0].id] = whole
    for node in nodes:
        whole = dotted(node, short)
        if whole:
            yield whole


def dotted(node: ast.AST, short: dict[str, str]) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in short:
        return ""
    return ".".join([*filter(None, [short[node.id]]), *reversed(parts)])


def notebooks() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "nbs").glob("[0-9]*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        yield path.name, "\n\n".join(code)


@pytest.mark.long
def test_every_name_that_a_walkthrough_uses_is_there():
    names = {name for _, source in notebooks() for name in used(source)}
    for name in names:
        resolve(name)
    assert len(names) > 150


def test_a_name_that_is_not_there_is_found():
    source = "import tiledask as td\nT = td.tensor\nT.column_linear(td.plots.gantt, td.Layout.x)"
    assert {"tensor", "tensor.column_linear", "plots.gantt", "Layout.x"} <= set(used(source))
    for wrong in ("plotz", "plots.gant", "tensor.colum"):
        with pytest.raises(AttributeError, match=wrong.rpartition(".")[2]):
            resolve(wrong)


# -- what is built -------------------------------------------------------------------------------


def built(builder) -> set[str]:
    return {each.distribution_path for each in builder(str(ROOT)).recurse_included_files()}


def test_the_wheel_has_the_package_its_data_and_its_types_and_nothing_for_a_checkout():
    wheel = built(WheelBuilder)
    assert {"tiledask/__init__.pyi", "tiledask/py.typed", "tiledask/plan/formulas.py"} <= wheel
    assert any(path.startswith("tiledask/_data/models/") for path in wheel)
    for folder in (home.replace(".", "/") for home in td._MODULES.values()):
        assert {f"{folder}/__init__.py", f"{folder}.py"} & wheel, folder
    assert (ROOT / "tiledask/lab/gpu/__init__.py").exists()
    assert not {path for path in wheel if path.startswith("tiledask/lab/gpu/")}
    assert not {path for path in wheel if path.partition("/")[0] != "tiledask"}


@pytest.mark.long
def test_nothing_in_the_wheel_imports_what_is_left_out():
    wheel = {path for path in built(WheelBuilder) if path.endswith(".py")}
    gone = {str(p.relative_to(ROOT)) for p in (ROOT / "tiledask").rglob("*.py")} - wheel
    assert len(gone) > 10
    gone = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in gone}
    for path in wheel:
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                asked = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                assert not asked & gone, path
            elif isinstance(node, ast.Import):
                assert not {each.name for each in node.names} & gone, path


def test_the_licence_is_named_and_goes_along():
    builder = WheelBuilder(str(ROOT))
    core = builder.metadata.core
    assert core.license_expression == "BSD-3-Clause"
    assert core.license_files == ["LICENSE"]
    assert "the tiledask authors" in (ROOT / "LICENSE").read_text("utf-8")
    assert core.authors == [{"name": "the tiledask authors"}]
    assert "Typing :: Typed" in core.classifiers  # one that is not known raises ValueError
    assert builder.metadata.version == td.__version__
    sdist = built(SdistBuilder)
    assert {"LICENSE", "Makefile", "constraints.txt", "environment.yml"} <= sdist


# -- type checkers -------------------------------------------------------------------------------


@pytest.mark.slow
def test_mypy_strict_accepts_a_script_that_uses_the_public_names(tmp_path):
    """Minutes, unless `make lint` has read NumPy, pandas and the package already."""
    assert checked(tmp_path, SCRIPT) == ""
    assert "Module has no attribute" in checked(tmp_path, "import tiledask as td\ntd.plotz\n")
    wrong = SCRIPT.replace("verdict: str", "verdict: int")
    assert "Incompatible types in assignment" in checked(tmp_path, wrong)


def checked(folder, source: str) -> str:
    """What mypy says of a script, as strict with it as with the package; empty if nothing."""
    (folder / "script.py").write_text(source)
    words = "-m", "mypy", "--strict", "--no-error-summary", folder / "script.py"
    done = python(*words, timeout=600)
    assert not done.stderr, done.stderr
    return done.stdout


SCRIPT = """
from collections.abc import Mapping

import numpy as np

import tiledask as td


def plan(model: td.Model, layout: td.Layout) -> str:
    fit = td.fits(model, layout, td.load_cluster("8xA100-40GB"))
    verdict: str = fit.verdict
    memory: int = td.estimate_memory(model, layout).peak
    step: float = td.estimate_step(model, layout, "8xA100-40GB").total
    return f"{verdict} {memory} {step} {td.search(model, '8xA100-40GB', 64).best}"


def idle(name: str) -> float:
    order: td.Schedule = td.schedule(name, stages=4, microbatches=8)
    timeline: td.Timeline = td.simulate(order, forward=1.0, backward=2.0)
    td.plots.gantt(timeline).savefig("idle.png")
    return timeline.bubble_fraction - td.formulas.bubble_fraction(4, 8)


def product(size: int) -> float:
    with td.start_cluster(workers=4) as cluster:
        a = td.distribute(np.ones((size, size), "f4"), td.Mesh(cluster, (2, 2)), (td.Shard(0),) * 2)
        traffic = td.matmul(a, a).traffic
        moved: td.Traffic | None = traffic.predicted if traffic else None
        td.report("run.html", cluster)
        return float((moved.total if moved else 0) + td.to_numpy(a)[0, 0])


def train(ways: Mapping[str, tuple[int, int, int]]) -> dict[str, td.training.Trained]:
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=32, layers=4, heads=4, sequence=32)
    return {name: td.train(model, text, way, steps=3, batch=8) for name, way in ways.items()}


def judged(answer: str | None) -> bool:
    return bool(td.tasks.load_puzzle("24-on-4").check(answer))


try:
    print(plan(td.load_model("gpt-200b"), td.Layout(dp=8)), td.partition([1.0] * 24, 4).sizes)
    print(idle("1f1b"), product(512), train({"one": (1, 1, 1)}), judged(None))
except td.errors.ConfigError as error:
    print(td.Comparison("refused", [td.Claim("is it?", 1, None, 1, rule="equal")]), error)
"""
"""Of the README and the walkthroughs, what somebody would write first."""
