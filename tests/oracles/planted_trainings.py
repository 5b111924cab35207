"""Faults that are planted into a training while it runs."""

from collections import defaultdict

from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.training.trainer import Trainer


def in_collectives(patch, label, change):
    """``change(runner, brought, result)`` is what a collective whose label ends so gives."""
    honest = Interpreter._collective

    def planted(self, each):
        call = honest(self, each)
        if not each["label"].endswith(label):
            return call
        (x,), (y,) = each.reads, each.writes

        def called(env):
            mine = env[x].copy()  # the sum may take its place
            call(env)
            env[y] = change(self, mine, env[y])

        return called

    patch.setattr(Interpreter, "_collective", planted)


def in_gradients(patch, at, unit, step, value):
    """``value`` is in a gradient of ``unit`` on the rank at ``at`` before a step begins."""
    honest, begun = Trainer._bind, defaultdict(int)
    name = f"gradients/{unit}".replace(" ", "_")

    def planted(self, each, part, told):
        kernel = honest(self, each, part, told)
        if each.name != "clear" or each.writes != (name,) or self.rank.coordinates != at:
            return kernel

        def cleared(x):
            kernel(x)
            if begun[at] == step:
                x[:1] = value
            begun[at] += 1

        return cleared

    patch.setattr(Trainer, "_bind", planted)
