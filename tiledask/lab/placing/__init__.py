"""Answers that are placed with mouse and keyboard in JupyterLab, and kept with the progress.

placed       PlacedAnswer: what stands there, as text for the judge, and its widget
cuts.js      layers on devices: handles between bars
orders.js    actions on devices: boxes in rows, as a run
"""

from tiledask.lab.placing.placed import PlacedAnswer

__all__ = ["PlacedAnswer"]
