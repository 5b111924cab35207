"""cupy.cuda.memory: pointers that know whose they are, and the pool."""

import contextlib
import gc
import threading
import weakref

import numpy as np

from cupy import _ipc, _machine
from cupy.cuda import runtime, stream

UNIT = 512


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        self._size, self._total, self._limit = size, total, limit
        more = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{more})."
        )

    def __reduce__(self):
        return type(self), (self._size, self._total, self._limit)


class BaseMemory:
    """Some bytes of a device, and what keeps them."""

    ptr = size = 0
    device_id = -1

    @property
    def device(self):
        from cupy.cuda import Device

        return Device(self.device_id)

    def bytes_at(self, offset, size):
        """As NumPy has them; refuses what is not there any more."""
        if offset < 0 or offset + size > self.size:
            raise _machine.StandInFault(
                f"{size} bytes at {offset} of a memory of {self.size}: beyond its end"
            )
        return _machine.at(self.ptr + offset, size)


class Memory(BaseMemory):
    """An allocation of its own, given back with its last user."""

    def __init__(self, size):
        self.device_id = _machine.device().index
        self.ptr, self.size = runtime.malloc(size), size
        if self.ptr:
            weakref.finalize(self, _give_back, self.ptr).atexit = False

    @classmethod
    def of(cls, size):
        return MemoryPointer(cls(size), 0)


class _WithoutHandle(Memory):
    """Not of cudaMalloc: other processes cannot open it."""

    def __init__(self, size):
        super().__init__(size)
        _ipc.without_handle.add(self.ptr)


class ManagedMemory(_WithoutHandle):
    pass


class MemoryAsync(_WithoutHandle):
    def __init__(self, size, stream=None):
        super().__init__(size)


def _give_back(pointer):
    with contextlib.suppress(_machine.CUDARuntimeError):  # of a process that forked
        runtime.free(pointer)


class UnownedMemory(BaseMemory):
    """Somebody else's bytes, kept by keeping ``owner``."""

    def __init__(self, ptr, size, owner, device_id=-1):
        if device_id < 0:
            if ptr == 0:
                if size:
                    raise RuntimeError("device_id cannot be determined from a null pointer")
                device_id = _machine.device().index
            else:
                attributes = runtime.pointerGetAttributes(ptr)
                device_id = attributes.device
                if device_id < 0:
                    raise _machine.CUDARuntimeError(1, f"{ptr:#x} is no device's pointer here")
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id
        self._block = _block_of(ptr) if size else None

    def bytes_at(self, offset, size):
        found = super().bytes_at(offset, size)
        if self._block is not None and self._block is not _block_of(self.ptr):
            raise _machine.StandInFault(
                f"memory at {self.ptr:#x} was given back to its pool since it was lent"
            )
        return found


class MemoryPointer:
    """A place in a memory."""

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset
        self._offset = offset

    device = property(lambda self: self.mem.device)
    device_id = property(lambda self: self.mem.device_id)

    def __int__(self):
        return self.ptr

    def __add__(self, offset):
        return MemoryPointer(self.mem, self._offset + offset)

    __radd__ = __add__

    def __sub__(self, offset):
        return self + -offset

    def bytes(self, size):
        return self.mem.bytes_at(self._offset, size)

    def copy_from_device(self, source, size):
        stream.settle()
        self.bytes(size)[...] = source.bytes(size).copy()

    def copy_from_device_async(self, source, size, stream=None):
        from cupy.cuda.stream import behind

        into, given = self.bytes(size), source.bytes(size)
        behind(stream, lambda: into.__setitem__(..., given.copy()))

    def copy_from_host(self, pointer, size):
        runtime.memcpy(self.ptr, _address(pointer), size, runtime.memcpyHostToDevice)

    def copy_from_host_async(self, pointer, size, stream=None):
        runtime.memcpyAsync(
            self.ptr, _address(pointer), size, runtime.memcpyHostToDevice, _number(stream)
        )

    def copy_from(self, source, size):
        if isinstance(source, MemoryPointer):
            self.copy_from_device(source, size)
        else:
            self.copy_from_host(source, size)

    def copy_to_host(self, pointer, size):
        runtime.memcpy(_address(pointer), self.ptr, size, runtime.memcpyDeviceToHost)

    def copy_to_host_async(self, pointer, size, stream=None):
        runtime.memcpyAsync(
            _address(pointer), self.ptr, size, runtime.memcpyDeviceToHost, _number(stream)
        )

    def memset(self, value, size):
        stream.settle()
        self.bytes(size)[...] = value

    def memset_async(self, value, size, stream=None):
        self.memset(value, size)


def _address(pointer):
    return pointer if isinstance(pointer, int) else int(pointer.value)


def _number(given):
    return stream.get_current_stream() if given is None else given


# -- the pool ------------------------------------------------------------------------------------


class _Block:
    """A piece of a pool's segment: free, or somebody's."""

    def __init__(self, segment, offset, size, arena):
        self.segment, self.offset, self.size, self.arena = segment, offset, size, arena
        self.before = self.after = None

    @property
    def ptr(self):
        return self.segment.ptr + self.offset


_lent = {}
"""Blocks of pools that are in use: pointer -> block."""


def _block_of(pointer):
    """The block of a pool in which ``pointer`` lies now; None if a pool has nothing there."""
    block = _lent.get(pointer)
    if block is not None:
        return block
    for start, block in list(_lent.items()):
        if start <= pointer < start + block.size:
            return block
    return None


class PooledMemory(BaseMemory):
    def __init__(self, block, pool):
        self.ptr, self.size, self.device_id = block.ptr, block.size, pool.device_id
        _lent[block.ptr] = block
        weakref.finalize(self, pool._put_back, block).atexit = False

    def bytes_at(self, offset, size):
        if offset < 0 or offset + size > self.size:
            raise _machine.StandInFault(
                f"{size} bytes at {offset} of a block of {self.size}: into the neighbour's"
            )
        return _machine.at(self.ptr + offset, size)


class _DevicePool:
    """A pool's part on one device: segments cut into blocks, kept by the stream that freed them."""

    def __init__(self, allocator, device_id):
        self.allocator, self.device_id = allocator, device_id
        self.lock = threading.RLock()
        self.free = {}  # of an arena: the blocks
        self.used = self.total = self.limit = self.peak = 0

    def malloc(self, size):
        if size == 0:
            empty = UnownedMemory(0, 0, None, self.device_id)
            return MemoryPointer(empty, 0)
        rounded = -(-size // UNIT) * UNIT
        arena = stream.get_current_stream().ptr
        with self.lock:
            block = self._fitting(rounded, arena) or self._segment(rounded, arena)
            self.used += block.size
            self.peak = max(self.peak, self.used)
        memory = PooledMemory(block, self)
        return MemoryPointer(memory, 0)

    def _fitting(self, size, arena):
        free = [b for b in self.free.get(arena, ()) if b.size >= size]
        if not free:
            return None
        block = min(free, key=lambda b: b.size)
        self.free[arena].remove(block)
        if block.size > size:
            rest = _Block(block.segment, block.offset + size, block.size - size, arena)
            rest.before, rest.after = block, block.after
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self.free[arena].append(rest)
        return block

    def _segment(self, size, arena):
        for attempt in range(3):
            if not self.limit or self.total + size <= self.limit:
                try:
                    segment = self.allocator(size).mem
                    break
                except _machine.CUDARuntimeError as error:
                    if error.status != 2:
                        raise
            if attempt == 0:
                self.free_all_blocks()
            elif attempt == 1:
                gc.collect()
                self.free_all_blocks()
        else:
            raise OutOfMemoryError(size, self.total, self.limit)
        self.total += size
        return _Block(segment, 0, size, arena)

    def _put_back(self, block):
        with self.lock:
            _lent.pop(block.ptr, None)
            self.used -= block.size
            try:
                _machine.at(block.ptr, block.size)[...] = _machine.NONSENSE
            except _machine.CUDARuntimeError:  # of a process that forked
                return
            free = self.free.setdefault(block.arena, [])
            for neighbour in (block.after, block.before):
                if neighbour in free:
                    free.remove(neighbour)
                    first, second = sorted((block, neighbour), key=lambda b: b.offset)
                    first.size += second.size
                    first.after = second.after
                    if second.after is not None:
                        second.after.before = first
                    block = first
            free.append(block)

    def free_all_blocks(self, arena=None):
        with self.lock:
            for key in list(self.free) if arena is None else [arena]:
                for block in self.free.get(key, [])[:]:
                    if block.before is None and block.after is None:
                        self.free[key].remove(block)
                        self.total -= block.size

    @property
    def free_bytes(self):
        return self.total - self.used


class MemoryPool:
    def __init__(self, allocator=None):
        self._allocator = Memory.of if allocator is None else allocator
        self._pools = {}

    def _here(self):
        device = _machine.device().index
        if device not in self._pools:
            self._pools[device] = _DevicePool(self._allocator, device)
        return self._pools[device]

    def malloc(self, size):
        return self._here().malloc(size)

    def free_all_blocks(self, stream=None):
        gc.collect()
        self._here().free_all_blocks(None if stream is None else stream.ptr)

    def free_all_free(self):
        self.free_all_blocks()

    def n_free_blocks(self):
        return sum(len(blocks) for blocks in self._here().free.values())

    def used_bytes(self):
        return self._here().used

    def free_bytes(self):
        return self._here().free_bytes

    def total_bytes(self):
        return self._here().total

    def set_limit(self, size=None, fraction=None):
        if fraction is not None:
            if size is not None:
                raise ValueError("size and fraction cannot be specified at one time")
            size = int(runtime.memGetInfo()[1] * fraction)
        self._here().limit = size or 0

    def get_limit(self):
        return self._here().limit


class MemoryAsyncPool(MemoryPool):
    pass


_default = MemoryPool()
_current = _default.malloc


def set_allocator(allocator=None):
    global _current
    _current = Memory.of if allocator is None else allocator


def get_allocator():
    return _current


def alloc(size):
    """A MemoryPointer to ``size`` bytes on the current device."""
    found = _current(size)
    if not isinstance(found, MemoryPointer):
        raise TypeError(f"an allocator gives a MemoryPointer, got {type(found).__name__}")
    return found


def malloc_managed(size):
    return ManagedMemory.of(size)


malloc_async = Memory.of
_malloc = Memory.of


# -- pinned host memory --------------------------------------------------------------------------


class PinnedMemoryPointer(bytearray):
    """Host memory that the device copies from and to without staging."""

    mem = None

    @property
    def ptr(self):
        return np.frombuffer(self, np.uint8).ctypes.data

    def size(self):
        return len(self)

    def __hash__(self):
        return id(self)


class PinnedMemoryPool:
    """What is given back is kept for the next that asks for as much."""

    def __init__(self, allocator=None):
        self._free = []

    def malloc(self, size):
        rounded = max(UNIT, 1 << (max(1, size) - 1).bit_length())
        if rounded in self._free:
            self._free.remove(rounded)
        lent = PinnedMemoryPointer(rounded)
        address = lent.ptr
        _machine.pinned[address] = rounded
        weakref.finalize(lent, self._back, address, rounded).atexit = False
        return lent

    def _back(self, address, rounded):
        _machine.pinned.pop(address, None)
        self._free.append(rounded)

    def free_all_blocks(self):
        self._free.clear()

    def n_free_blocks(self):
        return len(self._free)


_pinned = PinnedMemoryPool()
_pinned_allocator = _pinned.malloc


def alloc_pinned_memory(size):
    return _pinned_allocator(size)


def set_pinned_memory_allocator(allocator=None):
    global _pinned_allocator
    _pinned_allocator = PinnedMemoryPool().malloc if allocator is None else allocator
