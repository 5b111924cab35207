"""Fixtures that several test files share."""

import gc
import subprocess
import time

import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from tiledask.tile import namespace, probe

# A machine that is busy with other things is no fault of an example that takes long, to run or to
# draw.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


collect_ignore = [
    "conftest.py",  # two of one name; as modules with examples they would be taken for one
    "acceptance/conftest.py",
    "faults",  # python -m pytest -m "" tests/faults: minutes of killed workers
]


FIRST = ("test_tour", "test_connect", "test_cluster", "test_typed_readme", "test_matmul")
FIRST += ("test_dashboard_cluster", "test_deadlines", "test_room", "test_interrupt")
FIRST += ("16_convolutions", "17_expected_against_measured", "18_break_it_and_find_it")
"""Files that take long with few tests: begun first, so that nobody waits for them at the end."""
CPU_SECONDS = 3.0
"""What a test of make test may need: those that need more are named at the end."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked few(n), all cases but n are slow: the first, the last, and some between.

    Then the files are put into the order in which several processes take them: those that wait
    (workers, notebooks) evenly between those that compute, the long ones first.
    """
    cases = {}
    for item in items:
        if mark := item.get_closest_marker("few"):
            cases.setdefault((item.path, item.originalname), (mark.args[0], []))[1].append(item)
    for n, drawn in cases.values():
        kept = {i * (len(drawn) - 1) // max(1, n - 1) for i in range(n)}
        for i, item in enumerate(drawn):
            if i not in kept:
                item.add_marker(pytest.mark.slow)
    yield
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting, computing = {}, {}
    for path, tests in files.items():
        waits = path.suffix == ".ipynb" or any(t.get_closest_marker("cluster") for t in tests)
        (waiting if waits else computing)[path] = tests
    place = {}
    for kind in (waiting, computing):
        ordered = sorted(kind, key=lambda path: (path.stem not in FIRST, -len(files[path])))
        place |= {path: (i + 0.5) / len(ordered) for i, path in enumerate(ordered)}
    items.sort(key=lambda item: place[item.path])


def pytest_sessionstart():
    """What thousands of tests are made of stays: it is not looked through again and again."""
    gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(params=["numpy", "twin", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request, monkeypatch):
    """NumPy, CuPy's twin, CuPy: one test body for all. CuPy is skipped with the probe's reason."""
    if request.param == "twin":
        from twins import device_twin

        return device_twin.use(monkeypatch)
    if request.param == "cupy" and not probe().usable:
        pytest.skip(f"no usable GPU: {probe().reason}")
    return namespace(request.param)


@pytest.fixture(scope="module")
def one_thread():
    """BLAS on one thread: of small products, on a busy machine, threads mostly wait."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session", autouse=True)
def no_progress(tmp_path_factory):
    """No test reads or writes what somebody has solved: not in a folder of notebooks, and not
    in a home, where the command line keeps it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TILEDASK_PROGRESS", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setattr("tiledask.lab.learner.kept.NEAR", ())  # your own learn/ stays as it is
        yield


@pytest.fixture(scope="session")
def cluster():
    """Four CPU workers for the whole session; tests may kill workers but not close it."""
    import tiledask as td

    with td.start_cluster(workers=4, device="cpu", quiet=True) as started:
        yield started


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB, for tests that fill it; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no disk that could be filled: {getattr(error, 'stderr', None) or error}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    begun = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu", time.process_time() - begun))


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.stats.get("passed", ())
    took = [(dict(report.user_properties).get("cpu", 0.0), report.nodeid) for report in passed]
    for seconds, name in sorted(took, reverse=True):
        if seconds > CPU_SECONDS:
            terminalreporter.write_line(f"{seconds:.1f} s of CPU, make it slow or short: {name}")
