"""What a scheduler keeps of what is over: the last of it.

    events      of the last runs, of workers that are there, and the last of what all do
    spans       of tasks that are there, and the last: Dask keeps all, and workers of then with them
    streams     no message that was sent, nor the tasks in it
    readers     no connection of the client to a worker that is gone

Dask keeps as much as transfers are counted (TRANSFERS, by the same setting): a client that loses a
worker a second, or trains all day, would grow by megabytes a minute.
"""

from collections import deque
from typing import Any

from distributed import SchedulerPlugin
from distributed.spans import SpansSchedulerExtension

__all__ = ["OVER", "RUNS", "TOPIC", "Forgets", "RunTopics"]

RUNS = "tiledask-runs"
"""Dask's topic on which runs, trainings and products announce themselves."""
TOPIC = "tiledask-panels"
"""Dask's topic for the events that say how far each rank is."""
OVER = "tiledask-over"
"""Dask's topic on which a client says the topic of a run that is over."""
_RUNS, _SPANS, _ANNOUNCED, _EVENTS = 4, 100, 100, 1000
"""Kept of each: runs that are over, spans, announcements, which are long, events, transitions."""


class RunTopics:
    """Topics of runs on a scheduler: those of the last that are over, the last announcements."""

    def __init__(self, scheduler: Any) -> None:
        self._topics, self._over = scheduler._broker._topics, deque[Any]()
        self.shorten(RUNS, _ANNOUNCED)
        self.shorten(TOPIC)

    def shorten(self, topic: str, events: int = _EVENTS) -> None:
        """None; of the ``topic`` so many events are kept."""
        self._topics[topic].events = deque(self._topics[topic].events, events)

    def heard(self, topic: str, said: Any) -> None:
        """None; a run is over, if this says so."""
        if topic == OVER:
            self._topics[OVER].truncate()
            self._over.append(said)
            if len(self._over) > _RUNS:
                self._topics.pop(self._over.popleft(), None)


class _Spans(SpansSchedulerExtension):
    """Those of tasks that are forgotten go too, but for the last."""

    def forget(self) -> None:
        groups = self.scheduler.task_groups
        for span in self.root_spans[:-_SPANS]:
            if any(groups.get(group.name) is group for group in span.traverse_groups()):
                continue
            self.root_spans.remove(span)
            for each in span.traverse_spans():
                del self.spans[each.id]
                self.spans_search_by_name[each.name].remove(each)
                for tag in each.name:
                    self.spans_search_by_tag[tag].remove(each)

    def heartbeat(self, ws: Any, data: Any) -> None:
        super().heartbeat(ws, {key: each for key, each in data.items() if key[1] in self.spans})


class Forgets(SchedulerPlugin):
    """The plugin of a scheduler that has just been started here."""

    name = "tiledask-forgets"

    def __init__(self, reads: Any) -> None:
        """``reads``: the connections by which the client reads from workers."""
        self._reads = reads

    @staticmethod
    def soon(stream: Any) -> None:
        """None; the stream to a worker, a client or the cluster's own page keeps no message."""
        stream.recent_message_log = deque(maxlen=0)

    def joins(self, scheduler: Any) -> None:
        """None; from now on, of workers and clients that are there and of those that come."""
        self._topics, self._runs = scheduler._broker._topics, RunTopics(scheduler)
        self._spans = scheduler.extensions["spans"] = _Spans(scheduler)
        scheduler.add_plugin(self)
        scheduler.transition_log = deque(scheduler.transition_log, _EVENTS)
        listeners = [each.bcomm for each in scheduler.plugins.values() if hasattr(each, "bcomm")]
        clients = scheduler.client_comms.values()
        for stream in (*scheduler.stream_comms.values(), *clients, *listeners):
            self.soon(stream)
        for topic in ("all", "scheduler", *scheduler.clients):
            self._runs.shorten(topic)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.soon(scheduler.stream_comms[worker])

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        self._topics.pop(worker, None)
        if not self._reads.occupied.get(worker):  # who reads now is told by the connection's end
            self._reads.remove(worker)

    def add_client(self, scheduler: Any, client: str) -> None:
        self._runs.shorten(client)

    def remove_client(self, scheduler: Any, client: str) -> None:
        self._topics.pop(client, None)

    def update_graph(self, scheduler: Any, **_: Any) -> None:
        self._spans.forget()

    def log_event(self, topic: str, msg: Any) -> None:
        self._runs.heard(topic, msg)
