"""Stand-ins for stages: they keep their device busy for a given time without using its core.

device 0   [zzz F0 zzz]              [zzz B0 zzz]        more devices than cores can be
device 1               [zzz F0 zzz][zzz B0 zzz]          studied: sleep needs no core
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Dummy"]


@dataclass(frozen=True)
class Dummy:
    """A stage without weights that adds 1 to what passes through it, there and back.

    So the outputs say through how many stages each row went, and the "gradients" how many
    micro-batches came back.

    >>> y, saved = Dummy().forward(None, np.zeros((1, 1)))
    >>> float(y[0, 0])
    1.0
    """

    width: int = 1

    def init(self, backend: str) -> None:
        return None

    def forward(self, weights: None, x: Any) -> tuple[Any, None]:
        return x + 1, None

    def backward_input(self, weights: None, saved: None, dy: Any) -> tuple[Any, None]:
        return dy + 1, None

    def backward_weight(self, saved: None) -> list[dict[str, np.ndarray]]:
        return [{"microbatches": np.ones(1, np.int64)}]
