"""FLOP of a training step that the model needs, all s x s scores counted.

A matrix of P parameters costs 2 P a token forward and 4 P backward; scores and context of s
tokens cost 2 s (d_qk + d_v) a token and head forward, and twice that backward.
"""

from tiledask.plan.inputs.model import Model

__all__ = ["step_flops"]


def step_flops(model: Model, sequences: int, sequence: int, frozen: bool = False) -> float:
    """FLOP of a step over ``sequences`` sequences of ``sequence`` tokens, over all devices.

    Forward and backward, without what is recomputed: Korthikanti et al. 2022 (arXiv:2205.05198),
    Appendix A; Megatron-LM's log counts so too. ``frozen``: weights get no gradients, as beside
    adapters.

    >>> gpt = Model(hidden=12288, layers=96, heads=96, ffn=49152, vocab=51200)
    >>> B, s, L, h, V = 64, 2048, 96, 12288, 51200
    >>> appendix_a = 72 * B * L * s * h**2 * (1 + s / (6 * h) + V / (12 * h * L))
    >>> round(step_flops(gpt, B, s) / appendix_a, 12)
    1.0
    """
    tokens = 1.0 * sequences * sequence
    layers = sum(
        many * sum(w.units * w.size * w.active for w in weights if w.inputs)
        for _, many, weights in model.layer_kinds
    )
    head = sum(into * out for into, out in model.head_matrices)
    core = 2.0 * sequence * model.heads * (model.qk_dim + model.v_dim) * model.layers * tokens
    return (4 if frozen else 6) * tokens * (layers + head) + 3 * core
