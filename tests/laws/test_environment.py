"""The environment is described once: pyproject.toml, constraints.txt and environment.yml agree.

What this cannot show: that `conda env create` works. conda does not run here. Checked are the
parts of environment.yml that conda hands to pip, and that its Python is the package's.
"""

import json
import os
import re
import shutil
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from subprocess import CompletedProcess

import psutil
import pytest
import yaml
from oracles.finished import ROOT, finished, python, script
from oracles.waiting import wait_until
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
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


def read_environment(text: str) -> tuple[list[str], list[str]]:
    """(conda's dependencies, pip's lines) of an environment.yml."""
    content = yaml.safe_load(text)
    assert set(content) == {"name", "channels", "dependencies"}
    assert content["channels"] == ["conda-forge"]
    conda = [entry for entry in content["dependencies"] if isinstance(entry, str)]
    (nested,) = (entry for entry in content["dependencies"] if not isinstance(entry, str))
    assert list(nested) == ["pip"]
    return conda, nested["pip"]


def tracked() -> list[Path]:
    """The files of the repository: what git knows or would add, or all outside a checkout."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        skipped = {".venv", "build", ".git"}
        files = (f for f in ROOT.rglob("*") if not skipped & set(f.relative_to(ROOT).parts))
        return [f for f in files if f.is_file()]
    listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    done = finished("git", *listing, check=True)
    return [f for name in done.stdout.split("\0") if name and (f := ROOT / name).is_file()]


def hosts_in(text: str) -> list[str]:
    """Addresses of package registries in ``text``."""
    names = "|".join(map(re.escape, REGISTRIES.split()))
    return re.findall(rf"://(?:[^/\s\"'<>@]*@)?(?:[\w-]+\.)*(?:{names})\b", text)


# -- constraints.txt -----------------------------------------------------------------------------

CONSTRAINTS = (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_satisfy_every_requirement(python):
    assert unsatisfied(requirements(*EXTRAS), pins(CONSTRAINTS, python), python) == []


def test_a_constraint_that_contradicts_is_found():
    pinned = pins(CONSTRAINTS, "3.11.7")
    (dask,) = (str(r) for r in requirements("run") if r.name == "dask")
    assert unsatisfied(requirements("run"), {**pinned, "dask": "2020.1.0"}, "3.11.7") == [dask]
    assert unsatisfied(
        requirements("run"), {k: v for k, v in pinned.items() if k != "dask"}, "3.11.7"
    )
    with pytest.raises(AssertionError, match="does not pin"):
        pins("numpy>=2", "3.11.7")
    with pytest.raises(AssertionError, match="pinned twice"):
        pins("numpy==2.0\nNumPy==2.1", "3.11.7")


@pytest.mark.long
def test_what_the_packages_need_in_turn_is_pinned_too():
    """Everything installed here that tiledask's extras bring in has a line."""
    installed = {canonicalize_name(d.name): d for d in distributions()}
    pinned = pins(CONSTRAINTS, ".".join(map(str, sys.version_info[:3])))
    todo, seen = [canonicalize_name(r.name) for r in requirements("all", "test")], set()
    while todo:
        name = todo.pop()
        if name in seen or name not in installed:
            continue
        seen.add(name)
        assert name in pinned, f"{name} is installed and needed, and constraints.txt lacks it"
        for line in installed[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(requirement.name))
    assert len(seen) > 100


@pytest.mark.long
def test_installed_versions_are_the_pinned_ones():
    """True in .venv as `make env` leaves it; another environment says what differs."""
    pinned = pins(CONSTRAINTS, ".".join(map(str, sys.version_info[:3])))
    installed = {canonicalize_name(d.name): d.version for d in distributions()}
    wanted = {canonicalize_name(r.name) for r in requirements("all", "test")}
    differs = {
        name: (installed[name], pin)
        for name, pin in pinned.items()
        if name in installed and Version(installed[name]) != Version(pin)
    }
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip(f"not running in .venv; versions that differ here: {differs or 'none'}")
    assert differs == {}
    assert not {name for name in wanted & set(pinned) if name not in installed}


# -- pyproject.toml ------------------------------------------------------------------------------


def test_versions_with_known_holes_are_excluded():
    floors = {
        "distributed": "2026.1.0",
        "bokeh": "3.8.2",
        "tornado": "6.5.6",
        "jupyter-server": "2.20.0",
        "jupyterlab": "4.5.7",
    }
    wanted = {canonicalize_name(r.name): r for r in requirements("all")}
    pinned = pins(CONSTRAINTS, "3.11.7")
    for name, floor in floors.items():
        assert Version(pinned[name]) >= Version(floor)
        release = Version(floor).release
        older = ".".join(map(str, (*release[:-1], release[-1] - 1)))
        older = older if release[-1] else f"{release[0]}.{release[1] - 1}"
        assert not wanted[name].specifier.contains(older), f"{name} {older} would be accepted"


def exact(extra: str) -> set[str]:
    return {r.name for r in requirements(extra) if any(s.operator == "==" for s in r.specifier)}


def test_only_the_gpu_pins_a_dask_and_the_rest_takes_a_range():
    """constraints.txt is the tested set; dask-cuda is what needs exactly one Dask."""
    assert {"dask", "distributed", "dask-cuda"} <= exact("gpu")
    assert exact("all") == set()
    asked = {r.name: r.specifier for r in requirements("run") if r.name in ("dask", "distributed")}
    assert asked["dask"] == asked["distributed"]
    assert {spec.operator for spec in asked["dask"]} == {">=", "<="}


def test_the_versions_that_are_tried_are_the_ends_of_the_range_and_more():
    """At least four releases of Dask, the pinned one among them, on each Python promised."""
    versions = script("versions")
    ends = map(versions.bounds, versions.requirements("run"))
    low, high = next((low, high) for name, low, high in ends if name == "dask")
    tried = versions.planned(list(versions.PYTHONS))
    dasks = {pin.removeprefix("dask==") for e in tried for pin in e.pins if "dask==" in pin}
    assert {low, high, pins(CONSTRAINTS, "3.12.1")["dask"]} <= dasks
    assert len(dasks) >= 4
    (allowed,) = (r.specifier for r in requirements("run") if r.name == "dask")
    assert all(map(allowed.contains, dasks))
    assert f"Dask {low} to {high}" in (ROOT / "README.md").read_text("utf-8")
    assert {python.rpartition(".")[0] for python in PYTHONS} == {e.python for e in tried}
    assert {e.name.partition("-")[0] for e in tried} == {"base", "oldest", "dask"}
    (oldest,) = (e for e in tried if e.name.startswith("oldest"))
    assert {pin.partition("==")[0] for pin in oldest.pins} == {r.name for r in requirements("run")}
    with pytest.raises(SystemExit, match="is no NAME>=LOWEST"):
        versions.bounds("dask==1")


def test_every_python_that_is_promised_is_checked_and_is_what_the_set_up_asks_for():
    promised = SpecifierSet(PROJECT["requires-python"])
    near = ("3.10.13", *PYTHONS, "3.14.0")
    assert tuple(filter(promised.contains, near)) == PYTHONS
    setup = (ROOT / ".ci/setup").read_text()
    asked = re.search(r"not \((\d+), (\d+)\) <= sys.version_info < \((\d+), (\d+)\)", setup)
    assert PROJECT["requires-python"] == ">={}.{},<{}.{}".format(*asked.groups())


# -- environment.yml -----------------------------------------------------------------------------

CONDA, PIP = read_environment((ROOT / "environment.yml").read_text())


def test_the_conda_environment_is_python_and_pip_with_the_constraints_and_all():
    assert [Requirement(entry).name for entry in CONDA] == ["python", "pip"]
    assert Requirement(CONDA[0]).specifier == SpecifierSet(PROJECT["requires-python"])
    assert PIP == ["--constraint constraints.txt", "-e .[all]"]


@pytest.mark.slow
def test_pip_accepts_what_conda_would_hand_it(tmp_path):
    """pip's own resolver over the pip section, with what is installed here and no index."""
    if "hatchling" not in {d.name for d in distributions()}:
        pytest.skip("hatchling is not installed: pip install -e .[test]")
    lines = "\n".join(PIP).replace(" constraints", f" {ROOT}/constraints")
    # without -e: hatchling alone can describe the package then
    (tmp_path / "pip.txt").write_text(lines.replace("-e .[", f"{ROOT}["))
    offline = "install", "--dry-run", "--no-build-isolation", "--no-index", "--quiet"
    files = "--report", tmp_path / "report.json", "--requirement", tmp_path / "pip.txt"
    done = python("-m", "pip", *offline, *files)
    assert done.returncode == 0, done.stderr
    (item,) = json.loads((tmp_path / "report.json").read_text())["install"]
    assert set(item["requested_extras"]) == {"all"}


# -- .devcontainer -------------------------------------------------------------------------------


def test_the_container_has_a_promised_python_and_forwards_what_make_lab_opens():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    python, version = container["image"].split(":")
    assert python == "python"
    assert version in {".".join(each.split(".")[:2]) for each in PYTHONS}
    makefile = (ROOT / "Makefile").read_text()
    command, target = container["postCreateCommand"].split()
    assert command == "make"
    assert re.search(rf"^{target}:", makefile, re.M)
    dashboard = int(re.search(r"^DASHBOARD_PORT \?= (\d+)$", makefile, re.M)[1])
    assert container["forwardPorts"] == [8888, dashboard]
    assert {int(port) for port in container["portsAttributes"]} == {8888, dashboard}


# -- no hosts ------------------------------------------------------------------------------------


@pytest.mark.long
def test_no_file_names_a_package_registry_or_tells_pip_where_to_look():
    asking = {"constraints.txt", "environment.yml", ".ci/setup", "Makefile", "pyproject.toml"}
    told = r"--(extra-)?index-url|--find-links|trusted-host"
    for path in tracked():
        text = path.read_text("utf-8", errors="ignore")
        assert hosts_in(text) == [], path
        if path.relative_to(ROOT).as_posix() in asking:
            assert not re.search(told, text), path


@pytest.mark.parametrize("host", ["pypi.org", "files.pythonhosted.org", "user:pw@pypi.nvidia.com"])
def test_a_registry_is_found(host):
    assert hosts_in(f"--index-url https:{'//'}{host}/simple")
    assert not hosts_in(f"https:{'//'}docs.dask.org and {host} in words")


# -- make, CI and the hooks ----------------------------------------------------------------------


def make(*arguments: str, cwd: Path = ROOT, **environment: str) -> CompletedProcess:
    ours = ("MAKE", "EXTRAS", "PYTHON", "DASHBOARD_PORT", "LAB_ARGS")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment = {**clean, "PYTHON": sys.executable, **environment}
    return finished("make", *arguments, cwd=cwd, env=environment)


@pytest.mark.long
def test_make_says_its_targets_and_what_each_of_them_runs():
    for target in ("tour", "test", "lab", "bench", "env", "lint", "clean", "help"):
        assert re.search(rf"^  {target}\s+\S", make().stdout, re.M), target
    tests = make("--dry-run", "test").stdout
    assert "--nbval-lax --nbval-current-env" in tests
    assert all(str(f.relative_to(ROOT)) in tests for f in (ROOT / "nbs").glob("*.ipynb"))
    quick = make("--dry-run", "quick").stdout.splitlines()
    assert {".venv/bin/ruff check", ".venv/bin/ruff format --check", ".venv/bin/mypy"} <= set(quick)
    (tests,) = (step for step in quick if "-m pytest" in step)
    assert '-m "not cluster and not slow and not long"' in tests
    lab = make("--dry-run", "lab", "LAB_ARGS=--port=8890", "DASHBOARD_PORT=9000").stdout
    assert "DASHBOARD_PORT=9000 .venv/bin/tiledask notebooks learn --lab --port=8890" in lab


def test_no_step_of_make_test_waits_for_ever():
    """Each is ended when silent, later than any test is; and no dead process is replaced."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    steps = [x for x in make("--dry-run", "test").stdout.splitlines() if "-m pytest" in x]
    assert len(steps) == 3
    for step in steps:
        silence = int(re.search(r"\.ci/limit (\d+) \.venv/bin/python -m pytest", step)[1])
        assert options["faulthandler_timeout"] < silence <= 600
        assert (" -n " in step) == ("--max-worker-restart=0" in step)


WAYS_TO_END = {"dies": "os._exit(3)", "hangs": "time.sleep(900)", "has_no_type": "pass"}


@pytest.mark.few(2)
@pytest.mark.long
@pytest.mark.parametrize("way", WAYS_TO_END)
def test_make_test_fails_and_names_the_test_that(way, tmp_path):
    for folder in (".ci", ".venv/bin", "tests", "tiledask", "nbs"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("Makefile", ".ci/limit", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    ours = (ROOT / "pyproject.toml").read_text()
    quick = re.sub("^faulthandler_timeout = .*", "faulthandler_timeout = 5", ours, flags=re.M)
    (tmp_path / "pyproject.toml").write_text(quick)
    programs = {"python": f'exec {sys.executable} "$@"', "ruff": "exit 0", "mypy": "exit 0"}
    typed = way != "has_no_type"
    programs |= {} if typed else {"mypy": "echo it has no type; exit 1"}
    for name, command in programs.items():
        program = tmp_path / ".venv/bin" / name
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)
    (tmp_path / ".venv/ready-lab,test").touch()
    (tmp_path / "tests/test_toy.py").write_text(f"""
import os, time

def test_before():
    pass

def test_that_{way}():
    open("met", "a").write("once ")
    {WAYS_TO_END[way]}

def test_after():
    pass
""")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    done = make("test", "EXTRAS=lab,test", cwd=tmp_path, **alone)
    assert done.returncode != 0
    assert done.stdout.count(" -m pytest ") == 1  # the first step ends it
    if typed:
        assert f"crashed while running 'tests/test_toy.py::test_that_{way}'" in done.stdout
    else:
        assert "3 passed" in done.stdout
        assert "it has no type" in done.stdout.splitlines()
    assert (tmp_path / "met").read_text() == "once "
    assert "all passed" not in done.stdout
    if way == "hangs":
        assert f"in test_that_{way}" in done.stderr


@pytest.mark.slow
def test_what_hangs_where_no_test_runs_is_ended_and_says_where():
    """Here at the interpreter's exit, with a thread that is still waited for."""
    program = """
import threading, time
def for_ever():
    time.sleep(900)
threading.Thread(target=for_ever).start()
print("the last test passed", flush=True)
"""
    done = python(ROOT / ".ci/limit", 10, sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (124, "the last test passed\n")
    assert "printed nothing for 10 s" in done.stderr
    assert "in for_ever" in done.stderr


@pytest.mark.long
def test_a_command_that_goes_on_printing_ends_as_it_does_itself_and_leaves_nothing():
    program = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"]).pid)
sys.exit(7)
"""
    done = python(ROOT / ".ci/limit", 240, sys.executable, "-c", program)
    assert done.returncode == 7
    left = int(done.stdout)
    wait_until(lambda: is_gone(left), f"process {left} to end")


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


_BACKEND = """
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    info = "tiny-1.dist-info/"
    about = "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n"
    with zipfile.ZipFile(pathlib.Path(folder) / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(info + "METADATA", about + "Provides-Extra: lab\\nProvides-Extra: test\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "tiny-1-py3-none-any.whl"

build_wheel = build_editable
"""
_PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
[project.optional-dependencies]
lab = []
test = []
"""


def tiny_project(folder: Path, constraints: str = "") -> Path:
    """A project with this one's Makefile and set-up that needs nothing from anywhere."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / ".ci/setup", folder / ".ci")
    (folder / "constraints.txt").write_text(constraints)
    (folder / "pyproject.toml").write_text(_PYPROJECT)
    (folder / "backend.py").write_text(_BACKEND)
    return folder


@pytest.mark.slow
def test_setup_is_done_once_and_again_when_it_failed_or_a_pin_changes(tmp_path):
    folder = tiny_project(tmp_path, constraints="not a requirement\n")
    failed = make("env", "EXTRAS=lab,test", cwd=folder)
    assert failed.returncode != 0
    assert "set-up failed" in failed.stderr
    assert not list((folder / ".venv").glob("ready*"))
    (folder / "constraints.txt").write_text("")
    first = make("env", "EXTRAS=lab,test", cwd=folder)
    assert first.returncode == 0, first.stdout + first.stderr
    assert re.search(r"set up in \d+ s, \.venv takes \d+ MB", first.stdout)
    assert "set up" not in make("env", "EXTRAS=lab,test", cwd=folder).stdout
    later = (folder / ".venv/ready-lab,test").stat().st_mtime + 10
    os.utime(folder / "constraints.txt", (later, later))
    assert "set up in" in make("env", "EXTRAS=lab,test", cwd=folder).stdout


def set_up(folder: Path, *targets: str) -> list[set[str]]:
    """The extras of each set-up that these targets would make."""
    said = make("--dry-run", *targets, cwd=folder).stdout
    return [{*found.split(",")} - {"gpu"} for found in re.findall(r'\.ci/setup "(.+?)"', said)]


@pytest.mark.long
def test_the_tour_takes_no_package_for_tests_unless_they_are_there(tmp_path):
    folder = tiny_project(tmp_path)
    assert set_up(folder, "tour") == set_up(folder, "lab") == [{"all"}]
    assert set_up(folder, "test") == set_up(folder, "tour", "test") == [{"all", "test"}]
    (whole,) = re.findall(r"ready-all\S*,test", make("--dry-run", "env", cwd=folder).stdout)
    (folder / ".venv").mkdir()
    (folder / ".venv" / whole.strip('"')).touch()
    assert set_up(folder, "tour") == set_up(folder, "test") == []
    assert {"all", "lab", "test"} <= set(EXTRAS)
    for extra in ("all", "lab"):
        assert not [r for r in requirements(extra) if r.name.startswith(("nvidia", "dask-cuda"))]


def test_a_machine_without_a_fitting_python_is_told(tmp_path):
    done = make("env", "PYTHON=/bin/false", cwd=tiny_project(tmp_path))
    assert done.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.long
def test_ci_runs_the_test_command_and_passes_its_failure_on(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text("test:\n\t@echo CI is $$CI; exit 3\n")
    done = finished(tmp_path / ".ci/run", cwd="/")
    assert done.returncode != 0
    assert "CI is true" in done.stdout
    assert "passed" not in done.stdout


@pytest.mark.long
def test_hooks_are_valid_and_fetch_nothing():
    config = ROOT / ".pre-commit-config.yaml"
    done = python("-m", "pre_commit", "validate-config", config)
    assert done.returncode == 0, done.stdout
    (repo,) = yaml.safe_load(config.read_text())["repos"]
    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in repo["hooks"]}
    assert not {p for p in programs if not (Path(sys.executable).parent / p).exists()}
