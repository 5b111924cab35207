#!/usr/bin/env python3
"""Runs the parts of `make gpu` on this machine: nothing is installed, no network is needed.

    ./run [--python PYTHON] [--list] [what `make gpu` takes in GPU_ARGS: --minutes 9 ...]

Results come to ./out. --list prints the packages that are here, for `make gpu-bundle`'s --has.
What this machine has already is used wherever its version will do; the rest comes out of wheels/,
into a folder beside this file, or among the temporary files where that is closed.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob

HERE = os.path.dirname(os.path.abspath(__file__))

ASK = """
import sys
sys.path.remove("")
import json, re
from importlib.metadata import distributions
found = {}
for each in distributions():
    if each.metadata["Name"]:
        found.setdefault(re.sub("[-_.]+", "-", each.metadata["Name"]).lower(), each.version)
print(json.dumps([sys.executable, list(sys.version_info[:3]), found]))
"""


def ask(python):
    """[path, version, packages] of a Python; None where it does not start, or is below 3.8."""
    try:
        done = subprocess.run(
            [python, "-c", ASK],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout.decode().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def choose(asked, made_for):
    """The Python to use: the one asked for, or the first that fits best of those on the path."""
    names = [asked] if asked else [sys.executable, "python" + made_for, "python", "python3"]
    found = [each for each in map(ask, names) if each]
    if not found:
        raise SystemExit(
            "{} does not start; name another: --python PATH".format(" or ".join(names))
        )

    def fits(each):
        _, version, packages = each
        cupy = any(name.startswith("cupy") for name in packages)
        return version >= [3, 11], cupy, version[:2] == list(map(int, made_for.split(".")))

    best = max(found, key=fits)  # the first of the best
    if best[1] < [3, 11]:
        is_ = ".".join(map(str, best[1]))
        raise SystemExit(
            f"tiledask needs Python 3.11 or later, and {best[0]} is {is_}: name another with "
            f"--python PATH"
        )
    return best


def loads(wheel, version):
    """Whether a wheel's compiled code, if it has any, is for this Python.

    >>> loads("a-1-cp312-cp312-linux_x86_64.whl", [3, 11, 2])
    False
    >>> loads("a-1-cp39-abi3-linux_x86_64.whl", [3, 12, 0]), loads("a-1-py3-none-any.whl", [3, 12])
    (True, True)
    """
    python, abi, _ = wheel[: -len(".whl")].split("-")[-3:]
    made = re.match(r"cp3(\d+)$", python)
    if abi == "none" or not made:
        return abi == "none"
    return int(made[1]) <= version[1] if abi == "abi3" else int(made[1]) == version[1]


def sort_out(facts, version, packages):
    """(names of the wheels to unpack, what else to say): what is here wins wherever it will do."""
    from packaging.specifiers import SpecifierSet

    def will_do(name, own):
        bounds = SpecifierSet(facts["needs"].get(name, ""))
        return name in facts["keeps"] or bounds.contains(own, prereleases=True)

    names, said = [], []
    for name, wheel in facts["wheels"].items():
        own = packages.get(name)
        if own and will_do(name, own):
            continue
        if not loads(wheel, version):
            said.append(f"{wheel} is for another Python")
            continue
        if own:
            said.append(f"{name} {own} stands back: {facts['needs'][name]} is needed")
        names.append(name)
    if "rmm-cu13" in names and not packages.get("cuda-bindings", "").startswith("13."):
        names.remove("rmm-cu13")  # workers would import it, and fail
        facts["left out"]["rmm-cu13"] = "it is brought along, and needs cuda-bindings 13"
    for name, bounds in facts["needs"].items():
        own = packages.get(name)
        if name == "cupy-cuda13x":  # or that of another CUDA, or from source
            own = own or max((v for n, v in packages.items() if n.startswith("cupy")), default=None)
        if name not in names and not own:
            why = facts["left out"].get(name, "it was said to be here")
            said.append(f"{name} is missing: {why}")
        elif name not in names and not SpecifierSet(bounds).contains(own, prereleases=True):
            said.append(f"{name} {own} is used, and {bounds} was asked for")
    return names, said


def unpack_wheel(path, into):
    """What pip does with a wheel, but for its scripts: packages to site/, data to their places."""
    with zipfile.ZipFile(path) as wheel:
        for each in wheel.infolist():
            kind, name = "platlib", each.filename
            if moved := re.match(r"[^/]+\.data/(\w+)/(.+)", name):
                kind, name = moved[1], moved[2]
            if kind in ("platlib", "purelib", "data"):
                each.filename = name if kind == "data" else f"site/{name}"
                wheel.extract(each, into)


def unpack_folder(path, into):
    with tarfile.open(path) as packed:
        only_files = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        name = os.path.basename(path).partition(".")[0]
        packed.extractall(os.path.join(into, name), **only_files)


def unpack(facts, names, above):
    """The folder below ``above`` with site/, checkout/ and cubins/; once unpacked they stay."""
    key = json.dumps([facts["digest"], names])
    folder = os.path.join(above, hashlib.sha256(key.encode()).hexdigest()[:12])
    if os.path.isdir(folder):
        return folder
    partial = tempfile.mkdtemp(dir=above, prefix="partial-")
    jobs = [(unpack_wheel, os.path.join(HERE, "wheels", facts["wheels"][name])) for name in names]
    jobs += [(unpack_folder, path) for path in glob(os.path.join(HERE, "*.tar.xz"))]
    try:
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(how, path, partial) for how, path in jobs]:
                done.result()
        os.rename(partial, folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not (isinstance(error, OSError) and os.path.isdir(folder)):  # another run was first
            raise
    return folder


def own_folder(path):
    """``path``, if it is this user's folder and files can be made in it: asked by making one, as
    root may everything; else None."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path if os.stat(path).st_uid == os.geteuid() else None
    except OSError:
        return None


def environment(folder):
    """What the parts and all their processes are started with."""
    added = [os.path.join(folder, "checkout"), os.path.join(folder, "site")]
    given = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*added, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JUPYTER_PATH": os.path.join(folder, "share", "jupyter"),
        "TMPDIR": tempfile.gettempdir(),  # the one named may not be there
    }
    given.setdefault("TILEDASK_CACHE", os.path.join(folder, "cache"))
    if os.path.isdir(os.path.join(folder, "cubins")):
        given.setdefault("TILEDASK_CUBINS", os.path.join(folder, "cubins"))
    if own_folder(os.path.expanduser("~")) is None:  # the caches of Numba, Matplotlib, Jupyter
        given["HOME"] = folder
    # or each of hundreds of processes would compile everything for itself
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    return given


def main():
    began, words, asked = time.monotonic(), sys.argv[1:], None
    if words[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return
    if words[:1] == ["--python"]:
        if len(words) < 2:
            raise SystemExit("--python needs the path of one")
        asked, words = words[1], words[2:]
    with open(os.path.join(HERE, "bundle.json"), "rb") as file:
        content = file.read()
    facts = json.loads(content.decode())
    python, version, packages = choose(asked, facts["python"])
    if python != sys.executable:
        os.execv(python, [python, os.path.abspath(__file__), "--python", python, *words])
    if words == ["--list"]:
        print("\n".join(f"{name}=={version}" for name, version in sorted(packages.items())))
        return

    os.umask(os.umask(0) | 0o022)  # machine code that others may write is not loaded
    sys.path[:0] = glob(os.path.join(HERE, "wheels", "packaging-*.whl"))
    facts["digest"] = hashlib.sha256(content).hexdigest()
    names, said = sort_out(facts, version, packages)
    above = own_folder(os.path.join(HERE, "unpacked"))
    below = os.path.join(tempfile.gettempdir(), f"tiledask-gpu-bundle-{os.geteuid()}")
    folder = unpack(facts, names, above or own_folder(below) or tempfile.mkdtemp())
    print(f"Python {'.'.join(map(str, version))}, {python}")
    print(
        f"{len(names)} of {len(facts['wheels'])} wheels in {folder}, "
        f"after {time.monotonic() - began:.1f} s"
    )
    for line in said:
        print(f"  {line}")
    out = ["--out", "out"]
    if {word.partition("=")[0] for word in words} & {"--out", "--resume"}:
        out = []
    sys.stdout.flush()
    command = [
        python,
        "-P",
        "-m",
        "tiledask.lab.gpu",
        *out,
        *words,
    ]  # -P: not what lies around here
    os.execve(python, command, environment(folder))


if __name__ == "__main__":
    main()
