"""The same code with arrays of a device: layers over ranks and a training, by CuPy's rules."""

import numpy as np
import pytest
from oracles.single_gpt import TEXT
from twins import device_twin

from tiledask import GPT, load_images, train, train_lenet
from tiledask.distributed.ranks import threads
from tiledask.tile.optimizers import SGD, Adam, LossScale

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = load_images("digits")
PLAIN = GPT(59, hidden=16, layers=2, heads=4, sequence=8)
GATED = GPT(59, 16, 2, 4, 8, kv_heads=2, ffn=27, gated=True, tied=True)


@pytest.fixture
def twin(monkeypatch):
    """Ranks on devices."""
    module, ran = device_twin.use(monkeypatch), threads.ran
    monkeypatch.setattr(
        threads,
        "ran",
        lambda program, shape, transport, _, given: ran(program, shape, transport, "cupy", given),
    )
    return module


LAYOUTS = [
    pytest.param(PLAIN, (1, 1, 1), {}, marks=pytest.mark.slow),
    (PLAIN, (2, 2, 2), {"sequence_parallel": True, "clip": 0.5}),
    (PLAIN, (2, 1, 2), {"zero": 1, "dtype": "float16", "scale": LossScale(2.0**18)}),
    (GATED, (2, 2, 1), {"zero": 3, "clip": 0.5, "dtype": "float16"}),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "shape", "options"), LAYOUTS)
def test_a_training_on_devices(model, shape, options, request, tmp_path):
    options = {"steps": 3, "batch": 5, "microbatches": 2, "rule": Adam(1e-2)} | options
    host = train(model, TEXT, shape, **options)
    request.getfixturevalue("twin")
    device = train(model, TEXT, shape, folder=tmp_path, **options | {"steps": 2})
    again = train(model, TEXT, shape, folder=tmp_path, **options)
    # of halves a GPU rounds the gradients of attention's scores, by 2^-11 each
    near = 2.0**-11 if "dtype" in options else 0
    np.testing.assert_allclose([*device.losses, *again.losses], host.losses, rtol=near)
    for name, w in host.weights.items():
        assert isinstance(again.weights[name], np.ndarray)
        assert near or np.array_equal(again.weights[name], w), name
    assert device.held == host.held
    ran, wanted = (
        [(r.label, r.sent, r.received) for r in done.records.where(rank=0) if r.step is not None]
        for done in (device, host)
    )
    assert bool(ran) == (shape != (1, 1, 1))
    assert ran == wanted[: len(ran)]


WAYS = [{}, {"data parallel": 2, "layerwise": 2}, {"network": 4}, {"data parallel": 2, "space": 2}]


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "x".join(ways) or "single")
def test_lenet_on_devices(ways, request):
    options = {"steps": 2, "batch": 5, "rule": SGD(0.1, momentum=0.9)}
    host = train_lenet(DIGITS, ways, **options)
    request.getfixturevalue("twin")
    device = train_lenet(DIGITS, ways, **options)
    assert device.losses.tolist() == host.losses.tolist()
    for name, w in host.weights.items():
        assert np.array_equal(device.weights[name], w), name


def test_the_twin_refuses_what_cupy_refuses(twin):
    x, host = twin.asarray(np.ones(3)), np.ones(3)
    mixed = (lambda: np.asarray(x), lambda: x + host, lambda: twin.concatenate([x, host]))
    for each in (*mixed, lambda: x.__setitem__(slice(2), host[:2])):
        with pytest.raises(TypeError, match=r"Implicit conversion|Unsupported type"):
            each()


def test_what_a_step_in_bfloat16_launches_and_moves(twin):
    """Of the second of two steps; 675 and 284.7 MB by one of CuPy's kernels for each operation."""
    model, counted = GPT(59, hidden=128, layers=2, heads=4, sequence=128, gated=True), []
    for steps in (1, 2):
        device_twin.LAUNCHED.clear()
        device_twin.MOVED.clear()
        train(model, TEXT, (1, 1, 1), steps=steps, batch=2, dtype="bfloat16", rule=Adam(1e-3))
        counted.append((device_twin.LAUNCHED.total(), device_twin.MOVED.total()))
    launches, moved = (two - one for one, two in zip(*counted, strict=True))
    assert launches <= 370
    assert moved <= 66.5e6
