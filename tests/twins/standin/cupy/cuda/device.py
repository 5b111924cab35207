"""cupy.cuda.Device: chosen by a thread for what it does next."""

from cupy import _machine
from cupy.cuda import runtime


class Device:
    def __init__(self, device=None):
        if isinstance(device, Device):
            device = device.id
        self.id = _machine.here.device if device is None else int(device)
        self._before = []

    def __int__(self):
        return self.id

    __index__ = __int__

    def __enter__(self):
        self._before.append(_machine.here.device)
        self.use()
        return self

    def __exit__(self, *_):
        _machine.here.device = self._before.pop()

    def use(self):
        runtime.setDevice(self.id)
        return self

    def synchronize(self):
        from cupy.cuda.stream import drain_device

        _machine.device(self.id)
        drain_device(self.id)

    @property
    def compute_capability(self):
        _machine.device(self.id)
        return "90"

    @property
    def pci_bus_id(self):
        return runtime.deviceGetPCIBusId(self.id)

    @property
    def mem_info(self):
        found = _machine.device(self.id)
        return found.total - found.others(), found.total

    @property
    def attributes(self):
        facts = runtime.getDeviceProperties(self.id)
        return {
            "MultiProcessorCount": facts["multiProcessorCount"],
            "WarpSize": 32,
            "L2CacheSize": facts["l2CacheSize"],
            "ClockRate": 1_980_000,
            "MemoryClockRate": 2_619_000,
            "GlobalMemoryBusWidth": facts["memoryBusWidth"],
            "MaxSharedMemoryPerBlockOptin": facts["sharedMemPerBlockOptin"],
            "ComputeCapabilityMajor": 9,
            "ComputeCapabilityMinor": 0,
            "Integrated": 0,
            "MaxThreadsPerBlock": 1024,
        }

    @property
    def cublas_handle(self):
        return get_cublas_handle()

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"


def get_device_id():
    return _machine.here.device


def get_cublas_handle():
    """A number that says of which device it is."""
    return 0xB1A5_0000 + _machine.device().index


def get_compute_capability():
    return Device().compute_capability
