"""What td gives: the table that loads it, the stub that editors read, the wheel.

tiledask/__init__.pyi  from module import name  read by editors, type checkers and __init__.py
the wheel              the package, its data and its types
"""

import ast
from types import ModuleType

import pytest
from hatchling.builders.wheel import WheelBuilder
from oracles.fences import PYTHON, blocks
from oracles.finished import ROOT, python

import tiledask as td


def test_every_line_of_the_stub_is_a_public_name_and_every_one_is_there():
    stub = ast.parse((ROOT / "tiledask/__init__.pyi").read_text("utf-8"))
    lines = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [each.asname for node in lines for each in node.names]
    assert sorted(names) == td.__all__, "write the line as `from HOME import NAME as NAME`"
    for name in td.__all__:
        value = getattr(td, name)
        assert value.__doc__ or not isinstance(value, ModuleType), name


def test_the_wheel_has_the_package_its_data_its_notebooks_and_its_types():
    builder = WheelBuilder(str(ROOT))
    wheel = {each.distribution_path for each in builder.recurse_included_files()}
    assert {"tiledask/__init__.pyi", "tiledask/py.typed", "tiledask/plan/formulas.py"} <= wheel
    for folder in ("_data/models/", "_nbs/00_"):
        assert any(path.startswith(f"tiledask/{folder}") for path in wheel)
    assert {path.partition("/")[0] for path in wheel} == {"tiledask"}
    assert builder.metadata.core.license_files == ["LICENSE"]
    assert builder.metadata.version == td.__version__


@pytest.mark.slow
def test_mypy_strict_accepts_the_python_of_the_pages(tmp_path):
    """Minutes, unless the package was read already."""
    pages = [(ROOT / page / "README.md").read_text("utf-8") for page in (".", "tiledask/tile")]
    script = "\n".join(block for page in pages for block in blocks(page, PYTHON))
    for more, words in (
        ("", ""),
        ("td.plotz", "Module has no attribute"),
        ('verdict: int = td.fits("gpt2", td.Layout(), "1xT4").verdict', "Incompatible types in as"),
    ):
        (tmp_path / "script.py").write_text(f"{script}\n{more}\n")
        strictly = "-m", "mypy", "--strict", "--no-error-summary", tmp_path / "script.py"
        done = python(*strictly, timeout=600)
        assert not done.stderr, done.stderr
        assert words in done.stdout
        assert bool(words) == bool(done.stdout), done.stdout
