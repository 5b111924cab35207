#!/usr/bin/env python3
"""Makes build/gpu-bundle: `make gpu` for a machine with no network and packages of its own.

    .ci/bundle.py [--has FILE] [--python 3.12] [--machine x86_64] [--capability 9.0] [--largest MB]

    run             unpacks the rest, and starts the parts: .ci/bundle_run.py
    checkout.tar.xz  the package, its data, notebooks and tests
    cubins.tar.xz   machine code of the kernels, so that nothing is compiled there
    wheels/         the packages that such a machine lacks, by the versions of constraints.txt
    bundle.json     what is in it, and why something is not

pip finds the wheels: what the machine has already is put before it as empty wheels.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

try:
    from packaging.markers import default_environment
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version
except ImportError:  # an environment with pip has it inside
    from pip._vendor.packaging.markers import default_environment
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name
    from pip._vendor.packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
MB = 1_000_000
LARGEST = 50

KEEPS = (
    "numpy",
    "scipy",
    "torch",
    "triton",
    "cupy-cuda13x",
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "nvidia-cuda-nvrtc",
    "nvidia-nccl-cu13",
    "nvidia-ml-py",
)
"""Fit each other, the driver and what was compiled with them: a machine that has one keeps it,
whatever its version."""
TOO_LARGE = {"cupy-cuda13x": "70 MB; parts on a GPU need it", "nvidia-nccl-cu13": "200 MB"}
"""Never brought along."""
IMPORTED = "run", "plots", "files", "fast", "optimum", "gpu"
"""Extras of which all is; the last one's exact versions count."""
RUNS_TESTS = (
    "hypothesis",
    "ipykernel",
    "nbformat",
    "nbval",
    "packaging",
    "pytest",
    "pytest-xdist",
    "pyyaml",
    "cuda-bindings",
    "cuda-core",
    "nvidia-cuda-nvrtc",
)
"""What the GPU tests and the notebooks take of the other extras."""
UNUSED = ("debugpy", "jedi")
"""ipykernel and ipython ask for them, and run notebooks without."""
IF_IT_FITS = ("rmm-cu13", "distributed-ucxx-cu13", "ortools")
"""In the order of what they are worth there."""

PIP = """
import json, sys
import pip._vendor.packaging.markers as markers
here, there = markers.default_environment(), json.loads(sys.argv.pop(1))
markers.default_environment = lambda: {**here, **there}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""pip asks markers about the Python that it runs on, whatever --python-version says."""


class Problem(Exception):
    """Why there is no bundle; for people."""


def read_has(text: str) -> dict[str, str]:
    """Name -> version, "" if not said, of `pip freeze`, `pip list`, or names alone.

    >>> read_has("numpy==2.5.1\\nMarkupSafe  3.0\\ntorch @ file:///x.whl  # ours\\npytest")
    {'numpy': '2.5.1', 'markupsafe': '3.0', 'torch': '', 'pytest': ''}
    """
    found = {}
    for line in map(str.strip, text.splitlines()):
        words = re.match(r"([A-Za-z0-9][\w.-]*)\s*(?:===?)?\s*([0-9][\w.!+-]*)?", line)
        if words and not line.startswith("Package "):
            version = (words[2] or "").partition("+")[0]
            try:
                found[canonicalize_name(words[1])] = version and str(Version(version))
            except InvalidVersion:
                found[canonicalize_name(words[1])] = ""
    return found


def target(python: str, machine: str) -> dict[str, str]:
    """What markers ask about, on Linux."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_system": "Linux",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def applies(requirement: Requirement, there: dict[str, str], extras=("",)) -> bool:
    marker = requirement.marker
    facts = {**default_environment(), **there}
    return marker is None or any(marker.evaluate({**facts, "extra": extra}) for extra in extras)


def wanted(project: dict) -> dict[str, Requirement]:
    """Name -> requirement of all that the parts of `make gpu`, tests and notebooks import."""
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in IMPORTED for line in extras[extra])]
    listed = {canonicalize_name(Requirement(x).name): Requirement(x) for x in lines}
    del listed[project["name"]]  # an extra that has another one
    for line in (line for lines in extras.values() for line in lines):
        name = canonicalize_name(Requirement(line).name)
        if name in (*RUNS_TESTS, *IF_IT_FITS):
            listed.setdefault(name, Requirement(line))
    return listed


def pins(text: str, there: dict[str, str]) -> dict[str, str]:
    """Name -> version of constraints.txt, of the lines that apply there."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    asked = [Requirement(line) for line in lines if line]
    return {
        canonicalize_name(r.name): next(iter(r.specifier)).version
        for r in asked
        if applies(r, there)
    }


def stays(requirement: Requirement, version: str) -> bool:
    """Whether the machine's own version will do."""
    return canonicalize_name(requirement.name) in KEEPS or requirement.specifier.contains(
        version, prereleases=True
    )


def kept(listed: dict[str, Requirement], has: dict[str, str]) -> dict[str, Requirement]:
    """Those listed, without bounds where the machine keeps its own whatever its version: pip would
    refuse a version that is there and not asked for."""
    return {
        name: Requirement(name) if name in KEEPS and name in has else requirement
        for name, requirement in listed.items()
    }


def empty_wheel(folder: Path, name: str, version: str) -> str:
    """A wheel that says it is there, and nothing else; its version, as pip is to ask for it."""
    there = f"{version}+there"
    stem = f"{name.replace('-', '_')}-{there}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        info = f"{stem}.dist-info/"
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {there}\n"
        wheel.writestr(f"{info}METADATA", about)
        wheel.writestr(f"{info}WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}RECORD", "")
    return there


class Finder:
    """Finds wheels for one machine with pip, as it is configured here."""

    def __init__(
        self, scratch: Path, has: dict[str, str], pinned: dict[str, str], there: dict[str, str]
    ):
        self.scratch, self.there = scratch, there
        (scratch / "there").mkdir()
        lines = [f"{name}=={version}" for name, version in pinned.items() if name not in has]
        for name, version in has.items():
            if version or name in pinned:
                stub = empty_wheel(scratch / "there", name, version or pinned[name])
                lines.append(f"{name}=={stub}")
        (scratch / "constraints.txt").write_text("\n".join(lines))

    def find(self, requirements: list[Requirement]) -> dict[str, Path]:
        """Name -> wheel of the requirements and all that they need and the machine lacks."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        machine, python = self.there["platform_machine"], self.there["python_full_version"]
        platforms = [f"manylinux_2_{n}_{machine}" for n in (28, 27, 26, 24, 17, 12, 5)]
        platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
        command = [
            sys.executable,
            "-c",
            PIP,
            json.dumps(self.there),
            "download",
            "--dest",
            str(folder),
            "--constraint",
            str(self.scratch / "constraints.txt"),
            "--find-links",
            str(self.scratch / "there"),
            "--only-binary",
            ":all:",
            "--implementation",
            "cp",
            "--python-version",
            python,
            *[word for each in platforms for word in ("--platform", each)],
            *[str(each).partition(";")[0] for each in requirements],
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode:
            conflict = done.stdout.partition("The conflict is caused by:")[2].partition("\n\n")[0]
            errors = [line[7:] for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            said = conflict.replace("(constraint)", "(it is there)") or " ".join(errors)
            raise Problem(" ".join((said or done.stderr[-400:]).split())[:400])
        wheels = (w for w in folder.glob("*.whl") if "+there-" not in w.name)
        return {canonicalize_name(w.name.split("-")[0]): w for w in wheels}


def needs(wheels: dict[str, Path], listed: dict[str, Requirement], there: dict[str, str]):
    """Name -> every bound that the bundle puts on its version, as one specifier."""
    bounds: dict[str, set[str]] = {}

    def add(requirement):
        name = canonicalize_name(requirement.name)
        bounds.setdefault(name, set()).update(map(str, requirement.specifier))

    for requirement in listed.values():
        add(requirement)
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as opened:
            (info,) = (
                n for n in opened.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)
            )
            about = HeaderParser().parsestr(opened.read(info).decode())
        for line in about.get_all("Requires-Dist", ()):
            if applies(Requirement(line), there):
                add(Requirement(line))
    return {n: ",".join(sorted(found)) for n, found in bounds.items() if n not in UNUSED}


def tracked(root: Path) -> list[str]:
    """What git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split("\0")
    return sorted(name for name in listed if name and (root / name).is_file())


def pack(path: Path, files: dict[str, Path]) -> None:
    """A tar file with each of ``files`` under its name: kernels are alike, and take no room."""
    with tarfile.open(path, "w:xz") as packed:
        for name, file in sorted(files.items()):
            packed.add(file, name)


def pack_checkout(root: Path, path: Path, version: str) -> None:
    """The checkout, with what lets importlib.metadata find the package in it."""
    about = path.with_suffix(".metadata")
    about.write_text(f"Metadata-Version: 2.1\nName: tiledask\nVersion: {version}\n")
    found = {f"tiledask-{version}.dist-info/METADATA": about}
    pack(path, found | {name: root / name for name in tracked(root)})
    about.unlink()


def make_cubins(capability: str) -> Path:
    """The folder with the kernels' machine code for such a GPU; what an earlier bundle made of
    the same texts stays."""
    texts = hashlib.sha256()
    for path in sorted((ROOT / "tiledask/tile/cuda").glob("*.[cp]*")):
        texts.update(path.read_bytes())
    folder = ROOT / "build/gpu-cubins" / f"{capability}-{texts.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"machine code for compute capability {capability}: minutes, the first time", flush=True)
    command = [sys.executable, "-m", "tiledask.tile.cuda.prebuilt", str(folder)]
    try:
        subprocess.run([*command, "--capability", capability], cwd=ROOT, check=True, timeout=7200)
    except subprocess.SubprocessError as error:
        raise Problem(f"no machine code was made: {error}; go without: --capability none") from None
    return folder


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_size(folder: Path, largest: float) -> None:
    """Problem with both numbers, and what is largest, if the bundle is too large."""
    took = size(folder)
    if took > largest * MB:
        files = sorted(
            (p for p in folder.rglob("*") if p.is_file()), key=lambda p: -p.stat().st_size
        )
        named = ", ".join(f"{p.name} {p.stat().st_size / MB:.1f} MB" for p in files[:3])
        raise Problem(
            f"the bundle takes {took / MB:.1f} MB and may take {largest:g}; largest are {named}. "
            f"Say with --has FILE what the machine has already (there: ./run --list, or pip "
            f"freeze), or allow more with --largest"
        )


def fill(
    folder: Path, finder, listed: dict[str, Requirement], has: dict[str, str], largest: float
) -> tuple[dict[str, Path], dict[str, str]]:
    """(wheels by name, why what is left out is); the wheels are in ``folder``/wheels then."""
    left = {n: why for n, why in TOO_LARGE.items() if n in listed and n not in has}
    base = [r for n, r in listed.items() if n not in (*IF_IT_FITS, *TOO_LARGE)]
    wheels, room = finder.find(base), largest * MB - size(folder)
    for name in (n for n in IF_IT_FITS if n in listed and n not in has):
        try:
            more = finder.find([*base, listed[name]])
        except Problem as problem:
            left[name] = str(problem)
            continue
        took, takes = (sum(w.stat().st_size for w in each.values()) for each in (wheels, more))
        if takes <= room:
            wheels, base = more, [*base, listed[name]]
        else:
            left[name] = (
                f"it takes {(takes - took) / MB:.1f} MB, and {(room - took) / MB:.1f} are left of "
                f"the {largest:g} that the bundle may take"
            )
    (folder / "wheels").mkdir()
    for wheel in wheels.values():
        shutil.copy(wheel, folder / "wheels")
    return wheels, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--has",
        type=Path,
        default=ROOT / ".ci/pytorch-image.txt",
        help="what is there: pip freeze, or ./run --list",
    )
    parser.add_argument("--python", default="3.12", help="the machine's Python, such as 3.12")
    parser.add_argument("--machine", default="x86_64", help="x86_64 or aarch64")
    parser.add_argument(
        "--capability", default="9.0", help="of its GPU: 9.0; none: no machine code"
    )
    parser.add_argument("--largest", type=float, default=LARGEST, help="MB, of all of it")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-bundle")
    asked = parser.parse_args()
    try:
        make(asked)
    except Problem as problem:
        print(f"no bundle: {problem}", file=sys.stderr)
        return 1
    return 0


def make(asked) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    there = target(asked.python, asked.machine)
    listed = {n: r for n, r in wanted(project).items() if applies(r, there)}
    try:
        has = read_has(asked.has.read_text())
    except OSError as error:
        raise Problem(f"{asked.has}: {error.strerror}; name a list of packages") from None
    has |= dict.fromkeys(UNUSED, "")
    if any(name.startswith("cupy") for name in has):  # for another CUDA, or from source
        has.setdefault("cupy-cuda13x", "")
    has.pop("packaging", None)  # which `run` reads versions with
    has = {
        name: version
        for name, version in has.items()
        if name not in listed or not version or stays(listed[name], version)
    }
    print(
        f"for Python {asked.python} on {asked.machine} with the {len(has)} packages of "
        f"{asked.has.name}:"
    )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.out.parent, prefix=".gpu-bundle-") as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        shutil.copy(ROOT / ".ci/bundle_run.py", folder / "run")
        (folder / "run").chmod(0o755)
        pack_checkout(ROOT, folder / "checkout.tar.xz", project["version"])
        if asked.capability != "none":
            made = make_cubins(asked.capability)
            pack(folder / "cubins.tar.xz", {file.name: file for file in made.glob("*.cubin")})
        listed = kept(listed, has)
        finder = Finder(
            Path(scratch), has, pins((ROOT / "constraints.txt").read_text(), there), there
        )
        wheels, left = fill(folder, finder, listed, has, asked.largest)
        facts = {
            "python": asked.python,
            "machine": asked.machine,
            "needs": needs(wheels, listed, there),
            "keeps": KEEPS,
            "left out": left,
            "wheels": {n: w.name for n, w in sorted(wheels.items())},
        }
        (folder / "bundle.json").write_text(json.dumps(facts, indent=1) + "\n")
        check_size(folder, asked.largest)
        took = size(folder)
        shutil.rmtree(asked.out, ignore_errors=True)
        os.rename(folder, asked.out)
    print(f"{asked.out} takes {took / MB:.1f} MB: {len(wheels)} wheels")
    for name, why in left.items():
        print(f"  without {name}: {why}")
    print("copy it to the machine, and there: ./run --minutes 25")


if __name__ == "__main__":
    sys.exit(main())
