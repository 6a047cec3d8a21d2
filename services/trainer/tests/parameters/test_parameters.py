"""Servers, workers and their coordinator, each in a thread: every batch counts once, whoever dies or is slow."""

import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from common.definition.asynchronous import Asynchronous, parse_asynchronous
from common.definition.training import parse_training
from common.errors import InvalidInput
from services.trainer.learn.asynchronous import server_optimizer
from services.trainer.learn.optimizers import slots_by_path
from services.trainer.parameters import wire
from services.trainer.parameters.coordinator import Coordinator, ServersLostError, _Run
from services.trainer.parameters.door import Door, dialled, serve_handed
from services.trainer.parameters.peers import Peer
from services.trainer.parameters.server import ParameterServer, placed
from services.trainer.parameters.worker import Contribution, Worker
from testing.processes import free_port

_ROWS = 7


class Toy:
    """Gradients that do not depend on the variables: what comes out is known whatever the order.

    Args:
        before: called with the number of the batch before each gradient.
    """

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self._before = before
        self.taught = {path: _variable(path, shape) for path, shape in _SHAPES.items()}
        self.running = {"mean": _variable("mean", (2,))}
        self.counted = {"seen": keras.Variable(np.int64(0), dtype="int64", name="seen")}

    def looked_up(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def hold(self, path: str, numbers: Any, rows: Any) -> None:
        raise NotImplementedError

    def contribute(
        self, columns: Mapping[str, Any], labels: Mapping[str, Any], weights: Mapping[str, Any]
    ) -> Contribution:
        number = int(columns["number"][0])
        self._before(number)
        self.running["mean"].assign_add(tf.constant([0.5, 0.5]))
        self.counted["seen"].assign(self.counted["seen"].value + 1)
        if columns["word"][0].numpy() == b"bad":
            return Contribution(fault="a bad word")
        return Contribution(float(number), 0.0, _gradients(number))


_SHAPES = {"kernel": (3, 2), "table": (_ROWS, 2), "bias": (2,)}
_BYTES = {"kernel": 4 * 6, "table": 4 * 2 * _ROWS, "bias": 4 * 2, "mean": 4 * 2}


def _variable(path: str, shape: tuple[int, ...]) -> keras.Variable:
    return keras.Variable(np.zeros(shape, np.float32), name=path)


def _gradients(number: int) -> dict[str, Any]:
    rows = np.array([number % _ROWS, (number + 3) % _ROWS], np.int64)
    return {
        "kernel": tf.fill([3, 2], float(number)),
        "table": tf.IndexedSlices(tf.ones([2, 2]), tf.constant(rows), tf.constant([_ROWS, 2], tf.int64)),
        "bias": tf.constant([1.0, 2.0]),
    }


class Batches:
    def __init__(self, count: int, bad: int = -1) -> None:
        self._count, self._bad = count, bad

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int, /) -> wire.Arrays:
        words = np.array([b"bad" if number == self._bad else b"good"], object)
        return {"c/number": np.array([number], np.int64), "c/word": words}


@dataclass
class Cluster:
    coordinator: Coordinator
    variables: dict[str, keras.Variable]
    optimizer: keras.optimizers.Optimizer

    def run(self, count: int, **given: Any) -> Any:
        starts = {"seen": [np.array(10)] * count}
        return self.coordinator.run(self.variables, starts, Batches(count, **given))

    def values(self) -> dict[str, np.ndarray[Any, Any]]:
        return {path: self.variables[path].numpy() for path in _SHAPES}


@contextmanager
def _cluster(
    tmp_path: Path,
    *toys: Toy,
    optimizer: Mapping[str, Any] | None = None,
    straggler_seconds: float = 30.0,
    **asked: Any,
) -> Iterator[Cluster]:
    section = Asynchronous(workers=len(toys), **asked)
    training = parse_training({"optimizer": optimizer or {"name": "sgd", "learning_rate": 0.5}})
    workers, servers, threads = list[Peer](), list[Peer](), list[threading.Thread]()
    behind = [ParameterServer(partial(server_optimizer, training)) for _ in range(section.servers)]

    def connected(server: ParameterServer) -> socket.socket:
        ours, theirs = socket.socketpair()
        threads.append(threading.Thread(target=server.serve, args=(theirs,), daemon=True))
        return ours

    servers = [Peer(number, connected(server), 0) for number, server in enumerate(behind)]
    for rank, toy in enumerate(toys):
        ours, theirs = socket.socketpair()
        to_servers = [connected(server) for server in behind]
        workers.append(Peer(rank, ours, 0))
        threads.append(threading.Thread(target=_live, args=(theirs, to_servers, toy), daemon=True))
    for thread in threads:
        thread.start()
    coordinator = Coordinator(section, workers, servers, checkpoint=tmp_path, straggler_seconds=straggler_seconds)
    with closing(coordinator):
        own = Toy()
        made, slots = server_optimizer(training, {}, [*own.taught.values()], {})
        coordinator.place(own.taught, own.running)
        variables = {**own.taught, **own.running, **slots}
        coordinator.build(variables, [*own.running], {}, {})
        yield Cluster(coordinator, variables, made)


class DiesError(Exception):
    """A worker's process ends here."""


def _live(chief: socket.socket, servers: list[socket.socket], toy: Toy) -> None:
    with suppress(OSError, DiesError), closing(chief):
        asked, _ = wire.receive(chief)
        wire.send(chief, {"ready": True})
        Worker(chief, servers, toy, asked["placement"]).work()
    for connection in servers:
        connection.close()


def _expected(count: int, rate: float = 0.5) -> dict[str, np.ndarray[Any, Any]]:
    table = np.zeros((_ROWS, 2), np.float32)
    for number in range(count):
        table[[number % _ROWS, (number + 3) % _ROWS]] -= rate
    kernel = np.full((3, 2), -rate * sum(range(count)), np.float32)
    return {"kernel": kernel, "table": table, "bias": np.array([-rate * count, -2 * rate * count], np.float32)}


def _assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-6, err_msg=path)


def test_arrays_of_every_kind_arrive_as_they_were() -> None:
    ours, theirs = socket.socketpair()
    words = np.array([[b"a", b""], [b"\x00\xff", "grün".encode()]], object)
    given = {
        "words": words,
        "half": tf.constant([1.5, -2.0], tf.bfloat16).numpy(),
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "flags": np.array([True, False]),
    }
    wire.send(ours, {"do": "it"}, given)
    header, arrays = wire.receive(theirs)
    assert header == {"do": "it"}
    assert {name: (one.dtype, one.shape) for name, one in arrays.items()} == {
        name: (one.dtype, one.shape) for name, one in given.items()
    }
    assert all((arrays[name] == given[name]).all() for name in given)
    ours.close()
    with pytest.raises(ConnectionResetError):
        wire.receive(theirs)


@pytest.mark.covers("dist-ps-async")
def test_who_knows_the_secret_reaches_the_chief_and_the_servers_and_strangers_reach_nobody() -> None:
    address, (handing, handed) = f"127.0.0.1:{free_port()}", socket.socketpair()
    server = ParameterServer(partial(server_optimizer, parse_training({})))
    threading.Thread(target=serve_handed, args=(server, handed), daemon=True).start()
    with Door(address, "secret") as door:
        strangers = dialled(address, "guess", rank=3, servers=1)
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as silent:
            silent.sendall(b"a few bytes")
            chief, to_server = dialled(address, "secret", rank=3, servers=1)
            found = door.admitted([3, 4], [handing], seconds=5.0)
    assert [*found] == [3], "4 has not come"
    for one in strangers:
        one.settimeout(30)
        assert one.recv(1) == b"", "closed without a word"
    wire.send(found[3], {"do": "it"})
    assert wire.receive(chief)[0] == {"do": "it"}
    wire.send(to_server, {"do": "fetch", "since": -1})
    assert wire.receive(to_server)[0] == {"version": 0}
    handing.close()


@pytest.mark.covers("dist-replication")
def test_greedy_placement_evens_out_what_turns_do_not() -> None:
    sizes = {"a": 100, "b": 1, "c": 1, "d": 100}
    by_turns, by_size = placed(sizes, 2, "round_robin"), placed(sizes, 2, "greedy")
    assert by_turns == {"a": 0, "b": 1, "c": 0, "d": 1}
    loads = [[sum(sizes[path] for path in sizes if at[path] == one) for one in (0, 1)] for at in (by_turns, by_size)]
    assert loads == [[101, 101], [101, 101]]
    sizes = {"a": 100, "b": 1, "c": 100, "d": 1}
    assert max(sum(sizes[p] for p, at in placed(sizes, 2, "round_robin").items() if at == one) for one in (0, 1)) == 200
    assert max(sum(sizes[p] for p, at in placed(sizes, 2, "greedy").items() if at == one) for one in (0, 1)) == 101


@pytest.mark.covers("dist-ps-async", "eco-horn", "dist-replication")
@pytest.mark.parametrize("servers", [1, 2, 5])
def test_every_batch_is_one_step_whoever_computes_it(
    tmp_path: Path, servers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", "services.trainer.parameters.coordinator"),
        _cluster(tmp_path, Toy(), Toy(), servers=servers) as cluster,
    ):
        ran = cluster.run(20)
        _assert_equal(cluster.values(), _expected(20))
        np.testing.assert_array_equal(ran.losses[:, 0], np.arange(20))
        assert int(cluster.optimizer.iterations) == 20
        np.testing.assert_allclose(cluster.variables["mean"].numpy(), [10.0, 10.0])
        assert ran.counted["seen"] == 10 + 20
        cluster.variables["bias"].assign([0.0, 0.0])  # what the chief changes between two calls is taken up
        cluster.run(20)
        _assert_equal(
            cluster.values(),
            {
                **_expected(20),
                "bias": _expected(20)["bias"],
                "kernel": 2 * _expected(20)["kernel"],
                "table": 2 * _expected(20)["table"],
            },
        )
        facts = cluster.coordinator.facts()
        assert (facts["updates"], facts["workers"], sum(facts["batches_by_worker"])) == (40, 2, 40)
        assert facts["staleness"]["max"] >= 0
        assert sorted(path for one in facts["placement"] for path in one["variables"]) == [*sorted(_BYTES)]
        for one in facts["placement"]:
            assert one["bytes"] == sum(_BYTES[path] for path in one["variables"])
        logged = [record for record in caplog.records if record.message == "a parameter server holds"]
        assert [{name: vars(record)[name] for name in facts["placement"][0]} for record in logged] == facts["placement"]


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_what_is_fetched_is_what_the_servers_hold(tmp_path: Path, name: str) -> None:
    """Also where an optimizer leaves rows alone and only the moved ones travel: the same as one process computes."""
    optimizer = {"name": name, "learning_rate": 0.1}
    with _cluster(tmp_path, Toy(), optimizer=optimizer, servers=2) as cluster:
        alone = Toy().taught
        made, slots = server_optimizer(parse_training({"optimizer": optimizer}), {}, [*alone.values()], {})
        for _ in range(2):
            cluster.coordinator.run(cluster.variables, {"seen": [np.array(0)] * 4}, Batches(4))
            for number in range(4):
                made.apply([*_gradients(number).values()], [alone[path] for path in _gradients(number)])
        _assert_equal(cluster.values(), {path: one.numpy() for path, one in alone.items()})
        mine = slots_by_path(cluster.optimizer)
        for path, slot in slots.items():
            np.testing.assert_allclose(mine[path].numpy(), slot.numpy(), rtol=1e-6, err_msg=path)


@pytest.mark.covers("dist-ps-async")
def test_the_batch_of_a_worker_that_died_is_computed_by_another_and_counts_once(tmp_path: Path) -> None:
    has_died = threading.Event()

    def die(number: int) -> None:
        if number >= 3:
            has_died.set()
            raise DiesError

    def wait(number: int) -> None:
        has_died.wait(60)

    with _cluster(tmp_path, Toy(die), Toy(wait), servers=2) as cluster:
        cluster.run(30)
        _assert_equal(cluster.values(), _expected(30))
        facts = cluster.coordinator.facts()
        assert facts["computed_again"] == len(facts["lost"]) == 1
        assert facts["workers"] == 1


def test_a_batch_that_reached_one_server_only_is_taken_up_by_the_other(tmp_path: Path) -> None:
    first = threading.Event()

    def wait(number: int) -> None:
        first.wait(30)

    with _cluster(tmp_path, Toy(wait), servers=2) as cluster:
        # Somebody has pushed batch 2 to the first server, and died.
        asked = {"do": "push", "attempt": 1, "batch": 2, "seen": 0, "step": 2, "of": 1}
        on_first = [path for path, at in cluster.coordinator._placement.items() if at == 0 and path in _SHAPES]
        behind = cluster.coordinator._servers[0]
        original = cluster.coordinator._bring

        def bring(variables: Any) -> None:
            original(variables)
            arrays: dict[str, Any] = {}
            for path in on_first:
                one = _gradients(2)[path]
                is_rows = isinstance(one, tf.IndexedSlices)
                arrays |= (
                    {f"i:{path}": one.indices.numpy(), f"g:{path}": one.values.numpy()}
                    if is_rows
                    else {f"d:{path}": one.numpy()}
                )
            wire.send(behind.connection, asked, arrays)
            wire.receive(behind.connection)
            first.set()

        cluster.coordinator._bring = bring  # type: ignore[method-assign]
        cluster.run(5)
        _assert_equal(cluster.values(), _expected(5))


@pytest.mark.covers("dist-sync-replicas")
def test_a_step_takes_the_first_gradients_and_late_ones_are_dropped_and_computed_again(tmp_path: Path) -> None:
    late = threading.Semaphore(0)

    def slowly(number: int) -> None:
        late.acquire(timeout=0.5)

    with _cluster(tmp_path, Toy(), Toy(), Toy(slowly), take=2) as cluster:
        ran = cluster.run(21)
        facts = cluster.coordinator.facts()
        assert facts["updates"] == int(cluster.optimizer.iterations) == len(ran.losses) == 11, "the last step is of one"
        assert facts["dropped_gradients"] >= 1
        expected = _expected(21)
        # Each step is the mean of two gradients, the last one of one.
        bias = np.array([-0.5, -1.0], np.float32) * 11
        np.testing.assert_allclose(cluster.values()["bias"], bias)
        assert not np.allclose(cluster.values()["kernel"], expected["kernel"])


@pytest.mark.covers("dist-sync-replicas")
def test_a_gradient_of_an_earlier_step_is_dropped_though_the_open_one_has_none_yet(tmp_path: Path) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    workers = [Peer(rank, ours, 0) for rank, (ours, _) in enumerate(pairs)]
    coordinator = Coordinator(Asynchronous(workers=2, take=1), workers, [], checkpoint=tmp_path, straggler_seconds=30.0)
    with closing(coordinator), selectors.DefaultSelector() as selector:
        run = _Run(coordinator, {}, Batches(3))
        for worker in workers:
            selector.register(worker.connection, selectors.EVENT_READ, worker)

        def said(rank: int, facts: dict[str, Any]) -> None:
            wire.send(pairs[rank][1], facts, {})
            run._hear(workers[rank], selector)

        run._hand_out(selector)
        given = [wire.receive(theirs)[0]["batch"] for _, theirs in pairs]
        said(0, {"ready": True})
        assert wire.receive(pairs[0][1])[0]["take"]
        said(0, {"loss": 1.0, "added": 0.0, "staleness": 0, "holding": {}})
        assert coordinator.figures()["updates"] == 1
        said(1, {"ready": True})
        assert not wire.receive(pairs[1][1])[0]["take"], "it was computed for the first step, and the second is open"
        assert (coordinator.figures()["dropped_gradients"], [*run._waiting]) == (1, [2, given[1]])
    for _, theirs in pairs:
        theirs.close()


@pytest.mark.covers("dist-sync-replicas")
def test_a_step_does_not_wait_for_a_worker_that_died_after_its_gradient_was_taken(tmp_path: Path) -> None:
    def die(number: int) -> None:
        raise DiesError

    with _cluster(tmp_path, Toy(), Toy(), Toy(die), take=3) as cluster:
        ran = cluster.run(10)
        assert len(ran.losses) == cluster.coordinator.facts()["updates"]
        assert cluster.coordinator.facts()["workers"] == 2


@pytest.mark.covers("dist-bsp")
def test_no_worker_is_further_ahead_of_the_slowest_than_allowed(tmp_path: Path) -> None:
    lock, clocks, ahead = threading.Lock(), [0, 0], list[int]()

    def counting(rank: int) -> Callable[[int], None]:
        def count(number: int) -> None:
            with lock:
                ahead.append(clocks[rank] - min(clocks))
                clocks[rank] += 1
            if rank:
                threading.Event().wait(0.02)

        return count

    with _cluster(tmp_path, Toy(counting(0)), Toy(counting(1)), max_staleness=2) as cluster:
        cluster.run(30)
        _assert_equal(cluster.values(), _expected(30))
    assert max(ahead) <= 3, "by so many begun, of which the last is not done"
    assert min(clocks) >= 13


@pytest.mark.covers("hook-api")
def test_workers_start_late_by_steps_and_one_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    begun = dict[int, int]()
    done = list[int]()

    def noting(rank: int) -> Callable[[int], None]:
        def note(number: int) -> None:
            begun.setdefault(rank, len(done))
            if rank == 0 and len(done) == 15:
                raise DiesError
            done.append(number)

        return note

    with _cluster(tmp_path, *(Toy(noting(rank)) for rank in range(3)), stagger_steps=10) as cluster:
        cluster.run(60)
        _assert_equal(cluster.values(), _expected(60))
    assert begun[0] == 0
    assert begun[1] >= 10
    assert begun[2] >= 10, "the second of those that live"


def test_a_batch_that_cannot_be_learned_from_is_told_with_its_reason(tmp_path: Path) -> None:
    with _cluster(tmp_path, Toy(), Toy()) as cluster:
        ran = cluster.run(8, bad=3)
        assert (ran.fault, len(ran.losses)) == (("a bad word", False), 0)
        assert len(cluster.run(8).losses) == 8


def test_without_any_worker_or_server_the_attempt_ends_with_a_sentence(tmp_path: Path) -> None:
    def die(number: int) -> None:
        raise DiesError

    with (
        _cluster(tmp_path, Toy(die)) as cluster,
        pytest.raises(ServersLostError, match="all workers are lost: worker 0"),
    ):
        cluster.run(3)
    with _cluster(tmp_path, Toy()) as cluster:
        cluster.coordinator._servers[0].connection.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ServersLostError, match="parameter server 0 does not answer"):
            cluster.run(3)


@pytest.mark.covers("dist-replication")
@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"workers": 0}, "workers must be an integer from 1 to 32"),
        ({"take": 3}, "take is 3, expected at most workers, 2"),
        ({"take": 2, "max_staleness": 1}, "leave max_staleness out, or take"),
        ({"placement": "random"}, "placement must be one of round_robin, greedy"),
        ({"servers": 2, "worker": 1}, "worker"),
        ({"stagger_steps": 5, "max_staleness": 1}, "for whom max_staleness or take would wait"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(section: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_asynchronous(section)
