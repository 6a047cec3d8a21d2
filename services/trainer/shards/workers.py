"""Several processes that compute one round: the chief, which holds the lease, and its workers, here and elsewhere.

All of them run the round's own code over the same range and hold the same variables; each computes its shards, and
TensorFlow's collectives bring the parts of every step to all. The chief alone saves resume points, judges, exports and
registers. Workers are forked before TensorFlow has run an operation, die with the chief, and end when it says so.

A worker that is lost (it died, or never came up) ends the chief's attempt: a collective whose peer is gone returns
after seconds, or never. The round then goes on from its last resume point with fewer workers, and to the same bits.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import tensorflow as tf

from services.trainer.parameters.peers import forked, how_ended
from services.trainer.shards.cluster_spec import ClusterSpec
from services.trainer.shards.team import WorkerLostError

START_SECONDS = 60.0
"""How long all workers may take to find each other."""
_LOOK_SECONDS = 0.1
_LOST = 70
LOST_SECONDS = 5.0
"""How long a worker that finds a step unfinished waits before it ends: the chief says first who was lost."""


class LocalWorkers:
    """The workers of one round on this machine, seen from the first of them, the one that makes this.

    Make it in a process with one thread.

    Args:
        cluster: all processes of the round, also those elsewhere; the rank is this one's.
        count: processes on this machine, this one among them.
        work: what another one does, given its rank; its return ends the process.
    """

    def __init__(self, cluster: ClusterSpec, count: int, work: Callable[[int, ClusterSpec], None]) -> None:
        self.cluster = cluster
        self._pids = dict[int, int]()
        self._are_released = threading.Event()
        self._are_connected = threading.Event()
        for rank in range(cluster.rank + 1, cluster.rank + count):
            self._pids[forked(partial(_live, work, rank, cluster.of_rank(rank)))] = rank

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """From a thread of its own: calls `on_lost` with a sentence, once, when a worker ends before its time."""
        threading.Thread(target=self._watch, args=(on_lost,), daemon=True, name="workers").start()

    def connect(self) -> None:
        """Waits until the cluster stands; a worker that never comes up is told by `on_lost`."""
        join_cluster(self.cluster)
        self._are_connected.set()

    def release(self) -> None:
        """Ends the workers: nothing is exchanged any more."""
        self._are_released.set()
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _watch(self, on_lost: Callable[[str], None]) -> None:
        deadline = time.monotonic() + START_SECONDS
        count = len(self.cluster.addresses)
        while not self._are_released.wait(_LOOK_SECONDS):
            for pid, rank in self._pids.items():
                ended = _ended(pid)
                if ended and not self._are_released.is_set():
                    on_lost(f"worker {rank} of {count} ended: {ended}")
                    return
            if not self._are_connected.is_set() and time.monotonic() > deadline:
                on_lost(f"the {count} workers of the round did not find each other within {START_SECONDS:g} s")
                return


def join_cluster(cluster: ClusterSpec) -> None:
    """Brings TensorFlow's cluster up in this process; returns when all have come. Before the first operation.

    The strategy only starts the cluster: variables stay ordinary ones, and no step runs in its scope.
    """
    os.environ["TF_CONFIG"] = cluster.to_json()
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _live(work: Callable[[int, ClusterSpec], None], rank: int, cluster: ClusterSpec) -> None:
    """Of a worker, until the chief ends it: one that leaves would look like one that died."""
    try:
        work(rank, cluster)
    except WorkerLostError:
        time.sleep(LOST_SECONDS)
        os._exit(_LOST)
    threading.Event().wait()


def _ended(pid: int) -> str:
    """How a child has ended, in words; empty while it lives."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "it is gone"
    return how_ended(status) if found else ""
