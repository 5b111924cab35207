"""tiledask: split large models over devices; predict, simulate and run it on Dask.

The names below load their module when they are first used, so that ``import tiledask``
brings in neither Dask nor CuPy nor matplotlib nor Bokeh.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    # plan: arithmetic
    "load_model": "tiledask.plan.inputs.specs",
    "load_cluster": "tiledask.plan.inputs.specs",
    "Model": "tiledask.plan.inputs.model",
    "load_recipe": "tiledask.plan.inputs.recipes",
    "lora": "tiledask.plan.inputs.recipes",
    "Layout": "tiledask.plan.inputs.layout",
    "estimate_memory": "tiledask.plan.fitting.memory",
    "estimate_step": "tiledask.plan.timing.step",
    "fits": "tiledask.plan.fitting.fit",
    "search": "tiledask.plan.choosing.search",
    "Space": "tiledask.plan.choosing.search",
    "sensitivity": "tiledask.plan.choosing.sensitivity",
    "critique": "tiledask.plan.choosing.critique",
    "check_premise": "tiledask.plan.choosing.premise",
    "Ledger": "tiledask.plan.ledger",
    "Traffic": "tiledask.plan.products.traffic",
    "Timeline": "tiledask.plan.pipelines.timeline",
    "partition": "tiledask.plan.splitting.partition",
    "Partition": "tiledask.plan.splitting.partition",
    "judge": "tiledask.plan.splitting.judge",
    "schedule": "tiledask.plan.pipelines.schedules",
    "Schedule": "tiledask.plan.pipelines.schedule",
    "schedules": "tiledask.plan.pipelines.schedules",
    "validate": "tiledask.plan.pipelines.needs",
    "simulate": "tiledask.plan.pipelines.simulate",
    "optimal_schedule": "tiledask.plan.pipelines.optimum",
    "diagnose": "tiledask.plan.diagnosis.diagnose",
    # tile: one device
    "load_text": "tiledask.tile.datasets",
    "load_images": "tiledask.tile.datasets",
    # dist: many devices
    "start_cluster": "tiledask.dist.start",
    "Mesh": "tiledask.dist.mesh",
    "Shard": "tiledask.plan.products.placement",
    "Replicate": "tiledask.plan.products.placement",
    "Partial": "tiledask.plan.products.placement",
    "distribute": "tiledask.dist.array",
    "from_function": "tiledask.dist.array",
    "from_dask": "tiledask.dist.dask_arrays",
    "open_array": "tiledask.dist.stored",
    "create_array": "tiledask.dist.stored",
    "redistribute": "tiledask.dist.collectives",
    "to_numpy": "tiledask.dist.array",
    "matmul": "tiledask.dist.matmul",
    "explain": "tiledask.dist.matmul",
    "algorithms": "tiledask.plan.products.product",
    "run_schedule": "tiledask.dist.pipeline",
    "run_ranks": "tiledask.dist.ranks.run",
    "run_threads": "tiledask.dist.ranks.threads",
    "run_claim": "tiledask.dist.claims",
    "GPT": "tiledask.dist.training",
    "Trained": "tiledask.dist.training",
    "train": "tiledask.dist.training",
    "train_lenet": "tiledask.dist.convolution.lenet_train",
    "save_checkpoint": "tiledask.dist.checkpoints",
    "open_checkpoint": "tiledask.dist.checkpoints",
    # lab: what people look at
    "report": "tiledask.lab.dashboard.saved",
}
_MODULES = ("plan", "tile", "dist", "lab", "errors")

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str):
    if name in _HOME:
        try:
            value = getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            package = (error.name or "tiledask").partition(".")[0]
            if package == "tiledask":  # a fault of ours
                raise
            raise ModuleNotFoundError(
                f"td.{name} needs {package}, which is not installed: pip install {package}",
                name=error.name,
            ) from None
    elif name in _MODULES:
        value = import_module(f"tiledask.{name}")
    else:
        raise AttributeError(f"tiledask has no {name!r}; it has {', '.join(sorted(__all__))}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
