"""Gives what we export to the frameworks' own parsers, and keeps what each read in accepted.json.

    python make.py MEGATRON_LM TORCHTITAN DEEPSPEED

The folders that hold megatron/, torchtitan/ (0.2.2) and deepspeed/. It needs an environment apart
with torch (CPU), NumPy, tyro, pydantic and hjson; what else they import is put in by name only. Run
with Megatron-LM of August 2026 and DeepSpeed 0.19.6.
"""

import importlib.abc
import importlib.machinery
import json
import os
import shlex
import sys
import tempfile
import types
import typing
from pathlib import Path
from unittest.mock import MagicMock

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[3]))
import tiledask as td  # noqa: E402

CASES = json.loads((HERE / "accepted.json").read_text())["cases"]
"""Name -> (model, layout, recipe, sequence); a new one is written there first."""


class Named(types.ModuleType, importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A package that is there by name: triton, flash_attn, datasets and their like."""

    __path__ = ()
    __version__ = "2.0.0"
    packages = ("triton", "datasets", "flash_attn", "datatrove", "torchdata", "transformers")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Named(spec.name)

    def exec_module(self, module):
        pass


def megatron(text, layout):
    import torch
    from megatron.training import argument_utils, arguments

    torch.cuda.get_device_properties = lambda *_: MagicMock(major=9)
    sys.argv = ["pretrain_gpt.py", *shlex.split(text.replace("\\\n", " "))]
    os.environ |= {"WORLD_SIZE": str(layout.devices), "RANK": "0"}
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if layout.zero > 1 else "1"
    args = arguments.parse_args()
    args.lr, args.train_iters, args.apply_rope_fusion = 1e-4, 10, False  # no TransformerEngine
    arguments.validate_args(args)
    names = (
        "data_parallel_size tensor_model_parallel_size pipeline_model_parallel_size "
        "context_parallel_size expert_model_parallel_size micro_batch_size global_batch_size "
        "virtual_pipeline_model_parallel_size num_layers recompute_granularity params_dtype "
        "accumulate_allreduce_grads_in_fp32 use_distributed_optimizer sequence_parallel "
        "data_parallel_sharding_strategy use_megatron_fsdp multi_latent_attention num_experts"
    )
    found = {name: getattr(args, name) for name in names.split()}
    config = argument_utils.core_transformer_config_from_args(args)  # which checks, too
    found["num_query_groups"] = config.num_query_groups
    if config.pipeline_model_parallel_layout is not None:
        stages = config.pipeline_model_parallel_layout.layout
        kinds = [[[each.name for each in chunk] for chunk in rank] for rank in stages]
        found["layers"] = str([[chunk.count("decoder") for chunk in rank] for rank in kinds])
    return found


def torchtitan(text, layout):
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims

    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        read = ConfigManager().parse_args(["--job.config_file", file.name])
    p = read.parallelism
    dims = ParallelDims(
        dp_replicate=p.data_parallel_replicate_degree,
        dp_shard=p.data_parallel_shard_degree,
        cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree,
        pp=p.pipeline_parallel_degree,
        ep=p.expert_parallel_degree,
        etp=p.expert_tensor_parallel_degree,
        world_size=layout.devices,
    )
    assert dims.world_size == layout.devices
    return {
        name: vars(getattr(read, name))
        for name in ("model", "training", "parallelism", "activation_checkpoint")
    }


def deepspeed(text, layout):
    from deepspeed.runtime import config

    config.dist = MagicMock(get_rank=lambda: 0)
    mpu = MagicMock(get_data_parallel_world_size=lambda: layout.dp)
    read = config.DeepSpeedConfig(json.loads(text), mpu=mpu)
    return {
        "train_batch_size": read.train_batch_size,
        "train_micro_batch_size_per_gpu": read.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": read.gradient_accumulation_steps,
        "stage": int(read.zero_config.stage),
        "autotp_size": read.tensor_parallel_config.autotp_size,
        "grad_accum_dtype": read.grad_accum_dtype,
        "bf16": read.bfloat16_config.enabled,
        "fp16": read.float16_config.enabled,
    }


def plain(value):
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def in_rows(accepted):
    """JSON with a line for each case of each reader."""
    made = []
    for reader, cases in sorted(accepted.items()):
        lines = (
            f"  {json.dumps(n)}: {json.dumps(cases[n], sort_keys=True)}" for n in sorted(cases)
        )
        made.append(f" {json.dumps(reader)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(made) + "\n}\n"


def main():
    typing.override = getattr(typing, "override", lambda each: each)
    import torch.distributed.fsdp  # these look for triton before it is there by name
    import torch.distributed.pipelining.schedules
    import torch.nn.attention.flex_attention
    import torch.utils.flop_counter

    try:
        import torch._inductor.compile_fx
        import torch._inductor.select_algorithm  # noqa: F401
    except ImportError:
        pass
    sys.meta_path.append(Named("finder"))
    readers = megatron, torchtitan, deepspeed
    sys.path[:0] = sys.argv[1:]
    accepted = {"cases": CASES}
    for reader in readers:
        cases = accepted[reader.__name__] = {}
        for case, (model, fields, recipe, sequence) in CASES.items():
            layout, options = td.Layout(**fields), {"recipe": recipe, "sequence": sequence}
            text = td.export_config(model, layout, reader.__name__, **options).text
            try:
                read = reader(text, layout)
            except (Exception, SystemExit) as error:
                read = {"refused": f"{type(error).__name__}: {error}"[:300]}
            read = {
                k: {kk: plain(vv) for kk, vv in v.items() if kk in text}
                if isinstance(v, dict)
                else plain(v)
                for k, v in read.items()
            }
            cases[case] = {"text": text, "read": read}
            print(reader.__name__, case, read.get("refused", "read"))
    (HERE / "accepted.json").write_text(in_rows(accepted))


if __name__ == "__main__":
    main()
