"""Colours go by name: the package's own have one each, others never theirs, whatever else runs."""

import ast
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask.lab.plots.pipelines.gantt import KINDS
from tiledask.lab.plots.products.panels import _LANE
from tiledask.lab.plots.style import _NAMES, PALE, colour_named

PACKAGE = Path(td.__file__).parent / "distributed"
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
OWN = " ".join(_NAMES.values()).split()


def submits(node: ast.AST) -> bool:
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called.rpartition(".")[2] in ("submit", "submit_all")


def task_names() -> set[str]:
    """Every name that the package's source gives a task."""
    found = {f"multiply_{algorithm}" for algorithm in td.algorithms}
    found |= {*COLLECTIVES, *(f"send_{name}" for name in COLLECTIVES)}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if submits(node):
                names = [k.value for k in node.keywords if k.arg == "name"]
            elif isinstance(node, ast.FunctionDef) and any(map(submits, ast.walk(node))):
                arguments = [*node.args.args, *node.args.kwonlyargs]
                defaults = [*node.args.defaults, *node.args.kw_defaults]
                both = zip(arguments[::-1], defaults[::-1], strict=False)
                names = [default for a, default in both if a.arg == "name"]
            else:
                continue
            found |= {n.value for n in names if isinstance(n, ast.Constant) and n.value}
    return found


@pytest.mark.long
def test_every_task_of_the_package_has_a_colour_of_its_own():
    names = task_names()
    assert {"multiply_summa", "reduce_scatter", "dependency", "rank_function"} <= names
    assert names - {*OWN} == set()
    assert len(OWN) == len({*OWN})


def rgb(name: str) -> np.ndarray:
    colour = colour_named(name)
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def test_no_two_names_of_the_package_have_the_same_colour_and_none_is_that_of_idle_time():
    pale = [int(PALE[i : i + 2], 16) for i in (1, 3, 5)]
    for one in OWN:
        assert np.abs(rgb(one) - pale).max() >= 16, one
    near = [(a, b) for a, b in combinations(OWN, 2) if np.abs(rgb(a) - rgb(b)).max() < 16]
    assert near == []


@pytest.mark.long
@given(st.text(max_size=20))
def test_any_other_name_has_always_the_same_colour_and_none_of_the_packages(name):
    if name in OWN:
        return
    colour = colour_named(name)
    assert colour == colour_named(name)
    assert colour not in {colour_named(own) for own in OWN}


def test_figures_have_the_colours_of_the_page():
    names = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    names |= {"U": "update", "M": "multiply"}
    assert {kind: colour for kind, (_, colour) in KINDS.items()} == {
        kind: colour_named(name) for kind, name in names.items()
    }
    assert {kind: colour_named(kind) for kind in ("multiply", "wait", "sum")} == _LANE
