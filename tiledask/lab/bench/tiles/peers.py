"""torch and Triton as contenders, on CuPy's own arrays: nothing is copied.

Triton's kernel is the product that its tutorial teaches: one program per tile of C, tiles walked in
groups of rows so that neighbours share what L2 holds, and the fastest of a few configurations.
"""

from collections.abc import Sequence
from typing import Any

from tiledask.errors import KernelError
from tiledask.lab.bench.tiles.clock import Run
from tiledask.lab.bench.tiles.rounds import Gemm, Set
from tiledask.tile.backend import namespace

try:
    import triton
    import triton.language as tl
except ImportError:  # `why_not` says so
    triton = None

__all__ = ["CONFIGS", "as_torch", "torch_run", "triton_run", "why_not"]

CONFIGS = (
    # tile of m, n, k; rows of tiles in a group; warps; stages
    (128, 256, 64, 8, 8, 3),
    (128, 256, 64, 8, 8, 4),
    (256, 128, 64, 8, 8, 3),
    (128, 128, 64, 8, 4, 3),
    (128, 128, 64, 8, 8, 4),
    (128, 128, 32, 8, 4, 4),
    (64, 256, 32, 8, 4, 4),
    (128, 64, 32, 8, 4, 4),
)
"""What Triton's kernel is tuned over, for each shape and layout."""


def why_not(name: str) -> str:
    """Why torch, or Triton, cannot compute here, in a sentence; empty if it can."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU; install a build of it for CUDA"
    return "triton cannot be imported here" if name != "torch" and triton is None else ""


def as_torch(x: Any) -> Any:
    """CuPy's array ``x`` as a tensor of the same memory.

    Halves go over as integers: DLPack's bfloat16 is not known to every version.
    """
    import torch

    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    if x.dtype.name not in kinds:
        return torch.from_dlpack(x)
    bits = x.view("i2") if x.flags.c_contiguous else x.T.view("i2").T
    return torch.from_dlpack(bits).view(kinds[x.dtype.name])


def torch_run(work: Gemm, sets: Sequence[Set]) -> Run:
    """torch.matmul into ``out``, on the stream that CuPy uses."""
    import torch

    _same_stream(torch)
    torch.backends.cuda.matmul.allow_tf32 = work.precision == "tf32"
    tensors = [tuple(map(as_torch, s)) for s in sets]

    def run(i: int) -> None:
        a, b, out = tensors[i]
        torch.matmul(a, b, out=out)

    return run


def _same_stream(torch: Any) -> None:
    mine = namespace("cupy").cuda.get_current_stream().ptr
    theirs = torch.cuda.current_stream().cuda_stream
    if mine != theirs:
        raise KernelError(
            f"CuPy and torch must work on one stream to be timed by the same events, got {mine:#x} "
            f"and {theirs:#x}; unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
        )


def triton_run(work: Gemm, sets: Sequence[Set]) -> Run:
    """Triton's kernel into ``out``; the first product of a shape tunes it."""
    import torch

    if work.dtype.itemsize != 2:
        raise KernelError(f"Triton's kernel is compared on halves, got {work.dtype.name}")
    _same_stream(torch)
    tensors = [tuple(map(as_torch, s)) for s in sets]
    return lambda i: launch(*tensors[i])


def launch(a: Any, b: Any, c: Any) -> None:
    """c = a @ b for tensors of halves."""
    (m, k), n = a.shape, b.shape[1]
    # the kernel with its configurations, made when it is first asked for
    if not _kept:
        configs = [
            triton.Config(
                {"TM": tm, "TN": tn, "TK": tk, "GROUP": group}, num_warps=warps, num_stages=stages
            )
            for tm, tn, tk, group, warps, stages in CONFIGS
        ]
        strides = ["am", "ak", "bk", "bn"]
        _kept.append(triton.autotune(configs, key=["m", "n", "k", *strides])(product))
    _kept[0][lambda meta: (triton.cdiv(m, meta["TM"]) * triton.cdiv(n, meta["TN"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()
    )


_kept: list[Any] = []


if triton is not None:

    @triton.jit
    def product(
        a_at,
        b_at,
        c_at,
        m,
        n,
        k,
        am,
        ak,
        bk,
        bn,
        cm,
        cn,
        TM: tl.constexpr,
        TN: tl.constexpr,
        TK: tl.constexpr,
        GROUP: tl.constexpr,
    ):
        """One tile of C [m, n] = A [m, k] B [k, n]; am is A's stride from row to row, and so on."""
        rows, columns = tl.cdiv(m, TM), tl.cdiv(n, TN)
        program = tl.program_id(0)
        # down the rows of a group, then to its next column
        group = program // (GROUP * columns)
        first = group * GROUP
        high = min(rows - first, GROUP)
        within = program % (GROUP * columns)
        i, j = first + within % high, within // high

        # edges wrap around: what is read twice there is not stored
        at_m = (i * TM + tl.arange(0, TM)) % m
        at_n = (j * TN + tl.arange(0, TN)) % n
        at_k = tl.arange(0, TK)
        a_tile = a_at + at_m[:, None] * am + at_k[None, :] * ak
        b_tile = b_at + at_k[:, None] * bk + at_n[None, :] * bn
        total = tl.zeros((TM, TN), dtype=tl.float32)
        for step in range(0, tl.cdiv(k, TK)):
            left = k - step * TK
            x = tl.load(a_tile, mask=at_k[None, :] < left, other=0.0)
            y = tl.load(b_tile, mask=at_k[:, None] < left, other=0.0)
            total = tl.dot(x, y, total)
            a_tile += TK * ak
            b_tile += TK * bk

        to_m, to_n = i * TM + tl.arange(0, TM), j * TN + tl.arange(0, TN)
        c_tile = c_at + to_m[:, None] * cm + to_n[None, :] * cn
        inside = (to_m[:, None] < m) & (to_n[None, :] < n)
        tl.store(c_tile, total.to(c_at.dtype.element_ty), mask=inside)
