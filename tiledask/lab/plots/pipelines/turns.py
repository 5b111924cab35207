"""An order as it is written, a box per action in its turn, and where its devices wait for good.

rank 0 |   0F0 | 0B0 | 0F1 | 0B1 |      0B0 waits for 1B0, which comes after 1F1,
rank 1 |   1F0 | 1F1 | 1B0 | 1B1 |      and 1F1 for 0F1, which comes after 0B0
"""

import numpy as np

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.pipelines.gantt import KINDS
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import RED, canvas, lighter, styled
from tiledask.plan.pipelines.needs import stuck
from tiledask.plan.pipelines.schedule import Action, Schedule

__all__ = ["turns"]

_HIGH = 0.5
"""Of a box, in lanes: arrows go between them."""


@styled
def turns(order: Schedule, *, title: str = "The order, turn by turn") -> "Figure":
    """A figure with a lane per device and a box per action, in its turn. Where devices wait for
    good, what is never done is pale, and an arrow goes from each action at which a device stands to
    one that it waits for."""
    stands, at = stuck(order), dict[Action, draw.Box]()
    figure = canvas(1.15 + 0.6 * order.devices, title)
    axes = figure.subplots()
    draw.lanes(axes, [f"rank {d}" for d in range(order.devices)])
    tones: dict[Action, tuple[float, float, float]] = {}
    for device, actions in enumerate(order.orders):
        done = actions.index(stands[device][0][0]) if device in stands else len(actions)
        here = [lighter(KINDS[a.kind][1], 0.1 if i < done else 0.7) for i, a in enumerate(actions)]
        parts = [(str(a), 1, tone) for a, tone in zip(actions, here, strict=True)]
        at |= zip(actions, draw.stack(axes, device, parts, _HIGH), strict=True)
        tones |= zip(actions, here, strict=True)
    for block, lacks in stands.values():
        for action in block:
            draw.mark_box(axes, at[action], f"{action}")
        if lacks in at:
            x, y, _, high = at[block[0]]
            to_x, to_y, _, _ = at[lacks]
            # from the edge of one box to the edge of the other, between the lanes
            down = high * float(np.sign(to_y - y)) / 2
            here, there = (x + 0.5, y + high / 2 + down), (to_x + 0.5, to_y + high / 2 - down)
            draw.arrow(axes, here, there, RED, gid="waits", zorder=7, connectionstyle="arc3")
    longest = max(map(len, order.orders), default=0)
    axes.set_xlim(0, longest)
    axes.set_xticks(np.arange(longest) + 0.5, range(longest))
    axes.set_xlabel("turn, as written")
    kinds = {action.kind for action in order}
    entries = [draw.patch_entry(*KINDS[kind]) for kind in KINDS if kind in kinds]
    if stands:
        entries += [
            draw.patch_entry(f"{KINDS[kind][0]}, never done", lighter(KINDS[kind][1], 0.7))
            for kind in KINDS
            if lighter(KINDS[kind][1], 0.7) in tones.values()
        ] + [
            draw.patch_entry("a device stands here", "none", edgecolor=RED),
            draw.line_entry("and waits for this", RED, marker=">"),
        ]
    draw.legend(figure, entries, 5)
    figure.lay_out()
    for action, box in at.items():
        draw.fitting_text(axes, box, str(action), tones[action])
    return figure
