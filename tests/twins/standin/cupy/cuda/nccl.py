"""No NCCL: ranks carry arrays through host memory."""

available = False


class NcclError(RuntimeError):
    pass
