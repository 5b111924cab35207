"""tiledask: split large models over devices; predict, simulate and run it on Dask.

The names below load their module when they are first used, so that ``import tiledask``
brings in neither Dask nor CuPy nor matplotlib nor Bokeh.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    # plan: arithmetic
    "load_model": "tiledask.plan.specs",
    "load_cluster": "tiledask.plan.specs",
    "Layout": "tiledask.plan.layout",
    "estimate_memory": "tiledask.plan.memory",
    "estimate_step": "tiledask.plan.step",
    "fits": "tiledask.plan.fit",
    "search": "tiledask.plan.search",
    "Space": "tiledask.plan.search",
    "sensitivity": "tiledask.plan.sensitivity",
    "critique": "tiledask.plan.critique",
    "check_premise": "tiledask.plan.premise",
    "Ledger": "tiledask.plan.ledger",
    "Traffic": "tiledask.plan.traffic",
    "Timeline": "tiledask.plan.timeline",
    "partition": "tiledask.plan.partition",
    "Partition": "tiledask.plan.partition",
    "judge": "tiledask.plan.judge",
    "schedule": "tiledask.plan.schedules",
    "Schedule": "tiledask.plan.schedule",
    "schedules": "tiledask.plan.schedules",
    "validate": "tiledask.plan.needs",
    "simulate": "tiledask.plan.simulate",
    "optimal_schedule": "tiledask.plan.optimum",
    "diagnose": "tiledask.plan.diagnose",
    # dist: many devices
    "start_cluster": "tiledask.dist.start",
    "Mesh": "tiledask.dist.mesh",
    "Shard": "tiledask.plan.placement",
    "Replicate": "tiledask.plan.placement",
    "Partial": "tiledask.plan.placement",
    "distribute": "tiledask.dist.array",
    "from_function": "tiledask.dist.array",
    "from_dask": "tiledask.dist.dask_arrays",
    "open_array": "tiledask.dist.stored",
    "create_array": "tiledask.dist.stored",
    "redistribute": "tiledask.dist.collectives",
    "to_numpy": "tiledask.dist.array",
    "matmul": "tiledask.dist.matmul",
    "explain": "tiledask.dist.matmul",
    "algorithms": "tiledask.plan.product",
    "run_schedule": "tiledask.dist.pipeline",
    # lab: what people look at
    "report": "tiledask.lab.dashboard.saved",
}
_PACKAGES = ("plan", "tile", "dist", "lab")

__all__ = [*_HOME, *_PACKAGES]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _PACKAGES:
        value = import_module(f"tiledask.{name}")
    else:
        raise AttributeError(f"tiledask has no {name!r}; it has {', '.join(sorted(__all__))}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
