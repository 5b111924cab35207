"""The environment is described once: pyproject.toml, constraints.txt and environment.yml agree."""

import tomllib

import pytest
import yaml
from oracles.finished import ROOT, finished
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def on_linux(python: str) -> dict[str, str]:
    """The facts that markers ask about, with the given Python."""
    facts = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    facts |= {"sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}
    return default_environment() | facts


def pins(python: str) -> dict[str, str]:
    """Package -> its one version in constraints.txt."""
    found: dict[str, str] = {}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    for each in map(Requirement, filter(None, (line.partition("#")[0].strip() for line in lines))):
        (spec,) = each.specifier
        assert (spec.operator, each.extras, each.url) == ("==", set(), None), each
        if each.marker is None or each.marker.evaluate(on_linux(python)):
            assert canonicalize_name(each.name) not in found, f"{each.name} is pinned twice"
            found[canonicalize_name(each.name)] = spec.version
    return found


@pytest.mark.parametrize("python", ["3.11.2", "3.11.7", "3.12.1", "3.13.0"])
def test_constraints_satisfy_every_requirement(python):
    pinned = pins(python)
    for each in map(Requirement, sum(EXTRAS.values(), PROJECT["dependencies"])):
        applies = each.marker is None or each.marker.evaluate(on_linux(python))
        if applies and each.name != PROJECT["name"]:
            assert each.specifier.contains(pinned[canonicalize_name(each.name)], prereleases=True)


def test_the_conda_environment_is_python_and_pip_with_the_constraints_and_all():
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, nested = content["dependencies"]
    assert content["channels"] == ["conda-forge"]
    assert Requirement(python).specifier == Requirement("x" + PROJECT["requires-python"]).specifier
    assert pip == "pip"
    assert nested == {"pip": ["--constraint constraints.txt", "-e .[all]"]}


def test_a_machine_without_a_fitting_python_is_told(tmp_path):
    bare = {"PYTHON": "/bin/false", "PATH": "/usr/bin:/bin"}
    done = finished(ROOT / ".ci/setup", "all", cwd=tmp_path, env=bare)
    assert done.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
