"""Arithmetic on frozen values: no arrays on devices, no Dask.

choosing    all layouts searched, what binds, critique               -> fitting, timing
fitting     bytes: the ledger, verdicts, fixes                       -> timing, pipelines
timing      seconds of a step                                        -> pipelines
inputs      a model, a cluster, a recipe, a layout                   -> pipelines
diagnosis   from a trace to the plan behind it                       -> pipelines, splitting
program     every rank's instructions: counted, timed, weighed, checked -> pipelines, products
pipelines   schedules, checked and simulated
splitting   layers into stages
products    one matrix product over many ranks
collectives who sends what to whom: rounds, bytes, closed forms      -> products.placement
data, units, tables, ledger, arrays, intervals: what all of them use

To add a schedule: a function that makes its orders, a line in the table of pipelines/schedules.
To add a model family: a row of data/families.json.
"""
