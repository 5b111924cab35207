"""Streams and events. Work on a stream that does not block is done when somebody waits for it.

Copies that a stream was given wait in its queue until it, an event behind them or the device is
waited for; until then the memory holds what it held. Other work of a stream is done at once, after
its copies. The default stream waits for streams that block, as the legacy one does.
"""

import itertools
import threading
import time
import weakref
from collections import deque

from cupy import _machine

LOOKS = 3
"""How often an event is looked at before it is done."""

_numbers = itertools.count(0x7E00_0000, 16)
_all = weakref.WeakValueDictionary()
kept = []


class _Base:
    def __init__(self, number, non_blocking, device):
        self.ptr, self.non_blocking, self.device_id = number, non_blocking, device
        self.null = number == 0
        self.is_ptds = False
        self._queue, self._lock = deque(), threading.RLock()
        self.issued = self.finished = 0

    def _drain(self, upto=None):
        with self._lock:
            while self._queue and (upto is None or self.finished < upto):
                self._queue.popleft()()
                self.finished += 1

    @property
    def done(self):
        self._drain()
        return True

    def synchronize(self):
        _machine.devices()
        if self.null:
            _drain_blocking(self.device_id)
        self._drain()

    def record(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        if event._stream is None:
            raise _machine.StandInFault("a stream waits for an event that was never recorded")
        event._stream._drain(event._mark)

    def add_callback(self, callback, arg):
        self._drain()
        callback(self, 0, arg)

    def launch_host_func(self, callback, arg):
        self._drain()
        callback(arg)

    def use(self):
        _stack().append(self)
        del _stack()[:-1]
        return self

    def __enter__(self):
        _stack().append(self)
        return self

    def __exit__(self, *_):
        _stack().pop()

    def __eq__(self, other):
        return isinstance(other, _Base) and self.ptr == other.ptr

    def __hash__(self):
        return hash(self.ptr)

    def __repr__(self):
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"


class Stream(_Base):
    """A stream of the current device; ``Stream.null`` is the default one."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        device = _machine.device().index
        super().__init__(0 if null else next(_numbers), non_blocking, device)
        if not null:
            _all[self.ptr] = self

    @classmethod
    def from_external(cls, obj):
        version, number = obj.__cuda_stream__()
        if version != 0:
            raise TypeError(f"__cuda_stream__() returned unsupported version {version}")
        return by_number(number)


class ExternalStream(_Base):
    """A stream that others made: here, one that this module knows by its number."""

    def __new__(cls, ptr, device_id=-1):
        return by_number(ptr)

    def __init__(self, *_):
        pass


class _Null(_Base):
    def __init__(self):
        super().__init__(0, False, -1)

    def synchronize(self):
        drain_device(_machine.here.device)


null = _Null()
Stream.null = null
Stream.ptds = null


def _stack():
    if _machine.here.streams is None:
        _machine.here.streams = [null]
    return _machine.here.streams


def get_current_stream(device_id=-1):
    return _stack()[-1]


def by_number(number):
    if isinstance(number, _Base):
        return number
    if number in (0, 1, 2):
        return null
    if number not in _all:
        raise _machine.CUDARuntimeError(400, f"there is no stream {number}")
    return _all[number]


def _drain_blocking(device):
    for each in list(_all.values()):
        if not each.non_blocking and each.device_id == device:
            each._drain()


def settle():
    """What the current stream was given is done, so that work of this moment comes after it."""
    now = _stack()[-1]
    if now.ptr == 0:
        _drain_blocking(_machine.here.device)
    else:
        now._drain()


def behind(stream, work):
    """``work`` is done after all that ``stream`` (None: the current) was given."""
    stream = get_current_stream() if stream is None else by_number(stream)
    if stream.ptr == 0:
        settle()
        work()
        return
    with stream._lock:
        stream._queue.append(work)
        stream.issued += 1


def drain_device(device):
    for each in list(_all.values()):
        if each.device_id == device:
            each._drain()


class Event:
    """A point of a stream."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        _machine.devices()
        self.timed = not disable_timing
        self._stream, self._mark, self._looks, self._time = None, 0, 0, None
        self.ptr = next(_numbers)

    def record(self, stream=None):
        self._stream = get_current_stream() if stream is None else by_number(stream)
        self._mark, self._looks, self._time = self._stream.issued, 0, time.perf_counter()

    def synchronize(self):
        if self._stream is not None:
            self._stream._drain(self._mark)

    @property
    def done(self):
        self._looks += 1
        if self._stream is not None and self._looks < LOOKS:
            return False
        self.synchronize()
        return True


def get_elapsed_time(begin, end):
    """Milliseconds of this host, never 0."""
    for each in (begin, end):
        if each._time is None or not each.timed:
            raise _machine.CUDARuntimeError(400, "an event without a time")
    return max(1e-3, (end._time - begin._time) * 1e3)
