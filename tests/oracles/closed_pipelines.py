"""What published tables count by formulas that the package does not have."""


def interleaved_makespan(p, m, v, stage, latency=0.0):
    """Seconds of interleaved 1F1B as the Zero Bubble paper counts: mT + (p-1)T/v + ((2v-1)p-2)c.

    ``stage`` is T, the forward and backward seconds of all chunks of a device. From one chunk to
    the next only the first of each p micro-batches waits for what the device at the other end
    sends; a simulation, in which every one waits, gives p c more (Table 5 of arXiv 2401.10241).
    """
    return m * stage + (p - 1) * stage / v + ((2 * v - 1) * p - 2) * latency


def gpipe_makespan(forward, backward, microbatches, latency=0.0):
    """Seconds of GPipe with any stage times: sum F + (m-1) max F, the same for B, 2 (p-1) c."""
    halves = sum(sum(t) + (microbatches - 1) * max(t) for t in (forward, backward))
    return float(halves + 2 * (len(forward) - 1) * latency)
