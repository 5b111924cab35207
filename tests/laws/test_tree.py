"""Tests mirror the package, and every module is held by a test that says so.

A module has a test file of its name, or the head of the test that holds it names it.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "tiledask"
APART = ("laws", "oracles", "twins")
"""What holds across rooms; references; stand-ins."""


def modules(package: Path) -> list[str]:
    files = sorted(package.rglob("*.py"))
    return [
        ".".join(f.relative_to(package.parent).with_suffix("").parts)
        for f in files
        if not f.stem.startswith("__")
    ]


def test_files(tests: Path) -> list[Path]:
    return sorted(p for p in tests.rglob("test_*.py") if "standin" not in p.parts)


test_files.__test__ = False


def named(tests: Path) -> dict[str, str]:
    """Module -> the test file whose head names it."""
    return {
        module: path.relative_to(tests).as_posix()
        for path in test_files(tests)
        for module in re.findall(r"`(tiledask(?:\.\w+)+)`", ast.get_docstring(parsed(path)) or "")
    }


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def complaints(package: Path, tests: Path) -> list[str]:
    have, said = modules(package), named(tests)
    own = {path.stem.removeprefix("test_") for path in test_files(tests)}
    rooms = {path.parent.relative_to(tests) for path in test_files(tests)}
    return [
        *(f"no test holds {m}" for m in have if m.rpartition(".")[2] not in own and m not in said),
        *(
            f"{path} names {m}, which is not there"
            for m, path in said.items()
            if m not in have and not (package.parent / m.replace(".", "/")).is_dir()
        ),
        *(
            f"the package has no room {room}"
            for room in sorted(rooms)
            if room.parts[0] not in APART and not (package / room).is_dir()
        ),
    ]


@pytest.mark.long
def test_every_module_is_held_by_a_test_that_says_so():
    assert complaints(PACKAGE, TESTS) == []
    assert len(modules(PACKAGE)) > 300


def test_no_test_and_no_helper_is_on_the_top_floor():
    assert [path.name for path in TESTS.glob("*.py")] == ["conftest.py"]


def test_what_is_wrong_is_found(tmp_path):
    package, tests = tmp_path / "tiledask", tmp_path / "tests"
    for name in ("__init__", "plan/fit", "plan/units", "plan/rows"):
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name, head in (
        ("plan/test_fit", "Fit. Holds `tiledask.plan.units`, `tiledask.plan.gone`."),
        ("tile/test_gemm", "Of a room that is not there."),
    ):
        path = tests / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(f'"""{head}"""\n')
    assert complaints(package, tests) == [
        "no test holds tiledask.plan.rows",
        "plan/test_fit.py names tiledask.plan.gone, which is not there",
        "the package has no room tile",
    ]
