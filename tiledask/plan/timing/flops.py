"""FLOP of a training step that the model needs.

A matrix of P parameters costs 2 P a token forward and 4 P backward; scores and context of s
tokens cost 2 s (d_qk + d_v) a token and head forward, and twice that backward.
"""

from typing import NamedTuple

from tiledask.plan.inputs.model import Model

__all__ = ["Flops", "step_flops"]


class Flops(NamedTuple):
    """FLOP of one step over all devices."""

    model: float
    """Forward and backward, all s x s scores counted: Korthikanti et al. 2022 (arXiv:2205.05198),
    Appendix A, 72 B L s h^2 (1 + s/6h + V/12hL) for a GPT; Megatron-LM's log counts so too."""
    causal: float
    """The same with only the scores that the mask leaves: half under a causal one, fewer in a
    sliding window, all of an encoder's."""


def step_flops(model: Model, sequences: int, sequence: int, frozen: bool = False) -> Flops:
    """The Flops of a step over ``sequences`` sequences of ``sequence`` tokens. ``frozen``: weights
    get no gradients, as beside adapters."""
    tokens = 1.0 * sequences * sequence
    layers = sum(
        many * sum(w.units * w.size * w.active for w in weights if w.inputs)
        for _, many, weights in model.layer_kinds
    )
    core = 6.0 * sequence * model.heads * (model.qk_dim + model.v_dim) * model.layers * tokens
    needed = (4 if frozen else 6) * tokens * (layers + model.hidden * model.vocab) + core
    return Flops(needed, needed - core * (1 - model.visible(sequence)))
