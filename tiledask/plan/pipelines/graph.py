"""What an action waits for, apart from its turn, in columns; and an order in which all can run.

F(s, i)  needs  F(s-1, i)                        activations from the stage before
B(s, i)  needs  F(s, i) and B(s+1, i)            its own activations, gradient from behind
I(s, i)  needs  F(s, i) and I(s+1, i)            the gradient of the input alone
W(s, i)  needs  I(s, i)                          the gradient of the weights

Where one stage does B and the next I, each needs the one that is there.

rank 0     F0 F1 .. .. B0      every device goes on until it lacks a result, down the devices and
rank 1     .. F0 F1 B0 ..      up the devices; where this stops before the end is the deadlock
"""

import numpy as np

__all__ = ["Step", "run_order", "sources"]

Step = tuple[int, int, int]
"""(an action, the one before it on its device, the one whose result it waits for), as positions;
-1 for none."""


def sources(kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """int64 [actions, 2]: the positions of the actions whose results each uses, its own stage's
    first, -1 for none. Kinds are positions in "FBIW"."""
    shape = int(stage.max(initial=0)) + 3, int(microbatch.max(initial=0)) + 1
    activations, gradient = np.full(shape, -1), np.full(shape, -1)  # stage s at row s + 1
    forward, backward = kind == 0, (kind == 1) | (kind == 2)
    activations[stage[forward] + 1, microbatch[forward]] = np.flatnonzero(forward)
    gradient[stage[backward] + 1, microbatch[backward]] = np.flatnonzero(backward)
    own = np.where(backward, activations[stage + 1, microbatch], gradient[stage + 1, microbatch])
    own = np.where(forward, activations[stage, microbatch], own)
    return np.stack([own, np.where(backward, gradient[stage + 2, microbatch], -1)], axis=1)


def run_order(turns: list[int], paired: np.ndarray, maker: np.ndarray) -> list[Step]:
    """A Step for each action, after those that it names; fewer where devices wait in a circle.

    turns     where each device's actions begin, and where the last one's end
    paired    [actions]: whether this is done at once with the action after it
    maker     [actions]: the position of the one that each waits for, -1 for none

    Of a pair the second comes first, as an action of no length, and then the first, which takes
    the time of both; what follows either follows the first.
    """
    many = len(maker)
    second = np.append(False, paired[:-1])
    ends = np.append(np.arange(many) - second, -1)  # whose end is that of an action
    waits, before = ends[maker].tolist(), ends[np.arange(-1, many - 1)].tolist()
    for first in turns[:-1]:
        if first < many:
            before[first] = -1
    pairs, done = paired.tolist(), [False] * many + [True]
    at, devices, steps = turns[:-1], range(len(turns) - 1), list[Step]()
    found = -1
    while len(steps) > found:
        found = len(steps)
        for d in devices:
            j, until = at[d], turns[d + 1]
            while j < until and done[waits[j]]:
                first = j
                if not pairs[j]:
                    steps.append((j, before[j], waits[j]))
                    j += 1
                elif done[waits[j + 1]]:
                    steps += (j + 1, before[j], waits[j + 1]), (j, j + 1, waits[j])
                    j += 2
                else:
                    break
                done[first] = True
            at[d] = j
        devices = devices[::-1]
    return steps
