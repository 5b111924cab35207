"""Fixtures that several test files share."""

import gc
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from tiledask.tile import namespace, probe

# nbformat's jsonschema makes parsers of addresses with it, for seconds, and does without it
sys.modules.setdefault("rfc3987_syntax", None)

# A machine that is busy with other things is no fault of an example that takes long, to run or to
# draw.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


# what made the recordings needs PyTorch; the stand-in for CuPy has processes of its own
collect_ignore = [
    "conftest.py",  # two of one name; as modules with examples they would be taken for one
    "acceptance/conftest.py",
    "oracles/traces",
    "plan/pipelines/torch_csv",
    "twins/standin",
    "twins/gpu_neighbours.py",
]


LONG_EXAMPLES = {
    "tiledask.distributed.training.run.train",
    "tiledask.lab.dashboard.saved.report",
    "tiledask.lab.doctor.examine",
    "tiledask.lab.exercises.split_layers.lenet_hybrids.hybrid_lenet",
    "tiledask.lab.exercises.training.step_traffic.step_traffic",
    "tiledask.lab.gpu.parts.fit.claims",
    "tiledask.lab.lenet.lenet_claims",
    "tiledask.lab.lenet.lenet_training_claims",
    "tiledask.lab.precision.blame.blame",
    "tiledask.lab.questions.ask.ask",
    "tiledask.plan.choosing.critique.critique",
    "tiledask.plan.choosing.search.search",
    "tiledask.plan.choosing.sensitivity.sensitivity",
    "tiledask.plan.diagnosis.remedies.remedies",
    "tiledask.plan.fitting.fewest.fewest_devices",
    "tiledask.plan.fitting.fit.fits",
    "tiledask.plan.products.stream_search.plan_stream",
    "tiledask.plan.program.making.of_layout.layout_program",
    "tiledask.tile.cuda.prebuilt.variants",
}
"""Examples of docstrings that take over a tenth of a second: marked long, as tests are."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked few(n), all cases but n are slow: the first, the last, and some between."""
    cases = {}
    for item in items:
        if item.name in LONG_EXAMPLES:
            item.add_marker(pytest.mark.long)
        if mark := item.get_closest_marker("few"):
            cases.setdefault((item.path, item.originalname), (mark.args[0], []))[1].append(item)
    for n, drawn in cases.values():
        kept = {i * (len(drawn) - 1) // max(1, n - 1) for i in range(n)}
        for i, item in enumerate(drawn):
            if i not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_sessionstart():
    """What thousands of tests are made of stays: it is not looked through again and again."""
    gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    """NumPy, then CuPy: one test body for both. CuPy is skipped with the probe's reason."""
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
    """No test reads or writes what somebody has solved: not in a folder of walkthroughs, and not
    in a home, where the command line keeps it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TILEDASK_PROGRESS", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def slow_nannies(request):
    """On a busy machine a nanny takes longer than 20 s to start another worker."""
    with pytest.MonkeyPatch.context() as patch:
        if any("distributed" in item.path.parts for item in request.session.items):
            patch.setattr("tiledask.distributed.connecting.slots.EMPTY", 200.0)
        yield


@pytest.fixture(scope="session")
def cluster():
    """Four CPU workers for the whole session; tests may kill workers but not close it."""
    import tiledask as td

    with td.start_cluster(workers=4, device="cpu", quiet=True) as started:
        yield started


@pytest.fixture
def gpus():
    """Eight GPUs with NCCL between them, of the stand-in."""
    from twins.nccl_twin import twin_gpus

    with twin_gpus(8) as machine:
        yield machine


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
