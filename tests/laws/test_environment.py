"""The environment is described once: pyproject.toml, constraints.txt and environment.yml agree."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PYTHONS = ("3.11.2", "3.11.7", "3.12.1", "3.13.0")
REGISTRIES = """
    pypi.org pythonhosted.org pypi.nvidia.com anaconda.org anaconda.com conda-forge.org prefix.dev
    npmjs.org npmjs.com yarnpkg.com nodesource.com crates.io proxy.golang.org docker.io ghcr.io
    nvcr.io quay.io
"""


def requirements(*extras: str) -> list[Requirement]:
    """The package's own requirements and those of ``extras``, and of the extras that these have."""
    found = [Requirement(line) for line in PROJECT["dependencies"]]
    for each in (Requirement(line) for extra in extras for line in EXTRAS[extra]):
        ours = each.name == PROJECT["name"]
        found += requirements(*each.extras) if ours else [each]
    return found


def marker_environment(python: str) -> dict[str, str]:
    """The facts that markers ask about, on Linux with the given Python."""
    return default_environment() | {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "extra": "",
    }


def pins(text: str, python: str) -> dict[str, str]:
    """Package -> version pinned for ``python`` on Linux; every line must pin exactly one."""
    found: dict[str, str] = {}
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    for requirement in map(Requirement, filter(None, lines)):
        specs = list(requirement.specifier)
        assert [s.operator for s in specs] == ["=="], f"{requirement} does not pin one version"
        assert not requirement.extras, f"pip refuses extras in constraints: {requirement}"
        assert not requirement.url, f"a constraint names a place: {requirement}"
        if requirement.marker is None or requirement.marker.evaluate(marker_environment(python)):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} is pinned twice on Python {python}"
            found[name] = specs[0].version
    return found


def unsatisfied(wanted: list[Requirement], pinned: dict[str, str], python: str) -> list[str]:
    """The requirements that apply on ``python`` and that no pin satisfies."""
    environment = marker_environment(python)
    applying = [r for r in wanted if r.marker is None or r.marker.evaluate(environment)]
    return [
        str(r)
        for r in applying
        if (pin := pinned.get(canonicalize_name(r.name))) is None
        or not r.specifier.contains(pin, prereleases=True)
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_satisfy_every_requirement(python):
    assert unsatisfied(requirements(*EXTRAS), pins(CONSTRAINTS, python), python) == []


def test_installed_versions_are_the_pinned_ones():
    """True in .venv as `make env` leaves it; another environment says what differs."""
    pinned = pins(CONSTRAINTS, ".".join(map(str, sys.version_info[:3])))
    installed = {canonicalize_name(d.name): d.version for d in distributions()}
    both = pinned.keys() & installed.keys()
    differs = {n: (installed[n], pinned[n]) for n in both}
    differs = {n: pair for n, pair in differs.items() if Version(pair[0]) != Version(pair[1])}
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip(f"not running in .venv; versions that differ here: {differs or 'none'}")
    assert differs == {}


def test_the_conda_environment_is_python_and_pip_with_the_constraints_and_all():
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, nested = content["dependencies"]
    assert content["channels"] == ["conda-forge"]
    assert Requirement(python).specifier == Requirement("x" + PROJECT["requires-python"]).specifier
    assert pip == "pip"
    assert nested == {"pip": ["--constraint constraints.txt", "-e .[all]"]}


def test_no_file_names_a_package_registry_or_tells_pip_where_to_look():
    names = "|".join(map(re.escape, REGISTRIES.split()))
    host = re.compile(rf"://(?:[^/\s\"'<>@]*@)?(?:[\w-]+\.)*(?:{names})\b")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (path := ROOT / name).is_file():
            text = path.read_text("utf-8", errors="ignore")
            assert not host.search(text), name
            if name in ("constraints.txt", "environment.yml", ".ci/setup", "Makefile"):
                assert not re.search(r"--(extra-)?index-url|--find-links|trusted-host", text), name


def test_a_machine_without_a_fitting_python_is_told(tmp_path):
    done = subprocess.run(
        [ROOT / ".ci/setup", "all"],
        cwd=tmp_path,
        env={"PYTHON": "/bin/false", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
