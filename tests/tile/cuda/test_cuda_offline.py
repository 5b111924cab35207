"""The CUDA kernels compile for the GPUs we name, on machines without one, within a budget.

Registers, spills and shared memory are ptxas's own report; instructions come from disassembly.

Holds `tiledask.tile.cuda.launch` and `tiledask.tile.cuda.build`.
"""

import os
import re
import shutil
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from oracles.compiler_said import compiled, machine_code, round_trips, text_bytes

from tiledask.errors import KernelError
from tiledask.tile.backend import nvrtc_reason
from tiledask.tile.choice.config import config_of, configs, hopper, occupancy
from tiledask.tile.cuda import build
from tiledask.tile.cuda.build import file_text

pytestmark = pytest.mark.skipif(bool(nvrtc_reason()), reason=nvrtc_reason() or "-")

PLAIN = {"HAS_BETA": 0}
SMEM, SGEMM, MMA, WGMMA = configs
CODE_BYTES = 64 * 1024
"""The most instructions that a kernel may have: what no cache holds is fetched for every tile."""
ROUND_TRIPS = 8
"""Times that a thread may stand still for what it reads of C, a tile."""
DEVICES = {"sm_80": "A100-40GB", "sm_90": "H100", "sm_90a": "H100"}


def compile_it(name, arch, macros):
    """(machine code, registers of a thread at launch, bytes of shared memory that the text
    declares): nothing is spilled, and no instruction of ours is ignored or made to wait."""
    code, log = compiled(name, macros, arch)

    def number(unit):
        found = re.search(rf"(\d+) {unit}", log)
        return int(found[1]) if found else 0

    for what in ("bytes spill stores", "bytes spill loads", "bytes stack frame"):
        assert number(what) == 0, what
    # C7508: setmaxnreg ignored; C7510, C7511, C7514: wgmma made to wait; C7519: a fence was missing
    assert re.findall(r".*\(C\d+\).*", log) == []
    assert text_bytes(code) < CODE_BYTES
    return code, number("registers"), number("bytes smem")


def macros_of(config, kind, **flags):
    """What a launch defines for the text: plain, if nothing else is given."""
    macros = {"TYPE": kind, "OUT": kind, "STAGES": config.stages, "A_TURNED": 0, "B_TURNED": 1}
    rows, columns, depth = config.block
    macros |= {"TILE_N": columns, **PLAIN}
    if config.kernel == WGMMA:
        return macros | {"CLUSTER": config.cluster, "STAGED": int(config.kept > 0)} | flags
    return macros | {"TILE_M": rows, "TILE_K": depth} | flags


def assert_as_configured(config, registers, arch):
    """As many blocks fit a multiprocessor as with the registers that ``config`` has: a few more or
    less change nothing else."""
    exact, device = replace(config, registers=registers), DEVICES[arch]
    assert abs(registers - config.registers) <= 32
    assert occupancy(exact, device).blocks == occupancy(config, device).blocks


def usual(kernel, arch, folder):
    """The names of the instructions of a kernel as it is measured."""
    code, *_ = compile_it(kernel, arch, USUAL[kernel])
    return [name for name, _ in machine_code(code, folder)]


def starting(names, *prefixes):
    return [name for name in names if name.startswith(prefixes)]


# -- smem_tiled ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("tile", [each.block for each in configs["smem_tiled"]])
def test_smem_tiled_compiles_within_its_budget(arch, tile):
    code, registers, shared = compile_it("smem_tiled", arch, {"TILE": tile[0], **PLAIN})
    assert code[:4] == b"\x7fELF"
    assert b"smem_tiled" in code
    assert shared == 2 * tile[0] ** 2 * 4  # one tile of A, one of B
    assert_as_configured(config_of("smem_tiled", tile=tile), registers, arch)
    # a multiprocessor has 65,536 registers: room for two blocks of 32 x 32 threads with 32 each,
    # which is all the threads it takes, or for four of 16 x 16 with 64
    assert registers <= {16: 64, 32: 32}[tile[0]]


# -- the others ----------------------------------------------------------------------------------


def drawn(kernel, number):
    """(configuration, macros) of what a launch may ask; how C goes out is decided by the rest."""
    draw = Random(f"{kernel} {number}")
    flags = {name: draw.choice((0, 1)) for name in ("A_TURNED", "B_TURNED", *PLAIN)}
    kind = "float" if kernel == SGEMM else "bf16"
    flags["OUT"] = draw.choice((kind, "float"))
    config = draw.choice(configs[kernel])
    if kernel == WGMMA:
        plain = not flags["HAS_BETA"] and flags["OUT"] != "float"
        config = hopper(config.block[1], draw.choice((1, 2)), plain)
    return config, macros_of(config, kind, **flags)


KINDS = {SGEMM: "float", MMA: "bf16", WGMMA: "bf16"}
PLAINLY = [(config, macros_of(config, KINDS[k])) for k in KINDS for config in configs[k]]
USUAL = {config.kernel: macros for config, macros in reversed(PLAINLY)}
"""As it is measured."""
EVERY = PLAINLY + [
    pytest.param(*drawn(kernel, n), marks=[pytest.mark.slow] * (n > 0))
    for n in range(60)
    for kernel in KINDS
]


@pytest.mark.parametrize(("config", "macros"), EVERY)
def test_any_variant_compiles_without_spills_and_nothing_is_ignored(tmp_path, config, macros):
    archs = ["sm_90a"] if config.kernel == WGMMA else ["sm_80", "sm_90"]
    for arch in archs:
        code, registers, _ = compile_it(config.kernel, arch, macros)
        if macros["HAS_BETA"]:
            assert 1 <= round_trips(machine_code(code, tmp_path)) <= ROUND_TRIPS
        if config.kernel == WGMMA:
            # 384 threads share 65,536 registers until the producer gives some of its own away
            assert registers == 168
        else:  # two blocks of 128 or 256 threads, with 1 KB a block for the system
            assert 2 * registers * config.threads <= 65_536
            assert 2 * (config.shared_bytes + 1024) <= {"sm_80": 164, "sm_90": 228}[arch] * 1024
        # on the least GPU that runs it; others may take fewer
        if arch == archs[0] and (config, macros) in PLAINLY:
            assert_as_configured(config, registers, arch)


def test_wgmma_gives_registers_away_and_fits_into_a_multiprocessor():
    text = file_text("wgmma_ws_persistent.cu")
    down, up = (int(re.search(rf"registers_{x}_to<(\d+)>", text)[1]) for x in ("down", "up"))
    assert 128 * down + 256 * up <= 384 * 168
    assert down % 8 == up % 8 == 0
    assert up >= 128 + 32  # 128 sums of the wide tile, and addresses
    for columns, staged in product((256, 128), (False, True)):
        way = hopper(columns, staged=staged)
        # the ring is as deep as it can be: one more stage would not fit
        assert way.shared_bytes <= 227 * 1024 < way.shared_bytes + (128 + columns) * 128
        assert way.stages >= 3


def test_wgmma_uses_what_hopper_has(tmp_path):
    names = usual(WGMMA, "sm_90a", tmp_path)
    assert set(starting(names, "HGMMA")) == {"HGMMA.64x256x16.F32.BF16"}
    # B for both blocks of a cluster, C, and waits at barriers
    assert all(starting(names, x) for x in ("UTMALDG.3D.MULTICAST", "UTMASTG.3D", "SYNCS.PHASECHK"))
    assert len(starting(names, "USETMAXREG")) == 2
    assert not starting(names, "LDL", "STL", "HMMA", "FFMA")
    # between one stage's products and the next the whole GPU is not waited for
    products = [i for i, name in enumerate(names) if name.startswith("HGMMA")]
    assert not starting(names[products[0] : products[-1]], "MEMBAR", "BAR", "ERRBAR")


def test_sgemm_multiplies_most_of_the_time(tmp_path):
    """In the longest stretch without a barrier or a jump: the step along k."""
    names = usual(SGEMM, "sm_90", tmp_path)
    stretches = re.split(r"\b(?:BRA|BAR|EXIT|DEPBAR)\S*", " ".join(names))
    step = max((s.split() for s in stretches), key=lambda s: len(starting(s, "FFMA")))
    assert len(starting(step, "FFMA")) > 0.85 * len(step)
    # four neighbours at a time, and copies that pass the registers by
    assert all(starting(names, x) for x in ("LDS.128", "LDGSTS"))
    assert not starting(names, "LDL", "STL")


def test_mma_feeds_the_tensor_cores_from_shared_memory(tmp_path):
    names = usual(MMA, "sm_80", tmp_path)
    assert set(starting(names, "HMMA")) == {"HMMA.16816.F32.BF16"}
    # B lies row by row: turned
    assert all(starting(names, x) for x in ("LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS"))
    assert not starting(names, "LDL", "STL", "FFMA")


# -- what does not compile; where machine code is kept ---------------------------------------------

REFUSED = [
    *(("smem_tiled", {"TILE": n}, "sm_90", "power of two of at most 32") for n in (24, 64)),
    (WGMMA, USUAL[WGMMA], "sm_90", r"did not compile for sm_90 with TYPE=bf16"),
]


@pytest.mark.parametrize(("name", "macros", "arch", "words"), REFUSED)
def test_what_a_gpu_cannot_hold_is_refused(name, macros, arch, words):
    with pytest.raises(KernelError, match=words):
        build.compile_for(name, macros, arch)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache folder; what is compiled into it is noted in a list."""
    monkeypatch.delenv("TILEDASK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    made = []
    monkeypatch.setattr(
        build, "compile_for", lambda *a: (made.append(a), (b"\x7fELF right", ""))[1]
    )
    return made


def test_machine_code_is_kept_by_what_it_is_of_in_a_folder_closed_to_others(cache, monkeypatch):
    path = build._kept("smem_tiled", {"TILE": 16}, "sm_80")
    assert path.read_bytes() == b"\x7fELF right"
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    assert build._kept("smem_tiled", {"TILE": 16}, "sm_80") == path
    assert len(cache) == 1
    others = {build._kept("smem_tiled", {"TILE": n}, f"sm_{a}") for n, a in ((32, 80), (16, 90))}
    monkeypatch.setattr(build, "texts", lambda name: ["another text"])
    others.add(build._kept("smem_tiled", {"TILE": 16}, "sm_80"))
    assert len(others - {path}) == 3
    assert len(cache) == 4
    assert {p.suffix for p in path.parent.iterdir()} == {".cubin"}


FOLDERS = {
    "a link": lambda folder: folder.symlink_to(folder.rename(folder.parent.parent / "planted")),
    "another's": lambda folder: os.chown(folder, 12345, 12345),
    "a file": lambda folder: (shutil.rmtree(folder), folder.touch()),
}


@pytest.mark.parametrize("how", FOLDERS)
def test_a_folder_that_others_can_write_to_is_not_used(cache, how):
    if how == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = build._kept("smem_tiled", {"TILE": 16}, "sm_80").parent
    FOLDERS[how](folder)
    with pytest.raises(KernelError, match="set TILEDASK_CACHE to a folder of your own"):
        build._kept("smem_tiled", {"TILE": 16}, "sm_80")
