"""What can be said before anything is simulated or run: closed forms and bounds, with sources.

idle time   bubble_fraction, bubble_overhead, lower_bound of any schedule's makespan
memory      state_bytes of a rank, and the devices that hold them: minimum_devices
products    grids: how a number of ranks can be a mesh
losses      checkpointing, checkpoint_interval: how often to save what may be lost
"""

from tiledask.plan.inputs.recipes import minimum_devices, state_bytes, zero3_minimum_degree
from tiledask.plan.pipelines.closed_form import bubble_fraction, bubble_overhead, lower_bound
from tiledask.plan.products.product import grids
from tiledask.plan.timing.budget import checkpoint_interval, checkpointing

__all__ = ["bubble_fraction", "bubble_overhead", "checkpoint_interval", "checkpointing"]
__all__ += ["grids", "lower_bound", "minimum_devices", "state_bytes", "zero3_minimum_degree"]
