"""How a kernel tiles: one frozen value, from the block of C down to the registers of a warp.

cluster      blocks that share what they load
  block      (tm, tn, tk), in shared memory, `stages` of them under way
    warp     (rows, columns) of C that one warp, or warp group, computes
      thread `registers` of 32 bits
"""

from dataclasses import dataclass, replace

from tiledask.errors import KernelError
from tiledask.plan.whole import whole_number
from tiledask.tile.levels import Tile, as_tile

__all__ = ["Config"]


@dataclass(frozen=True)
class Config:
    """How one kernel tiles a product.

    >>> config = Config("mma_multistage", (128, 128, 32), (64, 64), threads=128, itemsize=2,
    ...                 peak="bf16", registers=255, stages=4)
    >>> config.shared_bytes, config.warps
    (65536, 4)
    """

    kernel: str
    block: Tile
    """(tm, tn, tk): rows and columns of C that a thread block owns, and a step along k."""
    warp: tuple[int, int]
    """Rows and columns of C whose operands one warp (or warp group) reads from shared memory."""
    threads: int
    """Per block."""
    itemsize: int
    """Bytes of an element of A and B."""
    peak: str
    """The peak that bounds it: "fp32", "tf32", "bf16", "fp16"; empty on a CPU."""
    registers: int = 0
    """Per thread, at launch; 0 if unknown."""
    stages: int = 1
    """Tiles of A and B in shared memory at one time."""
    pad: int = 0
    """Bytes after each row of a tile in shared memory, which keep banks from colliding."""
    a_rows: str = "m"
    """Which way A's tile lies: "m" for tm rows of tk elements, "k" for tk rows of tm."""
    b_rows: str = "k"
    """Which way B's tile lies: "k" for tk rows of tn elements, "n" for tn rows of tk."""
    kept: int = 0
    """Bytes of shared memory besides the stages: barriers, and C on its way out."""
    cluster: tuple[int, int] = (1, 1)
    """Blocks along m and n that load together: what two of them need is loaded once."""
    group: int = 1
    """Rows of tiles that are walked together: see `raster`."""
    persistent: bool = False
    """Whether one block per slot takes tile after tile, and not one block a tile."""
    capability: str = ""
    """The least compute capability, such as "8.0"; empty for any."""
    exactly: bool = False
    """Whether no other capability will do: wgmma is Hopper's alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", as_tile(self.block))
        tm, tn, _ = self.block
        for name in ("threads", "itemsize", "stages", "group"):
            whole_number(name, getattr(self, name), 1, error=KernelError)
        if tm % self.warp[0] or tn % self.warp[1]:
            raise KernelError(
                f"the tile of a warp must divide the block's: {self.warp[0]}x{self.warp[1]} does "
                f"not divide {tm}x{tn}; a block of {tm}x{tn} takes for example {tm}x{tn}"
            )
        for name, either in (("a_rows", "mk"), ("b_rows", "kn")):
            if getattr(self, name) not in tuple(either):
                raise KernelError(
                    f"{name} is {either[0]!r} or {either[1]!r}, got {getattr(self, name)!r}"
                )

    @property
    def warps(self) -> int:
        """Warps of a block, each of 32 threads."""
        return -(-self.threads // 32)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one tile of A and one of B, padding included."""
        tm, tn, tk = self.block
        a = (tm, tk) if self.a_rows == "m" else (tk, tm)
        b = (tk, tn) if self.b_rows == "k" else (tn, tk)
        return sum(rows * (length * self.itemsize + self.pad) for rows, length in (a, b))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        return self.stages * self.stage_bytes + self.kept

    @property
    def loaded_together(self) -> tuple[int, int]:
        """Rows and columns of C of a whole cluster: what is loaded from L2 once for all of it."""
        return self.block[0] * self.cluster[0], self.block[1] * self.cluster[1]

    def with_block(self, block: int | Tile) -> "Config":
        """This configuration with another block tile; the warp's stays where it divides."""
        tm, tn, tk = as_tile(block)
        rows, columns = self.warp
        warp = (rows if tm % rows == 0 else tm, columns if tn % columns == 0 else tn)
        return replace(self, block=(tm, tn, tk), warp=warp)

    def __str__(self) -> str:
        words = [f"{self.kernel} {'x'.join(map(str, self.block))}"]
        if self.stages > 1:
            words.append(f"{self.stages} stages")
        if self.cluster != (1, 1):
            words.append(f"cluster {self.cluster[0]}x{self.cluster[1]}")
        if self.group > 1:
            words.append(f"group {self.group}")
        return ", ".join(words)
