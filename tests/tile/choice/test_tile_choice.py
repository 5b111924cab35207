"""The choice of tile: shared memory, occupancy, waves, four levels, bounds; by brute force too.

Holds `tiledask.tile.choice`.
"""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.tile.choice.config import Config, candidates, configs, hopper, hopper_tile, refusal
from tiledask.tile.levels import traffic

H200, A100 = load_device("H200"), load_device("A100-40GB")
MINE = Config("mine", (128, 256, 64), (64, 256), 384, 2, "bf16", registers=168, stages=4)
"""The tile of research and teaching: no cluster, no raster groups, no padding."""
ON_GPUS = [*configs]


# -- configurations ------------------------------------------------------------------------------


def test_a_kernels_configuration_follows_type_and_tile():
    assert td.tile.config_of("smem_tiled", "float32", 16).threads == 256
    assert td.tile.config_of("wgmma_ws_persistent", "", (128, 128, 64)).warp == (64, 128)


@pytest.mark.parametrize("kernel", ON_GPUS)
@pytest.mark.parametrize("name", ["T4", "L4", "A100-80GB", "H200", "B200"])
def test_candidates_are_those_that_can_run(kernel, name):
    found = candidates(kernel, name)
    own = [c for c in configs[kernel] if c.itemsize == td.tile.config_of(kernel).itemsize]
    assert len(set(found)) == len(found)
    assert {*found} & {*own} == {c for c in own if not refusal(c, name)}
    assert not any(refusal(config, name) for config in found)
    copying = 4 if kernel == "wgmma_ws_persistent" else 0  # and of the others 4 multiply together
    for config in found:  # the warps of a block cover its tile
        groups = (config.warps - copying) // max(1, copying)
        assert groups * config.warp[0] * config.warp[1] == config.block[0] * config.block[1]


# -- occupancy -----------------------------------------------------------------------------------


def resident(config: Config, device: Device) -> int:
    """Blocks that fit, by adding one after the other until something runs out."""
    quarters = [device.registers // 4] * 4
    shared, threads, blocks = device.shared_bytes, device.threads, 0
    while True:
        for _ in range(config.warps):
            quarters[quarters.index(max(quarters))] -= ceil(config.registers * 32 / 256) * 256
        reserve = 0 if device.capability == "7.5" else 1024
        shared -= ceil((config.shared_bytes + reserve) / 128) * 128
        threads -= config.warps * 32
        if min(*quarters, shared, threads) < 0 or blocks == device.blocks:
            return blocks
        blocks += 1


@given(
    name=st.sampled_from(["T4", "A10", "A100-40GB", "L4", "H100", "B200"]),
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    kept=st.integers(0, 64_000),
)
@settings(max_examples=100)
def test_occupancy_is_how_many_blocks_fit(name, threads, registers, kept):
    device = load_device(name)
    config = Config("mine", (1, 1, 1), (1, 1), threads, 1, "bf16", registers=registers, kept=kept)
    found = td.tile.occupancy(config, device)
    assert found.blocks == resident(config, device)
    assert found.blocks in [allowed for what, allowed in found.limits if what in found.binding]
    assert found.blocks * found.warps <= found.most_warps


def test_occupancy_of_a_published_kernel():
    """siboehm.com/articles/22/CUDA-MMM, kernel 3 on a GPU of capability 8.6: 37 registers, 1024
    threads, 8 KiB: 11 blocks by shared memory, 1 by threads, 1 by registers; 66 % of the warps."""
    config = Config("smem", (32, 32, 32), (1, 32), 1024, 4, "fp32", registers=37)
    found = td.tile.occupancy(config, "A10")
    assert dict(found.limits) == {"registers": 1, "shared memory": 11, "threads": 1, "blocks": 16}
    assert (found.blocks, 100 * found.warps // found.most_warps) == (1, 66)
    assert found.binding == "registers and threads"


# -- the tile that Hopper's kernel takes ---------------------------------------------------------

SHAPES = [
    *((1024, 1024, 2**e) for e in range(6, 17)),
    *((3072, 3072, 8192), (2304, 2304, 8192), (4096,) * 3, (8192,) * 3, (128, 4096, 7168)),
    *((300, 700, 4000), (1, 1, 2**20), (130, 10**5, 4096), (384, 2048, 4096)),
    *((128 * rows, 2**17, 4096) for rows in (1, 2, 3, 4, 5, 7, 27, 28)),  # an odd row costs
]


@pytest.mark.parametrize("multiprocessors", [132, 114, 7, 1])
def test_the_tile_chosen_is_the_one_that_takes_least(multiprocessors):
    def cycles(way):
        """Of the busiest cluster, by dealing out tile after tile."""
        columns, cluster = way.block[1], way.cluster
        step, end = {256: (1024, 2000), 128: (600, 1000)}[columns]
        tiles = len(range(0, m, 128 * cluster)) * len(range(0, n, columns))
        busiest = len(range(0, tiles, max(1, multiprocessors // cluster)))
        return busiest * (len(range(0, k, 64)) * step * (1.04 if cluster == 1 else 1) + end)

    for m, n, k in SHAPES:
        ways = [hopper(t, c) for t in (256, 128) for c in (1, 2)[: 1 + (m > 128)]]
        least = min(map(cycles, ways))
        assert cycles(hopper_tile(m, n, k, multiprocessors)) == least, (m, n, k)


# -- four levels ---------------------------------------------------------------------------------


def test_published_bytes_of_8192_cubed_and_what_a_cluster_saves():
    """Research: 128x256 tiles of bf16 move 12.9 GB from L2 to the multiprocessors, 85 FLOP/B."""
    found = td.tile.predict(8192, 8192, 8192, MINE, H200)
    level = found["L2 -> shared memory"]
    assert round(level.loaded / 1e9, 1) == 12.9
    assert round(level.flops / level.loaded) == 85
    assert found["DRAM -> L2"].loaded < level.loaded / 3
    pair = td.tile.predict(8192, 8192, 8192, replace(MINE, cluster=2), H200)
    one = traffic(8192, 8192, 8192, MINE.block, 2)
    assert pair["L2 -> shared memory"].loaded == one.a + one.b // 2 < level.loaded


def test_the_levels_by_hand():
    """4 tiles of 8 x 8 on a device of 2 multiprocessors."""
    config = Config("mine", (8, 8, 4), (4, 8), 64, 2, "bf16")
    nothing = ("l2_bytes", "registers", "shared_bytes", "threads", "block_shared_bytes")
    rates = {"memory_bandwidth": 1e9, "clock": 1e9, "l2_bytes_per_clock": 2, "blocks": 1}
    device = replace(H200, multiprocessors=2, shared_bytes_per_clock=4, **rates)
    device = replace(device, **dict.fromkeys(nothing, 0))
    found = td.tile.predict(16, 16, 8, config, device)
    dram, l2, shared = found.levels
    # two waves of one row of tiles each: A once, B twice
    assert (dram.loaded, dram.stored) == (2 * 16 * 8 + 2 * 2 * 16 * 8, 2 * 16 * 16)
    assert l2.loaded == 2 * 2 * 2 * 16 * 8
    assert l2.seconds == (l2.loaded + 2 * 16 * 16) / 2e9
    # each warp's request is for 4 or 8 elements of 2 bytes, and takes a row of 128
    assert shared.loaded == (16 // 4) * (16 // 8) * 8 * (128 + 128)
    assert shared.seconds == shared.loaded / 8e9
    assert found.compute == 2 * 16 * 16 * 8 / device.peak("bf16") * 2  # 2 of 4 quarters have a warp
    # 4 tiles on 3 multiprocessors take as long as 6
    uneven = td.tile.predict(16, 16, 8, config, replace(device, multiprocessors=3))
    assert uneven.compute == pytest.approx(found.compute * 6 / 4)


def test_the_two_levels_are_independent():
    """Blocks of 1 x 8, 2 x 4 and 8 x 1 workers leave a tile's intensity alone."""
    kernels, inside = [c for found in configs.values() for c in found if c.itemsize == 2], set()
    for config, rows in product(kernels, (1, 2, 8)):
        found = td.tile.predict(8192 // rows, 1024 * rows, 8192, config, H200)
        inside.add((config, *(level.intensity for level in found.levels[1:])))
    assert len(inside) == len(kernels)


def test_what_is_unknown_bounds_nothing():
    found = td.tile.predict(4096, 4096, 4096, "mma_multistage", "L4", "bfloat16")
    assert "L2 -> shared memory not bounded" in repr(found)


# -- bounds --------------------------------------------------------------------------------------

A6000 = replace(
    load_device("A10"), multiprocessors=84, memory_bandwidth=768e9, clock=1.8e9,
    peak_flops=(("fp32", 38.7e12),), l2_bytes=6 * 2**20,
)  # fmt: skip
"""NVIDIA RTX A6000 datasheet: 10,752 cores, 38.7 TFLOPS, 768 GB/s."""
MEASURED = [
    # siboehm.com/articles/22/CUDA-MMM, 4096 in fp32: shared memory, and warp tiling
    ("smem_tiled", A6000, 4096, "float32", 2.98),
    ("sgemm_warptiled", A6000, 4096, "float32", 21.8),
    # github.com/pranjalssh/fast.cu, H100 in bf16
    ("wgmma_ws_persistent", "H100", 4096, "bfloat16", 763),
    ("wgmma_ws_persistent", "H100", 8192, "bfloat16", 808),
]


@pytest.mark.parametrize(("kernel", "device", "n", "dtype", "teraflops"), MEASURED)
def test_what_others_measured_is_below_the_bound_and_not_far(kernel, device, n, dtype, teraflops):
    found = td.tile.predict(n, n, n, kernel, device, dtype)
    assert 0.5 < teraflops * 1e12 / found.flops_per_second < 1


@given(mnk=st.tuples(*[st.integers(1, 5000)] * 3), kernel=st.sampled_from(ON_GPUS[:3]))
@settings(max_examples=60, deadline=None)
def test_a_bound_respects_peak_and_memory(mnk, kernel):
    (m, n, k), found = mnk, td.tile.predict(*mnk, kernel, "A100-40GB")
    config = found.config
    assert found.flops_per_second <= A100.peak(config.peak) * (1 + 1e-9)
    compulsory = (m * k + k * n + m * n) * config.itemsize
    assert found.seconds >= compulsory / A100.memory_bandwidth
    assert found.seconds == max(found.times.values()) == found.times[found.binding]


# -- what is refused -----------------------------------------------------------------------------


REFUSED = [
    (lambda: td.tile.predict(8, 8, 8, "mma_multistage", "T4"), "8.0 or higher, and T4 has 7.5"),
    (lambda: td.tile.predict(8, 8, 8, "wgmma_ws_persistent", "B200"), "9.0 exactly"),
    *(
        (lambda of=of: td.tile.config_of(*of), r"is built for tiles of .* and \w+, got")
        for of in (("mma_multistage", "float16"), ("smem_tiled", "", 64))
    ),
    (lambda: td.tile.predict(8, 8, 8, "tiled", H200), "got 'tiled'; td.tile.traffic"),
    (lambda: td.tile.occupancy(MINE, replace(H200, multiprocessors=0)), "'multiprocessors'"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_refused(call, words):
    with pytest.raises(KernelError, match=words):
        call()
