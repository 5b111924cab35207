"""Chimera: two replicas of the model in opposite directions fill each other's bubbles
(arXiv 2107.06925, figure 3).

    rank 0     F0 F2 .. F1 F3 B1 B3 B0 .. B2      even micro-batches go down the devices, odd
    rank 1     .. F0 F1 ...                       ones up, half of them each; a device has a
    rank 2     .. F1 F0 ...                       stage near the start and one near the end
    rank 3     F1 F3 .. F0 F2 B0 B2 B1 .. B3
"""

from heapq import heappop, heappush

from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["chimera"]


def chimera(stages: int, microbatches: int) -> Schedule:
    """Chimera, with every stage on two devices: half the bubble of 1F1B for twice the weights.

    Units of p micro-batches follow one another without a flush; if F and B take equally long
    and m is a multiple of an even p, the makespan is (2m + p - 2) F. A device keeps at most p
    activations. Where a device could do several things it takes a backward first, then the
    forward that has come furthest.

    >>> print(chimera(2, 2).to_text())
    @0,1
    @1,0
    0F0,1F1,1B1,0B0
    0F1,1F0,1B0,0B1
    """
    places = [list(range(stages)), list(range(stages))[::-1]]
    orders: list[list[Action]] = [[] for _ in range(stages)]
    ready: list[list[tuple[tuple[bool, int, int, int], Action]]] = [
        [] for _ in range(stages)
    ]  # heaps of (rank, action)
    kept = [0] * stages

    def offer(kind: str, stage: int, microbatch: int) -> None:
        rank = kind == "F", microbatch // stages, -stage, microbatch
        device = places[microbatch % 2][stage]
        heappush(ready[device], (rank, Action(kind, stage, microbatch)))

    for i in range(microbatches):
        offer("F", 0, i)
    left = 2 * stages * microbatches
    while left:  # a slot, in which every device does one action
        slot = []
        for device, heap in enumerate(ready):
            if heap and (heap[0][1].kind == "B" or kept[device] < stages):
                slot.append((device, heappop(heap)[1]))
        for device, action in slot:
            orders[device].append(action)
            kind, s, i = action
            kept[device] += 1 if kind == "F" else -1
            if kind == "F":
                offer(*(("F", s + 1, i) if s + 1 < stages else ("B", s, i)))
            elif s:
                offer("B", s - 1, i)
        left -= len(slot)
    return Schedule.of(orders, places, "chimera")
