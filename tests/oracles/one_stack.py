"""Stages on one device, the whole batch at once: what every schedule of them must come to."""

import tiledask as td


def one_device(stages, x, target):
    """(outputs, loss, all gradients in one array)."""
    y, kept, weights = x, [], [stage.init("numpy") for stage in stages]
    for stage, w in zip(stages, weights, strict=True):
        y, saved = stage.forward(w, y)
        kept.append(saved)
    dy, gradients = 2 * (y - target) / y.size, []
    for stage, w, saved in zip(reversed(stages), reversed(weights), reversed(kept), strict=True):
        dy, of_weights = stage.backward_input(w, saved, dy)
        gradients.insert(0, stage.backward_weight(of_weights))
    return y, float(((y - target) ** 2).mean()), td.stages.flat(gradients)
