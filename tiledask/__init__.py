"""tiledask: split large models over devices; predict, simulate and run it on Dask.

The names below load their module when they are first used, so that ``import tiledask``
brings in neither Dask nor CuPy nor matplotlib nor Bokeh. ``__init__.pyi`` says the same to editors
and type checkers.

formulas     closed forms: idle time, memory, bytes of a product
collectives  what split layers and convolutions call, before anything runs
tile         one device: kernels, layers, optimizers
stages       pipeline stages that really compute
tensor       layers split over ranks
convolution  convolutions split over ranks, and LeNet
training     what td.train is made of, to look into
plots        figures
tasks        puzzles and exercises that judge answers
studies      comparisons that are worked out or run at one call
precision    floating point, as lessons that run
doctor       what this machine has and lacks
accuracy     the planner beside published numbers
errors       what is raised
plan, distributed, lab  the rest, room by room
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    # plan: arithmetic
    "load_model": "tiledask.plan.inputs.load",
    "load_cluster": "tiledask.plan.inputs.load",
    "Model": "tiledask.plan.inputs.model",
    "load_recipe": "tiledask.plan.inputs.recipes",
    "lora": "tiledask.plan.inputs.recipes",
    "offload": "tiledask.plan.inputs.recipes",
    "Layout": "tiledask.plan.inputs.layout",
    "estimate_memory": "tiledask.plan.fitting.memory",
    "estimate_step": "tiledask.plan.timing.step",
    "calibrate": "tiledask.plan.timing.step",
    "fits": "tiledask.plan.fitting.fit",
    "search": "tiledask.plan.choosing.search",
    "Space": "tiledask.plan.choosing.search",
    "sensitivity": "tiledask.plan.choosing.sensitivity",
    "critique": "tiledask.plan.choosing.critique",
    "export_config": "tiledask.plan.frameworks.exchange",
    "import_config": "tiledask.plan.frameworks.exchange",
    "Ledger": "tiledask.plan.ledger",
    "Traffic": "tiledask.plan.products.traffic",
    "Timeline": "tiledask.plan.pipelines.timeline",
    "partition": "tiledask.plan.splitting.partition",
    "Partition": "tiledask.plan.splitting.partition",
    "contiguous_splits": "tiledask.plan.splitting.partition",
    "judge": "tiledask.plan.splitting.judge",
    "schedule": "tiledask.plan.pipelines.schedules",
    "Schedule": "tiledask.plan.pipelines.schedule",
    "Action": "tiledask.plan.pipelines.schedule",
    "schedules": "tiledask.plan.pipelines.schedules",
    "validate": "tiledask.plan.pipelines.needs",
    "simulate": "tiledask.plan.pipelines.simulate",
    "program": "tiledask.plan.program.making.of_schedule",
    "Program": "tiledask.plan.program.program",
    "memory_over_time": "tiledask.plan.pipelines.footprint",
    "optimal_schedule": "tiledask.plan.pipelines.optimum",
    "diagnose": "tiledask.plan.diagnosis.diagnose",
    # tile: one device
    "load_text": "tiledask.tile.datasets",
    "load_images": "tiledask.tile.datasets",
    # distributed: many devices
    "start_cluster": "tiledask.distributed.cluster.start",
    "connect": "tiledask.distributed.connecting.connect",
    "Mesh": "tiledask.distributed.arrays.mesh",
    "Shard": "tiledask.plan.products.placement",
    "Replicate": "tiledask.plan.products.placement",
    "Partial": "tiledask.plan.products.placement",
    "Tiling": "tiledask.plan.products.placement",
    "distribute": "tiledask.distributed.arrays.creation",
    "from_function": "tiledask.distributed.arrays.creation",
    "from_dask": "tiledask.distributed.arrays.dask_arrays",
    "open_array": "tiledask.distributed.out_of_core.stored",
    "create_array": "tiledask.distributed.out_of_core.stored",
    "redistribute": "tiledask.distributed.arrays.redistribute",
    "to_numpy": "tiledask.distributed.arrays.array",
    "matmul": "tiledask.distributed.products.matmul",
    "check_product": "tiledask.distributed.products.check",
    "explain": "tiledask.distributed.products.matmul",
    "algorithms": "tiledask.plan.products.product",
    "run_schedule": "tiledask.distributed.pipelines.pipeline",
    "training_program": "tiledask.distributed.training.asked",
    "run_program": "tiledask.distributed.pipelines.program_run",
    "run_ranks": "tiledask.distributed.ranks.run",
    "run_threads": "tiledask.distributed.ranks.threads",
    "run_claim": "tiledask.distributed.memory.claims",
    "GPT": "tiledask.distributed.training",
    "train": "tiledask.distributed.training",
    "train_lenet": "tiledask.distributed.convolution.lenet_train",
    "save_checkpoint": "tiledask.distributed.checkpoints",
    "open_checkpoint": "tiledask.distributed.checkpoints",
    # lab: what people look at
    "Claim": "tiledask.lab.claim",
    "Comparison": "tiledask.lab.table",
    "ask": "tiledask.lab.questions.ask",
    "report": "tiledask.lab.dashboard.saved",
    "table": "tiledask.lab.table",
    "task": "tiledask.lab.tasks",
    "predict": "tiledask.lab.learner.guess",
    "score": "tiledask.lab.learner.score",
}
"""The module that each public name is loaded from."""

_MODULES = {
    "plan": "tiledask.plan",
    "tile": "tiledask.tile",
    "distributed": "tiledask.distributed",
    "lab": "tiledask.lab",
    "errors": "tiledask.errors",
    "formulas": "tiledask.plan.formulas",
    "collectives": "tiledask.plan.collectives",
    "stages": "tiledask.distributed.pipelines.stages",
    "tensor": "tiledask.distributed.tensor",
    "convolution": "tiledask.distributed.convolution",
    "training": "tiledask.distributed.training",
    "plots": "tiledask.lab.plots",
    "tasks": "tiledask.lab.tasks",
    "studies": "tiledask.lab.studies",
    "precision": "tiledask.lab.precision",
    "doctor": "tiledask.lab.doctor",
    "accuracy": "tiledask.lab.accuracy",
}
"""The public modules by the name that they have here."""

__all__ = [*_HOME, *_MODULES]


def _load(name: str) -> object:
    """The value of a public name, from the module that it is at home in."""
    try:
        if name in _MODULES:
            return import_module(_MODULES[name])
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from tiledask.extras import needs

        raise needs(f"td.{name}", error) from None


def __getattr__(name: str) -> object:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"tiledask has no {name!r}; it has {', '.join(sorted(__all__))}")
    value = globals()[name] = _load(name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
