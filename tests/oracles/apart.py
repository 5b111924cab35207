"""Workers of one machine that take each other for workers of other hosts."""

import os
from contextlib import contextmanager

from tiledask.distributed.transport import remote_read


@contextmanager
def apart(cluster, way="sockets"):
    """Inside the block the workers of ``cluster`` read blocks by ``way``, on loopback."""

    def look(alone):
        from tiledask.distributed.transport import listener, process_memory, reader, remote_read

        pid = str(os.getpid())
        for module in (reader, remote_read):
            module.this_host = (lambda: pid) if alone else process_memory.this_host
        if not alone:
            listener.close()

    known = cluster.transport, cluster.transport_why
    cluster.run(look, True)
    cluster.transport = ""
    try:
        assert remote_read.transport_of(cluster) == way
        yield
    finally:
        cluster.run(look, False)
        cluster.transport, cluster.transport_why = known
