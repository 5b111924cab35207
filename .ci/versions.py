#!/usr/bin/env python3
"""Tries the package with other Dasks, NumPys and Pythons: `make test-versions`.

    .ci/versions.py [NAME...]

Each environment is made under build/versions/ from a wheel of this checkout, and runs .ci/smoke.py:

    base-3.11           NumPy and rich alone: the planner; at most 110 MB
    oldest-3.11         the lowest version of everything that the extra `run` allows
    dask-2026.3.0-3.11  that Dask, and the newest of everything else
    dask-2026.8.0-3.13  likewise, on each Python that is found

Pythons are looked for as python3.x on the PATH, as those of pyenv and of uv; what is not found is
named. NAMEs choose by what they begin with. Exits with 1 if one fails.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/versions"
PYTHONS = "3.11", "3.12", "3.13"
BETWEEN = "2026.3.0", "2026.6.0", "2026.7.1"
"""Releases of Dask between the ends of the range in pyproject.toml."""
LARGEST = 110
"""MB of the environment of the planner, without the installer."""
INSTALLERS = "pip", "setuptools", "pkg_resources", "_distutils_hack"
MADE, RAN = 600, 240
"""Seconds after which an environment, a run, is given up."""


class Environment(NamedTuple):
    name: str
    python: str
    extra: str
    pins: tuple[str, ...]


def requirements(extra: str = "") -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]


def bounds(requirement: str) -> tuple[str, str, str]:
    """(name, lowest, highest or empty) of "dask>=2026.1.1,<=2026.8.0".

    >>> bounds("dask>=2026.1.1,<=2026.8.0"), bounds("rich>=13.9")
    (('dask', '2026.1.1', '2026.8.0'), ('rich', '13.9', ''))
    """
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<=([\d.]+))?", requirement)
    if not found:
        raise SystemExit(f"{requirement!r} in pyproject.toml is no NAME>=LOWEST[,<=HIGHEST]")
    return found[1], found[2], found[3] or ""


def planned(pythons: list[str]) -> list[Environment]:
    """The environments, of which the first Python has most."""
    ends = {name: (low, high) for name, low, high in map(bounds, requirements("run"))}
    low, high = ends["dask"]

    def of_dask(dask: str, python: str) -> Environment:
        pins = f"dask=={dask}", f"distributed=={dask}"
        return Environment(f"dask-{dask}-{python}", python, "run", pins)

    first, *others = pythons
    oldest = tuple(f"{name}=={low}" for name, (low, _) in ends.items())
    return [
        Environment(f"base-{first}", first, "", ()),
        Environment(f"oldest-{first}", first, "run", oldest),
        *(of_dask(dask, first) for dask in (low, *BETWEEN, high)),
        *(of_dask(dask, python) for python in others for dask in (low, high)),
    ]


def found_pythons() -> dict[str, str]:
    """Version -> the interpreter, of those that start and can make environments."""
    found = {}
    for version in PYTHONS:
        places = [shutil.which(f"python{version}"), shutil.which("python3")]
        places += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
        if uv := shutil.which("uv"):
            said = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
            places += said.stdout.split("\n")[:1]
        code = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
        for place in filter(None, places):
            done = subprocess.run([place, "-c", code], capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip() == version:
                found[version] = str(place)
                break
    return found


def run(words: list, seconds: float) -> str:
    """What a command printed; a RuntimeError with its last lines if it failed or took longer."""
    try:
        done = subprocess.run(
            list(map(str, words)),
            cwd=BUILD,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {seconds} s") from None
    if done.returncode:
        raise RuntimeError("\n".join(done.stdout.splitlines()[-12:]))
    return done.stdout


def megabytes(folder: Path) -> float:
    """Of an environment's packages, without what installs them."""
    (packages,) = folder.glob("lib/python*/site-packages")
    kept = (f for f in packages.iterdir() if not f.name.startswith(INSTALLERS))
    files = (f for top in kept for f in (top.rglob("*") if top.is_dir() else [top]))
    return sum(f.stat().st_size for f in files if f.is_file()) / 1e6


def tried(environment: Environment, interpreter: str, wheel: Path) -> str:
    """What the smoke suite says there."""
    folder = BUILD / environment.name
    python = folder / "bin/python"
    if not python.exists():
        run([interpreter, "-m", "venv", "--clear", folder], MADE)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    wanted = f"{wheel}[{environment.extra}]" if environment.extra else wheel
    run([*pip, "--prefer-binary", wanted, *environment.pins], MADE)
    run([*pip, "--force-reinstall", "--no-deps", wheel], MADE)
    said = run([python, ROOT / ".ci/smoke.py", *([] if environment.extra else ["plan"])], RAN)
    if not environment.extra:
        size = megabytes(folder)
        said = f"{said.rstrip()}, {size:.0f} MB"
        if size > LARGEST:
            raise RuntimeError(f"{size:.0f} MB, more than {LARGEST}")
    return said


def main(*names: str) -> int:
    interpreters = found_pythons()
    for version in PYTHONS:
        print(f"Python {version}: {interpreters.get(version, 'not found, skipped')}", flush=True)
    if not interpreters:
        return 1
    shutil.rmtree(BUILD / "wheel", ignore_errors=True)
    (BUILD / "wheel").mkdir(parents=True)
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", BUILD / "wheel", ROOT], MADE)
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    chosen = [e for e in planned([*interpreters]) if not names or e.name.startswith(names)]
    failed = 0
    for environment in chosen:
        began = monotonic()
        try:
            said = " ".join(tried(environment, interpreters[environment.python], wheel).split())
        except RuntimeError as error:
            failed += 1
            said = f"FAILED\n{error}"
        print(f"{environment.name:22} {monotonic() - began:4.0f} s  {said}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return int(failed > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
