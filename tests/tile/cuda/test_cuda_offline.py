"""The CUDA kernels compile for the GPUs we name, on machines without one, within a budget.

Registers, spills and shared memory are ptxas's own report; instructions come from disassembly.

Holds `tiledask.tile.cuda.launch` and `tiledask.tile.cuda.build`.
"""

import os
import re
import shutil
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest
from oracles import compiler_said

from tiledask.errors import KernelError
from tiledask.tile.backend import nvrtc_reason
from tiledask.tile.choice.config import config_of, configs, hopper, occupancy, refusal
from tiledask.tile.cuda import build
from tiledask.tile.cuda.build import file_text

pytestmark = pytest.mark.skipif(bool(nvrtc_reason()), reason=nvrtc_reason() or "-")

ALL = dict.fromkeys(("HAS_BETA", "HAS_BIAS", "HAS_GELU", "HAS_BEFORE"), 1)
PLAIN = dict.fromkeys((*ALL, "PAIRS", "BIAS_BY_ROW"), 0)
WGMMA = {"TYPE": "bf16", "OUT": "bf16", "TILE_N": 256, "STAGES": 3, "CLUSTER": 2, "STAGED": 1}
WGMMA |= {"A_TURNED": 0, "B_TURNED": 1, **PLAIN}


class Resources(NamedTuple):
    """What ptxas says that one thread, and one block, of a kernel takes."""

    registers: int  # Of a thread, at launch
    spilled: int  # Bytes of a thread that did not fit and go through memory, and of local memory
    shared: int  # Bytes of shared memory that the text itself declares; a launch may add to them
    remarks: tuple  # An ignored setmaxnreg (C7508), a wgmma made to wait (C7510)...


def compile_it(name, arch, macros):
    """(machine code, its Resources)."""
    code, log = compiler_said.compiled(name, macros, arch)

    def number(unit):
        found = re.search(rf"(\d+) {unit}", log)
        return int(found[1]) if found else 0

    spilled = sum(map(number, ("bytes spill stores", "bytes spill loads", "bytes stack frame")))
    remarks = tuple(line.strip() for line in log.splitlines() if re.search(r"\(C\d+\)", line))
    return code, Resources(number("registers"), spilled, number("bytes smem"), remarks)


def machine_code(code, folder):
    """[(name, operands)] of the machine instructions."""
    if compiler_said.disassembler() is None:
        pytest.skip("nvdisasm is not installed (pip install -e '.[test]' brings it on Linux)")
    return compiler_said.disassembly(code, folder)


def instructions(code, folder):
    return [name for name, _ in machine_code(code, folder)]


def starting(names, *prefixes):
    return [name for name in names if name.startswith(prefixes)]


def as_configured(config, found, arch):
    """Whether as many blocks fit a multiprocessor as with the registers that ``config`` has: a few
    more or less change nothing else. On the least GPU that runs it; others may take fewer."""
    if arch == "sm_90" and not config.capability.startswith("9"):
        return True
    device = {"sm_80": "A100-40GB", "sm_90": "H100"}[arch]
    exact = replace(config, registers=found.registers)
    near = abs(found.registers - config.registers) <= 32 and not refusal(config, device)
    return near and occupancy(exact, device).blocks == occupancy(config, device).blocks


# -- smem_tiled ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("tile", [each.block for each in configs["smem_tiled"]])
def test_smem_tiled_compiles_within_its_budget(arch, tile):
    extent = tile[0]
    code, found = compile_it("smem_tiled", arch, {"TILE": extent, **PLAIN})
    assert code[:4] == b"\x7fELF"
    assert b"smem_tiled" in code
    assert found.shared == 2 * extent * extent * 4  # one tile of A, one of B
    assert found.spilled == 0
    assert as_configured(config_of("smem_tiled", tile=tile), found, arch)
    # a multiprocessor of sm_80 and sm_90 has 65,536 registers: room for two blocks of 32 x 32
    # threads with 32 each, which is all the threads it takes, or for four of 16 x 16 with 64
    assert found.registers <= {16: 64, 32: 32}[extent]


@pytest.mark.parametrize("extent", [24, 64])
def test_a_tile_the_kernel_cannot_hold_is_refused(extent):
    with pytest.raises(KernelError, match="power of two of at most 32"):
        build.compile_for("smem_tiled", {"TILE": extent}, "sm_90")


# -- wgmma_ws_persistent -------------------------------------------------------------------------

DIRECT = {"STAGED": 0, "STAGES": 4}
CODE_BYTES = 64 * 1024
"""The most instructions that a kernel may have: what no cache holds is fetched for every tile."""
ROUND_TRIPS = 8
"""Times that a thread may stand still for what it reads of C and bias, a tile."""


def endings():
    """All that a launch can ask of the epilogue, and of the way out."""
    for beta, bias, gelu, before in product((0, 1), ("", "column", "row"), (0, 1), (0, 1)):
        used = {
            "HAS_BETA": beta,
            "HAS_BIAS": int(bias != ""),
            "HAS_GELU": gelu,
            "HAS_BEFORE": before,
            "BIAS_BY_ROW": int(bias == "row"),
        }
        if not beta and not before:
            yield {"PAIRS": 1, **used}  # staged
        for out, pairs in product(("half", "float"), (0, 1)):
            yield {**DIRECT, "OUT": out, "PAIRS": pairs, **used}


WAYS = [
    {"TYPE": kind, "TILE_N": columns, "CLUSTER": cluster, "A_TURNED": a, "B_TURNED": b}
    for kind, columns, cluster, a, b in product(("bf16", "f16"), (256, 128), (1, 2), (0, 1), (0, 1))
]
PRODUCT = [
    ({}, {}),  # as it is measured
    *((ending, WAYS[7 * i % len(WAYS)] | {"TILE_N": 256}) for i, ending in enumerate(endings())),
    *(({**DIRECT, **ALL, "PAIRS": pairs}, way) for pairs, way in product((0, 1), WAYS)),
    ({}, {"TYPE": "f16", "TILE_N": 128, "CLUSTER": 1}),
]
"""Every ending with the wide tile, whose sums leave least room; every way to lie with all of it."""


@pytest.mark.few(2)
@pytest.mark.parametrize(("ending", "way"), PRODUCT)
def test_wgmma_compiles_without_spills_and_nothing_is_ignored(tmp_path, ending, way):
    macros = {**WGMMA, "OUT": "half", **ending, **way}
    if macros["OUT"] != "float":
        macros["OUT"] = macros["TYPE"]
    macros["STAGES"] += macros["TILE_N"] == 128
    code, found = compile_it("wgmma_ws_persistent", "sm_90a", macros)
    assert found.spilled == 0
    # 384 threads share 65,536 registers until the producer gives some of its own away
    assert found.registers == 168
    assert as_configured(configs["wgmma_ws_persistent"][macros["TILE_N"] == 128], found, "sm_90")
    # C7508: setmaxnreg ignored; C7510, C7511, C7514: wgmma made to wait; C7519: a fence was missing
    assert found.remarks == ()
    assert 4096 < compiler_said.text_bytes(code) < CODE_BYTES
    if macros["HAS_BETA"] or macros["HAS_BIAS"]:
        read = machine_code(code, tmp_path)
        assert starting([name for name, _ in read], "LDG")
        assert 1 <= compiler_said.round_trips(read) <= ROUND_TRIPS


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
    code, _ = compile_it("wgmma_ws_persistent", "sm_90a", WGMMA)
    names = instructions(code, tmp_path)
    assert set(starting(names, "HGMMA")) == {"HGMMA.64x256x16.F32.BF16"}
    # B for both blocks of a cluster, C, and waits at barriers
    assert all(starting(names, x) for x in ("UTMALDG.3D.MULTICAST", "UTMASTG.3D", "SYNCS.PHASECHK"))
    assert len(starting(names, "USETMAXREG")) == 2
    assert not starting(names, "LDL", "STL", "HMMA", "FFMA")
    # between one stage's products and the next the whole GPU is not waited for
    products = [i for i, name in enumerate(names) if name.startswith("HGMMA")]
    assert not starting(names[products[0] : products[-1]], "MEMBAR", "BAR", "ERRBAR")


def test_wgmma_is_for_sm_90a_alone():
    with pytest.raises(KernelError, match=r"did not compile for sm_90 with TYPE=bf16"):
        build.compile_for("wgmma_ws_persistent", WGMMA, "sm_90")


# -- sgemm_warptiled and mma_multistage ------------------------------------------------------------

SGEMM, MMA = ([each.block for each in configs[k]] for k in ("sgemm_warptiled", "mma_multistage"))
PANELS = {
    "sgemm": ("sgemm_warptiled", "float", "float", SGEMM[0]),
    "sgemm, small": ("sgemm_warptiled", "float", "float", SGEMM[1]),
    "bf16": ("mma_multistage", "bf16", "bf16", MMA[0]),
    "bf16, small": ("mma_multistage", "bf16", "bf16", MMA[1]),
    "fp16 to float32": ("mma_multistage", "f16", "float", MMA[0]),
}


def panels(variant, **more):
    name, kind, out, tile = PANELS[variant]
    config = config_of(name, "float32" if kind == "float" else "float16", tile)
    stages, shared = config.stages, config.shared_bytes
    macros = dict(zip(("TILE_M", "TILE_N", "TILE_K"), tile, strict=True))
    macros |= {"TYPE": kind, "OUT": out, "STAGES": stages, "A_TURNED": 0, "B_TURNED": 1}
    macros |= {**PLAIN, **more}
    return name, macros, shared


@pytest.mark.few(2)
@pytest.mark.parametrize("ending", ["plain", "everything"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("variant", PANELS)
def test_panels_compile_without_spills_and_two_blocks_fit(tmp_path, arch, variant, ending):
    more = {key: int(ending == "everything") for key in ALL}
    name, macros, shared = panels(variant, PAIRS=int(arch == "sm_90"), **more)
    code, found = compile_it(name, arch, macros)
    assert compiler_said.text_bytes(code) < CODE_BYTES
    if ending == "everything":
        assert 1 <= compiler_said.round_trips(machine_code(code, tmp_path)) <= ROUND_TRIPS
    assert found.spilled == 0
    assert found.remarks == ()
    tile = PANELS[variant][3]
    kind = {"bf16": "bfloat16", "f16": "float16", "float": "float32"}[macros["TYPE"]]
    assert ending != "plain" or as_configured(config_of(name, kind, tile), found, arch)
    # 65,536 registers for two blocks of 128 or 256 threads, 164 and 228 KB of shared memory with
    # 1 KB a block for the system
    assert found.registers <= {"sgemm": 128}.get(variant, 255)
    assert 2 * (shared + 1024) <= {"sm_80": 164, "sm_90": 228}[arch] * 1024


@pytest.mark.few(2)
@pytest.mark.parametrize("turned", [(1, 0), (1, 1), (0, 0)])
@pytest.mark.parametrize("variant", ["sgemm", "bf16"])
def test_panels_the_other_ways_do_not_spill_either(variant, turned):
    name, macros, _ = panels(variant, A_TURNED=turned[0], B_TURNED=turned[1])
    assert compile_it(name, "sm_80", macros)[1].spilled == 0


def test_sgemm_multiplies_most_of_the_time(tmp_path):
    """In the longest stretch without a barrier or a jump: the step along k."""
    name, macros, _ = panels("sgemm")
    names = instructions(compile_it(name, "sm_90", macros)[0], tmp_path)
    stretches = re.split(r"\b(?:BRA|BAR|EXIT|DEPBAR)\S*", " ".join(names))
    step = max((s.split() for s in stretches), key=lambda s: len(starting(s, "FFMA")))
    assert len(starting(step, "FFMA")) > 0.85 * len(step)
    # four neighbours at a time, and copies that pass the registers by
    assert all(starting(names, x) for x in ("LDS.128", "LDGSTS"))
    assert not starting(names, "LDL", "STL")


def test_mma_feeds_the_tensor_cores_from_shared_memory(tmp_path):
    name, macros, _ = panels("bf16")
    names = instructions(compile_it(name, "sm_80", macros)[0], tmp_path)
    assert set(starting(names, "HMMA")) == {"HMMA.16816.F32.BF16"}
    # B lies row by row: turned
    assert all(starting(names, x) for x in ("LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS"))
    assert not starting(names, "LDL", "STL", "FFMA")


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [k for k in configs if k != "tiled"])
def test_kernels_hold_no_ptx_themselves(name):
    text = file_text(f"{name}.cu")
    assert "asm" not in re.sub(r"//.*", "", text)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache folder; what is compiled into it is noted in a list."""
    monkeypatch.delenv("TILEDASK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    made = []

    def compiled(*given):
        made.append(given)
        return b"\x7fELF right", ""

    monkeypatch.setattr(build, "compile_for", compiled)
    return made


def test_machine_code_is_kept_by_what_it_is_of_in_a_folder_closed_to_others(cache, monkeypatch):
    path = build._kept("smem_tiled", {"TILE": 16}, "sm_80")
    assert path.read_bytes() == b"\x7fELF right"
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    assert build._kept("smem_tiled", {"TILE": 16}, "sm_80") == path
    assert len(cache) == 1
    others = {
        build._kept("smem_tiled", *of) for of in (({"TILE": 32}, "sm_80"), ({"TILE": 16}, "sm_90"))
    }
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
