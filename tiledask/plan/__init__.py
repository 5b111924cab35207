"""Arithmetic on frozen values: no arrays on devices, no Dask.

choosing    all layouts, what binds, critique       -> fitting, inputs, timing
fitting     bytes: the ledger, verdicts, fixes      -> inputs, pipelines, timing
timing      seconds of a step                       -> inputs, pipelines
frameworks  layouts in the words of other programs  -> inputs, pipelines
inputs      a model, a cluster, a recipe, a layout  -> pipelines
diagnosis   from a trace to the plan behind it      -> pipelines
program     every rank's ops, and what reads them   -> collectives, inputs, pipelines, products
pipelines   schedules, checked and simulated
splitting   layers into stages
collectives who sends what to whom: rounds, bytes   -> products
products    one matrix product over many ranks
formulas    closed forms and bounds                 -> inputs, products, timing
data, ledger, tables, html, arrays, intervals, units, whole: what all of them use
"""
