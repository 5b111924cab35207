"""Answers that are placed with the mouse or the keyboard, in JupyterLab.

    answer = puzzle.place()       # cuts between layers, or actions on devices
    puzzle.check(answer)          # as if it had been typed

placed            Placed: what stands there now, kept with the progress; the widget when displayed
cuts.js           three handles between 24 bars, or however many there are
orders.js         a row per device; what can be done next; the run so far, simulated in the page
"""

from tiledask.lab.placing.placed import Placed

__all__ = ["Placed"]
