"""What gives buffers their memory."""

from rmm._memory import (
    CallbackMemoryResource,
    CudaMemoryResource,
    DeviceMemoryResource,
    PoolMemoryResource,
    get_current_device_resource,
    set_current_device_resource,
)

__all__ = [
    "CallbackMemoryResource",
    "CudaMemoryResource",
    "DeviceMemoryResource",
    "PoolMemoryResource",
    "get_current_device_resource",
    "set_current_device_resource",
]
