"""What td gives: the table that loads it, the stub that editors read, the notebooks, the wheel.

tiledask/__init__.pyi  from module import name  read by editors, type checkers and __init__.py
nbs/*.ipynb            td.name.name            every one of them is there
the wheel              the package, its data and its types
"""

import ast
import json
from collections.abc import Iterator
from types import ModuleType

import pytest
from hatchling.builders.wheel import WheelBuilder
from oracles.finished import ROOT, python

import tiledask as td


def test_every_line_of_the_stub_is_a_public_name():
    stub = ast.parse((ROOT / "tiledask/__init__.pyi").read_text("utf-8"))
    lines = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [each.asname for node in lines for each in node.names]
    assert sorted(names) == td.__all__, "write the line as `from HOME import NAME as NAME`"


def test_every_public_name_is_there():
    for name in td.__all__:
        value = getattr(td, name)
        assert value.__doc__ or not isinstance(value, ModuleType), name


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
    yield from filter(None, (dotted(node, short) for node in nodes))


def dotted(node: ast.AST, short: dict[str, str]) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in short:
        return ""
    return ".".join([*filter(None, [short[node.id]]), *reversed(parts)])


def test_every_name_that_a_notebook_uses_is_there():
    names = set()
    for path in sorted((ROOT / "nbs").glob("[0-9]*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        names |= set(used("\n\n".join(code)))
    for name in names:
        resolve(name)
    assert len(names) > 100
    for wrong in ("plotz", "plots.gant", "tensor.colum"):
        with pytest.raises(AttributeError, match=wrong.rpartition(".")[2]):
            resolve(wrong)


def test_the_wheel_has_the_package_its_data_its_notebooks_and_its_types():
    files = WheelBuilder(str(ROOT)).recurse_included_files()
    wheel = {each.distribution_path for each in files}
    assert {"tiledask/__init__.pyi", "tiledask/py.typed", "tiledask/plan/formulas.py"} <= wheel
    for folder in ("_data/models/", "_nbs/00_"):
        assert any(path.startswith(f"tiledask/{folder}") for path in wheel)
    assert not {path for path in wheel if path.partition("/")[0] != "tiledask"}
    builder = WheelBuilder(str(ROOT))
    assert builder.metadata.core.license_files == ["LICENSE"]
    assert builder.metadata.version == td.__version__


@pytest.mark.slow
def test_mypy_strict_accepts_a_script_that_uses_the_public_names(tmp_path):
    """Minutes, unless the package was read already."""
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


def judged(answer: str | None) -> bool:
    return bool(td.tasks.load_puzzle("24-on-4").check(answer))


try:
    print(plan(td.load_model("gpt-200b"), td.Layout(dp=8)), td.partition([1.0] * 24, 4).sizes)
    print(idle("1f1b"), product(512), judged(None))
except td.errors.ConfigError as error:
    print(error)
"""
"""What somebody would write first."""
