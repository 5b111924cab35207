"""A process of its own, where CuPy, RMM and NVML are their stand-ins."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def on_stand_ins(folder, script, *args, **environ):
    """(what the script at this path printed, its errors, how it ended) on two pretended GPUs."""
    stand_in = TESTS / "twins" / "standin"
    more = {
        "PYTHONPATH": os.pathsep.join(map(str, (stand_in / "driver", stand_in, TESTS.parent))),
        "STANDIN_GPUS": "2",
        "STANDIN_GPU_FOLDER": str(folder / "gpus"),
        "TILEDASK_CACHE": str(folder / "cache"),
        **environ,
    }
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command, pipe = [sys.executable, str(script), *args], subprocess.PIPE
    done = subprocess.run(
        command, env=kept | more, stdout=pipe, stderr=pipe, text=True, timeout=280, check=False
    )
    return done.stdout, done.stderr, done.returncode
