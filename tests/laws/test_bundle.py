"""`make gpu-bundle`: which wheels it takes along, and how `run` puts them beside what is there."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from oracles.finished import ROOT, script
from packaging.requirements import Requirement

bundle, runs = script("bundle"), script("bundle_run")


def wheel(folder, name, version="1", needs=(), tag="py3-none-any", files=None):
    """A wheel of one module that knows its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += "".join(f"Requires-Dist: {each}\n" for each in needs)
    with zipfile.ZipFile(path, "w") as made:
        for file, text in (files or {f"{name}.py": f"version = {version!r}\n"}).items():
            made.writestr(file, text)
        made.writestr(f"{name}-{version}.dist-info/METADATA", about)
        made.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        made.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


# -- which wheels --------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip finds these wheels and no others."""
    folder = tmp_path / "index"
    for name in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    wheel(
        folder,
        "dask",
        "7",
        ["toolz>=1", "old; python_version<'3.12'", "late; python_version>='3.12'"],
    )
    for name in ("toolz", "old", "late"):
        wheel(folder, name)
    wheel(folder, "toolz", "2")
    wheel(folder, "numpy", "2.4", tag="cp312-cp312-manylinux_2_28_x86_64")
    wheel(folder, "numpy", "2.4", tag="cp311-cp311-manylinux_2_28_x86_64")
    wheel(folder, "large", "1", ["numpy"], files={"large.bin": os.urandom(200_000).hex()})
    wheel(folder, "odd", "1", ["dask==6"])
    return folder


def found(tmp_path, has, asked, python="3.12", pinned=None):
    scratch = tmp_path / f"scratch-{len(list(tmp_path.iterdir()))}"
    scratch.mkdir()
    there = bundle.target(python, "x86_64")
    pinned = {"dask": "7", "toolz": "1", "numpy": "2.4"} if pinned is None else pinned
    finder = bundle.Finder(scratch, bundle.read_has(has), pinned, there)
    return finder, [Requirement(each) for each in asked]


@pytest.mark.slow
def test_what_the_machine_lacks_is_found_for_its_python_and_at_our_versions(tmp_path, index):
    finder, asked = found(tmp_path, "numpy==2.5.5\ntorch==2.9", ["dask==7", "numpy>=2"])
    assert {n: w.name for n, w in finder.find(asked).items()} == {
        "dask": "dask-7-py3-none-any.whl",
        "toolz": "toolz-1-py3-none-any.whl",
        "late": "late-1-py3-none-any.whl",
    }
    finder, asked = found(tmp_path, "toolz==0.9\nlate", ["dask==7"])
    with pytest.raises(bundle.Problem, match="toolz>=1"):
        finder.find(asked)
    finder, asked = found(tmp_path, "", ["numpy>=2", "dask==7"], python="3.11")
    names = {w.name for w in finder.find(asked).values()}
    assert "numpy-2.4-cp311-cp311-manylinux_2_28_x86_64.whl" in names
    assert "old-1-py3-none-any.whl" in names


def test_lists_are_read_as_pip_writes_them():
    lines = (
        "# a list",
        "Package    Version",
        "---------- -------",
        "NumPy      2.5.1",
        "ml_dtypes==0.5.4",
        "torch==2.9.0+cu130",
        "pytest",
        "cupy @ file:///x/cupy-14.whl",
        "  odd unknown",
        "-e /work/here",
    )
    assert bundle.read_has("\n".join(lines)) == {
        "numpy": "2.5.1",
        "ml-dtypes": "0.5.4",
        "torch": "2.9.0",
        "pytest": "",
        "cupy": "",
        "odd": "",
    }


@pytest.mark.parametrize(
    ("name", "version", "good"),
    [
        ("numpy", "9.9", True),
        ("numpy", "1.0", True),
        ("dask", "2026.7.1", True),
        ("dask", "2026.7.2", False),
        ("bokeh", "3.8.1", False),
    ],
)
def test_no_version_of_numpy_stands_in_the_way_and_other_bounds_hold(name, version, good):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert bundle.stays(bundle.wanted(project)[name], version) == good


@pytest.mark.slow
def test_what_the_machine_keeps_may_be_newer_than_asked_for(tmp_path, index):
    """As an image's cuda-bindings 13.3 where 13.0 was asked for."""
    finder, (old,) = found(tmp_path, "numpy==9.9", ["numpy<3"])
    with pytest.raises(bundle.Problem, match="numpy<3"):
        finder.find([old])
    finder, (dask,) = found(tmp_path, "numpy==9.9", ["dask==7"])
    asked = bundle.kept({"numpy": old, "dask": dask}, {"numpy": "9.9"})
    assert set(finder.find(list(asked.values()))) == {"dask", "toolz", "late"}


@pytest.mark.slow
def test_what_does_not_fit_or_does_not_go_is_left_out_and_named(tmp_path, index, monkeypatch):
    monkeypatch.setattr(bundle, "IF_IT_FITS", ("large", "odd"))
    listed = {r.name: r for r in map(Requirement, ["dask==7", "large", "odd", "cupy-cuda13x"])}
    listed["old"] = Requirement("old")
    has = bundle.read_has("numpy")
    finder, _ = found(tmp_path, "numpy", [])
    folder = tmp_path / "made"
    folder.mkdir()
    wheels, left = bundle.fill(folder, finder, listed, has, largest=0.05)
    assert set(wheels) == {"dask", "toolz", "late", "old"}
    assert {p.name for p in (folder / "wheels").iterdir()} == {w.name for w in wheels.values()}
    assert set(left) == {"large", "odd", "cupy-cuda13x"}
    assert left["large"].startswith("it takes 0.4 MB, and 0.0 are left of the 0.05 ")
    assert "dask" in left["odd"]


@pytest.mark.long
def test_a_bundle_that_is_too_large_says_by_how_much_and_what_is_largest(tmp_path):
    (tmp_path / "small").write_bytes(bytes(10))
    (tmp_path / "huge.whl").write_bytes(bytes(60_000_000))
    with pytest.raises(
        bundle.Problem, match=r"takes 60\.0 MB and may take 50; .*huge\.whl 60\.0 MB"
    ):
        bundle.check_size(tmp_path, 50)
    bundle.check_size(tmp_path, 61)


def test_the_usual_image_is_listed_by_names_that_have_a_version():
    """A name without one, in the list and in constraints.txt, would be taken along again."""
    has = bundle.read_has((ROOT / ".ci/pytorch-image.txt").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = bundle.pins((ROOT / "constraints.txt").read_text(), bundle.target("3.12", "x86_64"))
    assert {"numpy", "cupy-cuda13x", "numba", "torch"} <= set(has)
    assert set(has) & set(bundle.wanted(project)) <= set(pinned)
    assert not {"dask", "distributed", "zarr", "ipykernel"} & set(has)


@pytest.mark.long
def test_the_checkout_has_what_git_knows_or_would_add_and_names_the_package(tmp_path):
    names = set(bundle.tracked(ROOT))
    here = "tests/laws/test_bundle.py"
    assert {"tiledask/__init__.py", "data/hardware/h200.json", "pyproject.toml", here} <= names
    assert not [name for name in names if name.startswith((".venv", "build", ".git/"))]
    root, made = tmp_path / "root", tmp_path / "made"
    made.mkdir()
    subprocess.run(["git", "init", "--quiet", root], check=True, timeout=60)
    for name in ("new.py", "ignored.pyc"):
        (root / name).write_text(name)
    (root / ".gitignore").write_text("*.pyc")
    bundle.pack_checkout(root, made / "checkout.tar.xz", "1.2")
    with tarfile.open(made / "checkout.tar.xz") as packed:
        about = packed.extractfile("tiledask-1.2.dist-info/METADATA").read()
        assert packed.getnames() == [".gitignore", "new.py", "tiledask-1.2.dist-info/METADATA"]
    assert b"Name: tiledask\nVersion: 1.2\n" in about
    assert [path.name for path in made.iterdir()] == ["checkout.tar.xz"]


# -- run -----------------------------------------------------------------------------------------

SAYS = """
import json, os, sys
from importlib.metadata import version
import numpy, helper, tiledask
print("SAID " + json.dumps({
    "arguments": sys.argv[1:], "executable": sys.executable, "numpy": numpy.version,
    "helper": [helper.version, version("helper")], "tiledask": version("tiledask"),
    "site": sys.path[:2], "data": os.path.exists(os.environ["JUPYTER_PATH"] + "/kernels/k.json"),
    "cache": os.environ["TILEDASK_CACHE"], "compiles": not sys.dont_write_bytecode,
    "cubins": {f.name: f.stat().st_mode & 0o22 for f in os.scandir(os.environ["TILEDASK_CUBINS"])},
}))
"""


@pytest.fixture
def made(tmp_path):
    """A bundle of one toy package, and a machine with a NumPy of its own."""
    folder = tmp_path / "bundle"
    wheels = folder / "wheels"
    files = {
        "helper.py": "version = '3'\n",
        "helper-3.data/data/share/jupyter/kernels/k.json": "{}",
        "helper-3.data/purelib/helped/__init__.py": "",
        "helper-3.data/scripts/x": "",
    }
    made = {
        "helper": wheel(wheels, "helper", "3", files=files),
        "numpy": wheel(wheels, "numpy", "2.4"),
        "other": wheel(wheels, "other", tag="cp27-cp27m-any"),
    }
    facts = {
        "python": ".".join(map(str, sys.version_info[:2])),
        "needs": {"helper": ">=2", "numpy": ">=2,<2.5", "gone": ""},
        "keeps": ["numpy"],
        "left out": {"gone": "it takes 99 MB"},
        "wheels": {name: path.name for name, path in made.items()},
    }
    (folder / "bundle.json").write_text(json.dumps(facts))
    files = {
        "checkout": {
            "tiledask/__init__.py": "",
            "tiledask/lab/gpu/__main__.py": SAYS,
            "tiledask-0.1.dist-info/METADATA": "Name: tiledask\nVersion: 0.1\n",
        },
        "cubins": {"a.cubin": "code"},
    }
    for packed, texts in files.items():
        for name, text in texts.items():
            path = tmp_path / packed / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o666)
        bundle.pack(folder / f"{packed}.tar.xz", {n: tmp_path / packed / n for n in texts})
    shutil.copy(ROOT / ".ci/bundle_run.py", folder / "run")
    for name, version in (("numpy", "2.5"), ("helper", "1")):
        with zipfile.ZipFile(wheel(tmp_path / "own", name, version)) as own:
            own.extractall(tmp_path / "machine")
    return folder


def run(made, *words, python=sys.executable, **environment):
    """(what the toy says of itself, what `run` printed)"""
    machine = {"PYTHONPATH": str(made.parent / "machine"), "PYTHONDONTWRITEBYTECODE": "1"}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TILEDASK_")}
    done = subprocess.run(
        [sys.executable, made / "run", "--python", python, *words],
        cwd=made.parent,
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean, **machine, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line[5:] for line in done.stdout.splitlines() if line.startswith("SAID ")]
    return json.loads(said[0]) if said else None, done.stdout


@pytest.mark.long
def test_what_is_here_wins_where_it_will_do_and_wheels_where_it_will_not(made):
    said, printed = run(made, "--minutes", "9")
    assert said["numpy"] == "2.5"  # though 2.4 was brought along, and asked for
    assert said["helper"] == ["3", "3"]
    assert said["tiledask"] == "0.1"
    assert said["arguments"] == ["--out", "out", "--minutes", "9"]
    assert said["executable"] == sys.executable
    assert sys.executable in printed
    assert (said["data"], said["compiles"], said["cubins"]) == (True, True, {"a.cubin": 0})
    folder = made / "unpacked"
    assert all(Path(path).is_relative_to(folder) for path in [*said["site"], said["cache"]])
    assert sorted(p.name for p in Path(said["site"][1]).iterdir() if p.suffix != ".pyc") == [
        "__pycache__",
        "helped",
        "helper-3.dist-info",
        "helper.py",
    ]
    assert "helper 1 stands back: >=2 is needed" in printed
    assert "numpy 2.5 is used, and >=2,<2.5 was asked for" in printed
    assert "gone is missing: it takes 99 MB" in printed
    assert "other-1-cp27-cp27m-any.whl is for another Python" in printed


@pytest.mark.parametrize(("own", "good"), [("13.5.0", True), ("12.9.1", False), ("", False)])
def test_rmm_is_set_aside_where_it_could_not_be_imported(own, good):
    facts = {
        "wheels": {"rmm-cu13": "rmm-1-py3-none-any.whl"},
        "needs": {"rmm-cu13": "==26.10.*"},
        "keeps": ["cuda-bindings"],
        "left out": {},
    }
    names, said = runs.sort_out(facts, [3, 12, 1], {"cuda-bindings": own} if own else {})
    assert names == ["rmm-cu13"] * good
    assert ("needs cuda-bindings 13" in " ".join(said)) != good


@pytest.mark.long
def test_once_unpacked_it_stays_and_half_a_folder_does_not(made):
    run(made)
    (once,) = (made / "unpacked").iterdir()
    (once / "site" / "helper.py").write_text("version = 'mine'\n")
    said, _ = run(made, "--out=x")
    assert said["helper"][0] == "mine"
    assert said["arguments"] == ["--out=x"]
    facts = json.loads((made / "bundle.json").read_text())
    (made / "bundle.json").write_text(json.dumps({**facts, "new": 1}))
    (made / "checkout.tar.xz").write_bytes(b"half")
    with pytest.raises(AssertionError, match="ReadError"):
        run(made)
    assert list((made / "unpacked").iterdir()) == [once]


@pytest.mark.long
def test_a_closed_folder_is_left_alone(made, tmp_path):
    (made / "unpacked").write_text("a file: no folder can be made, by root neither")
    said, _ = run(made, TMPDIR=str(tmp_path))
    (folder,) = tmp_path.glob("tiledask-gpu-bundle-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(said["site"][1]).is_relative_to(folder)
    said, _ = run(made, TMPDIR=str(tmp_path / "nowhere"), HOME="/proc/no")
    assert said["helper"][0] == "3"


@pytest.mark.long
def test_the_machines_packages_are_listed_for_the_next_bundle(made):
    _, printed = run(made, "--list")
    assert bundle.read_has(printed)["numpy"] == "2.5"
    assert bundle.read_has(printed)["pytest"]
    assert not (made / "unpacked").exists()


@pytest.mark.long
def test_a_python_that_will_not_do_is_said(made, tmp_path):
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\necho '[\"{old}\", [3, 9, 1], {{}}]'\n")
    old.chmod(0o755)
    for asked, said in ((str(old), "needs Python 3.11 or later"), ("none", "none does not start")):
        with pytest.raises(AssertionError, match=said):
            run(made, python=asked)


@pytest.mark.parametrize(
    ("tag", "good"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp312-cp312-linux_x86_64", True),
        ("cp311-cp311-linux_x86_64", False),
        ("cp39-abi3-linux_x86_64", True),
        ("cp313-abi3-linux_x86_64", False),
        ("py3-none-manylinux_2_24_x86_64", True),
    ],
)
def test_compiled_code_is_for_one_python(tag, good):
    assert runs.loads(f"a_b-1.0-{tag}.whl", [3, 12, 4]) == good


# -- the whole of it, in an environment like the machine's ---------------------------------------

ALONE = """
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1 | 64))  # loopback is up
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Behind `unshare --net`: a command with no network but this machine's own."""


def call(*words, **more):
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=280, **more
    )


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Python 3.12 with NumPy 2.5 and what else is listed, but for what needs a GPU."""
    bases = [*Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12"), shutil.which("python3.12")]
    works = [each for each in bases if each and not call(each, "-c", "import ensurepip").returncode]
    if not works:
        pytest.skip("needs a python3.12 that can make environments")
    folder = tmp_path_factory.mktemp("image")
    call(works[0], "-m", "venv", folder, check=True)
    has = bundle.read_has((ROOT / ".ci/pytorch-image.txt").read_text())
    heavy = {name for name in has if name.startswith(("cu", "nvidia"))} | {"torch", "triton"}
    words = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "numpy==2.5.*",
        *sorted(set(has) - heavy - {"numpy"}),
    )
    done = call(folder / "bin/python", *words)
    if done.returncode:
        pytest.skip(f"needs a package index: {done.stderr[-300:]}")
    return folder / "bin/python"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bundle for that environment, without machine code, which takes minutes more."""
    folder = tmp_path_factory.mktemp("whole") / "gpu-bundle"
    done = call(sys.executable, ROOT / ".ci/bundle.py", "--capability", "none", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def run_alone(whole, image, folder, *words, **environment):
    if shutil.which("unshare") is None or call("unshare", "-rn", "true").returncode:
        pytest.skip("needs `unshare -rn`, for a machine without a network")
    mine = ("PYTHON", "TILEDASK_", "VIRTUAL_ENV")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
    return call(
        "unshare",
        "-rn",
        image,
        "-c",
        ALONE,
        image,
        whole / "run",
        *words,
        cwd=folder,
        env={**clean, **environment},
    )


@pytest.mark.slow
def test_the_environment_has_numpy_2_5_and_nothing_of_dask(image):
    """Made by a test of its own: each may take five minutes."""
    asked = (
        "import importlib.util, numpy; print(numpy.__version__, importlib.util.find_spec('dask'))"
    )
    assert re.match(r"2\.5\.\d+ None\n", call(image, "-c", asked).stdout)


@pytest.mark.slow
def test_the_bundle_takes_at_most_50_mb(whole):
    print(f"{bundle.size(whole) / 1e6:.1f} MB")
    assert bundle.size(whole) <= 50_000_000
    assert {p.name for p in whole.iterdir()} == {"run", "bundle.json", "checkout.tar.xz", "wheels"}


@pytest.mark.slow
def test_a_machine_without_network_and_cupy_is_told_what_is_missing(whole, image, tmp_path):
    done = run_alone(whole, image, tmp_path, "--minutes", "1")
    print(done.stdout)  # with how long it took to unpack
    assert done.returncode == 1, done.stderr
    assert re.match(rf"Python 3\.12\.\d+, {image}\n", done.stdout)
    assert "cupy-cuda13x is missing" in done.stdout
    assert "numpy" not in done.stdout
    assert "finds none that it could use" in done.stdout


STANDS_IN_FOR = {
    "cupy_cuda13x": "14.2.0",
    "cuda_bindings": "13.0.3",
    "cuda_core": "1.2.0",
    "nvidia_cuda_nvrtc": "13.0.88",
    "rmm_cu13": "26.10.0",
    "librmm_cu13": "26.10.0",
}


@pytest.mark.slow
def test_with_the_stand_in_for_cupy_parts_run_and_leave_their_record(whole, image, tmp_path):
    for name, version in STANDS_IN_FOR.items():  # the machine has them, as far as anybody can tell
        about = tmp_path / "has" / f"{name}-{version}.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    stand_in = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/twins/standin"), str(tmp_path / "has")]),
        "STANDIN_GPUS": "2",
        "DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC": "1",
        "DASK_CUDA_TEST_SINGLE_GPU": "1",
    }
    words = ("--minutes", "4", "--only", "machine,product")
    done = run_alone(whole, image, tmp_path, *words, **stand_in)
    (record,) = (tmp_path / "out").glob("*.json")
    assert len(list((tmp_path / "out").iterdir())) <= 8
    found = json.loads(record.read_text())
    assert {row["part"]: row["state"] for row in found["parts"]} == {
        "machine": "done",
        "product": "done",
    }, done.stdout
    assert [row for row in found["rows"] if row["state"] in ("wrong", "failed")] == []
