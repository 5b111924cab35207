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

ALL = dict.fromkeys(("HAS_BETA", "HAS_BIAS", "HAS_GELU", "HAS_BEFORE"), 1)
PLAIN = dict.fromkeys((*ALL, "PAIRS", "BIAS_BY_ROW"), 0)
WGMMA = {"TYPE": "bf16", "OUT": "bf16", "TILE_N": 256, "STAGES": 3, "CLUSTER": 2, "STAGED": 1}
WGMMA |= {"A_TURNED": 0, "B_TURNED": 1, **PLAIN}
CODE_BYTES = 64 * 1024
"""The most instructions that a kernel may have: what no cache holds is fetched for every tile."""
ROUND_TRIPS = 8
"""Times that a thread may stand still for what it reads of C and bias, a tile."""
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


def assert_as_configured(config, registers, arch):
    """As many blocks fit a multiprocessor as with the registers that ``config`` has: a few more or
    less change nothing else."""
    exact, device = replace(config, registers=registers), DEVICES[arch]
    assert abs(registers - config.registers) <= 32
    assert occupancy(exact, device).blocks == occupancy(config, device).blocks


def instructions(code, folder):
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


# -- wgmma_ws_persistent -------------------------------------------------------------------------

OPTIONS = {"TYPE": ("bf16", "f16"), "OUT": ("half", "float"), "TILE_N": (256, 128)}
OPTIONS |= {"CLUSTER": (1, 2), **dict.fromkeys(("A_TURNED", "B_TURNED", *PLAIN), (0, 1))}


def drawn(number):
    """What a launch may ask of the kernel: how C goes out is decided by the rest."""
    draw = Random(number)
    macros = {name: draw.choice(values) for name, values in OPTIONS.items()}
    macros["BIAS_BY_ROW"] &= macros["HAS_BIAS"]
    plain = not (macros["HAS_BETA"] or macros["HAS_BEFORE"])
    macros["STAGED"] = int(plain and macros["PAIRS"] == 1 and macros["OUT"] == "half")
    macros["STAGES"] = (3 if macros["STAGED"] else 4) + (macros["TILE_N"] == 128)
    macros["OUT"] = macros["TYPE"] if macros["OUT"] == "half" else "float"
    return macros


@pytest.mark.few(3)
@pytest.mark.parametrize("macros", [WGMMA, *map(drawn, range(99))])
def test_wgmma_compiles_without_spills_and_nothing_is_ignored(tmp_path, macros):
    code, registers, _ = compile_it("wgmma_ws_persistent", "sm_90a", macros)
    # 384 threads share 65,536 registers until the producer gives some of its own away
    assert registers == 168
    config = configs["wgmma_ws_persistent"][macros["TILE_N"] == 128]
    assert_as_configured(config, registers, "sm_90a")
    if macros["HAS_BETA"] or macros["HAS_BIAS"]:
        assert 1 <= round_trips(machine_code(code, tmp_path)) <= ROUND_TRIPS


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
    names = instructions(compile_it("wgmma_ws_persistent", "sm_90a", WGMMA)[0], tmp_path)
    assert set(starting(names, "HGMMA")) == {"HGMMA.64x256x16.F32.BF16"}
    # B for both blocks of a cluster, C, and waits at barriers
    assert all(starting(names, x) for x in ("UTMALDG.3D.MULTICAST", "UTMASTG.3D", "SYNCS.PHASECHK"))
    assert len(starting(names, "USETMAXREG")) == 2
    assert not starting(names, "LDL", "STL", "HMMA", "FFMA")
    # between one stage's products and the next the whole GPU is not waited for
    products = [i for i, name in enumerate(names) if name.startswith("HGMMA")]
    assert not starting(names[products[0] : products[-1]], "MEMBAR", "BAR", "ERRBAR")


# -- sgemm_warptiled and mma_multistage ------------------------------------------------------------

SGEMM, MMA = ([each.block for each in configs[k]] for k in ("sgemm_warptiled", "mma_multistage"))
PANELS = {
    "sgemm": ("sgemm_warptiled", "float", "float", SGEMM[0]),
    "sgemm, small": ("sgemm_warptiled", "float", "float", SGEMM[1]),
    "bf16": ("mma_multistage", "bf16", "bf16", MMA[0]),
    "bf16, small": ("mma_multistage", "bf16", "bf16", MMA[1]),
    "fp16 to float32": ("mma_multistage", "f16", "float", MMA[0]),
}
ENDINGS = [
    *(({}, "plain"), (ALL, "everything")),
    *(
        (dict(zip(("A_TURNED", "B_TURNED"), lie, strict=True)), "")
        for lie in ((1, 0), (1, 1), (0, 0))
    ),
]


def panels(variant, arch, **more):
    """(its configuration, what `compile_it` has of it)."""
    name, kind, out, tile = PANELS[variant]
    config = config_of(name, {"bf16": "bfloat16", "f16": "float16"}.get(kind, "float32"), tile)
    macros = dict(zip(("TILE_M", "TILE_N", "TILE_K"), tile, strict=True))
    macros |= {"TYPE": kind, "OUT": out, "STAGES": config.stages, "A_TURNED": 0, "B_TURNED": 1}
    return config, compile_it(name, arch, macros | PLAIN | more)


@pytest.mark.few(6)
@pytest.mark.parametrize(("more", "ending"), ENDINGS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("variant", PANELS)
def test_panels_compile_without_spills_and_two_blocks_fit(tmp_path, arch, variant, more, ending):
    config, found = panels(variant, arch, **more, PAIRS=int(arch == "sm_90"))
    code, registers, _ = found
    if ending == "everything":
        assert 1 <= round_trips(machine_code(code, tmp_path)) <= ROUND_TRIPS
    if ending == "plain" and arch == "sm_80":  # the least GPU that runs it; others may take fewer
        assert_as_configured(config, registers, arch)
    # 65,536 registers for two blocks of 128 or 256 threads, 164 and 228 KB of shared memory with
    # 1 KB a block for the system
    assert registers <= {"sgemm": 128}.get(variant, 255)
    assert 2 * (config.shared_bytes + 1024) <= {"sm_80": 164, "sm_90": 228}[arch] * 1024


def test_sgemm_multiplies_most_of_the_time(tmp_path):
    """In the longest stretch without a barrier or a jump: the step along k."""
    names = instructions(panels("sgemm", "sm_90")[1][0], tmp_path)
    stretches = re.split(r"\b(?:BRA|BAR|EXIT|DEPBAR)\S*", " ".join(names))
    step = max((s.split() for s in stretches), key=lambda s: len(starting(s, "FFMA")))
    assert len(starting(step, "FFMA")) > 0.85 * len(step)
    # four neighbours at a time, and copies that pass the registers by
    assert all(starting(names, x) for x in ("LDS.128", "LDGSTS"))
    assert not starting(names, "LDL", "STL")


def test_mma_feeds_the_tensor_cores_from_shared_memory(tmp_path):
    names = instructions(panels("bf16", "sm_80")[1][0], tmp_path)
    assert set(starting(names, "HMMA")) == {"HMMA.16816.F32.BF16"}
    # B lies row by row: turned
    assert all(starting(names, x) for x in ("LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS"))
    assert not starting(names, "LDL", "STL", "FFMA")


# -- what does not compile; where machine code is kept ---------------------------------------------

REFUSED = [
    *(("smem_tiled", {"TILE": n}, "sm_90", "power of two of at most 32") for n in (24, 64)),
    ("wgmma_ws_persistent", WGMMA, "sm_90", r"did not compile for sm_90 with TYPE=bf16"),
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
    monkeypatch.setattr(build, "source", lambda name: "another text")
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
