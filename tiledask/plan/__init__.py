"""Arithmetic on frozen values: no arrays on devices, no Dask.

choosing    all layouts searched, what binds, critique, premises     -> fitting, timing
fitting     bytes: the ledger, verdicts, fixes                       -> timing, pipelines
timing      seconds of a step                                        -> pipelines
inputs      a model, a cluster, a recipe, a layout
diagnosis   from a trace to the plan behind it                       -> pipelines, splitting
pipelines   schedules, checked and simulated
splitting   layers into stages
products    one matrix product over many ranks
data, units, html, ledger: what all of them use
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
