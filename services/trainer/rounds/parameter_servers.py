"""The processes of an asynchronous round: its servers and workers, forked by the chief and connected by socket pairs.

All of these die with the chief. Of a round that several trainers compute, some workers are processes of the others:
they dial the chief (parameters/door.py). Without such, nothing listens, and who was not forked here cannot reach them.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from common.definition.asynchronous import Asynchronous
from common.errors import HeadraceError, Unavailable
from common.whole_files import write_whole
from services.trainer import determinism
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.asynchronous import server_optimizer
from services.trainer.parameters import wire
from services.trainer.parameters.coordinator import Coordinator
from services.trainer.parameters.door import COMING_SECONDS, Door, dialled, serve_handed
from services.trainer.parameters.peers import Peer, forked
from services.trainer.parameters.server import ParameterServer
from services.trainer.parameters.worker import Worker
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Helped, Progress, Report
from services.trainer.rounds.inputs import data_of, fetch_definition, fetch_without_parent, log_of
from services.trainer.rounds.outside import registry_of


@contextmanager
def led_by_this(assignment: RoundAssignment) -> Iterator[Coordinator | None]:
    """Inside, the processes wait for a word; None where the round is not asynchronous. Call it in a process with one
    thread, before TensorFlow's first operation."""
    section = section_of(assignment)
    if section is None or assignment.candidate:
        yield None
        return
    elsewhere = range(assignment.processes, len(assignment.addresses))
    here = section.workers - len(elsewhere)
    to_workers = [_pair() for _ in range(here)]
    to_servers = [_pair() for _ in range(section.servers)]
    handing = [_pair() for _ in range(section.servers)]
    between = [[_pair() for _ in range(section.servers)] for _ in range(here)]
    everything = [end for pair in [*to_workers, *to_servers, *handing, *chain(*between)] for end in pair]
    servers = []
    for number, (ours, theirs) in enumerate(to_servers):
        handed = handing[number][1]
        own = [theirs, *(row[number][1] for row in between)]
        live = partial(_serve, assignment, own, handed)
        servers.append(Peer(number, ours, forked(live, closing=_others(everything, [*own, handed]))))
    workers = []
    for rank, (ours, theirs) in enumerate(to_workers):
        own = [theirs, *(pair[0] for pair in between[rank])]
        live = partial(_work, assignment, rank, theirs, own[1:])
        workers.append(Peer(rank, ours, forked(live, closing=_others(everything, own))))
    missing = list[str]()
    if elsewhere:
        with Door(assignment.addresses[0], assignment.team_id) as door:
            come = door.admitted(elsewhere, [ours for ours, _ in handing])
        workers += [Peer(here + place, come[rank], 0) for place, rank in enumerate(sorted(come))]
        late = f"has not come within {COMING_SECONDS:g} s"
        missing = [f"worker at {assignment.addresses[rank]}: {late}" for rank in elsewhere if rank not in come]
    for end in _others(everything, [peer.connection for peer in (*servers, *workers)]):
        end.close()
    coordinator = Coordinator(
        section, workers, servers, checkpoint=Path(assignment.work_dir) / "to-workers",
        straggler_seconds=assignment.straggler_seconds,
    )  # fmt: skip
    for reason in missing:
        coordinator.note_missing(reason)
    try:
        yield coordinator
    finally:
        coordinator.close()


def help_along(assignment: RoundAssignment, report: Report) -> None:
    """The life of a member's first process, and of the others, which die with it; does not return, control ends it with
    the round. Raises Unavailable: the chief cannot be reached."""
    for rank in range(assignment.rank + 1, assignment.rank + assignment.processes):
        forked(partial(_come, assignment, rank))
    report(Progress("train"))
    _come(assignment, assignment.rank)
    report(Helped())
    threading.Event().wait()  # who leaves would look like one that died


def _come(assignment: RoundAssignment, rank: int) -> None:
    section, address = section_of(assignment), assignment.addresses[0]
    assert section is not None
    try:
        chief, *servers = dialled(address, assignment.team_id, rank=rank, servers=section.servers)
    except OSError as error:
        raise Unavailable(f"the round's chief at {address} cannot be reached: {error}") from error
    _work(assignment, rank, chief, servers)


def section_of(assignment: RoundAssignment) -> Asynchronous | None:
    section = assignment.training.get("asynchronous")
    return Asynchronous(**section) if section else None


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def _others(everything: list[socket.socket], kept: list[socket.socket]) -> list[socket.socket]:
    return [end for end in everything if end not in kept]


def _serve(assignment: RoundAssignment, connections: list[socket.socket], handed: socket.socket) -> None:
    """A server's life, which ends with the chief's connection."""
    determinism.configure(intra_op_threads=assignment.intra_op_threads, inter_op_threads=assignment.inter_op_threads)
    work_dir = _own_folder(assignment, f"server-{os.getpid()}")
    with closing(registry_of(assignment)) as registry:
        definition = fetch_definition(registry, assignment.plan.definition_digest, work_dir)[0]
    server = ParameterServer(partial(server_optimizer, definition.training))
    for connection in connections[1:]:
        threading.Thread(target=server.serve, args=(connection,), daemon=True).start()
    threading.Thread(target=serve_handed, args=(server, handed), daemon=True).start()
    server.serve(connections[0])


def _work(assignment: RoundAssignment, rank: int, chief: socket.socket, servers: list[socket.socket]) -> None:
    """A worker's life, which ends with the chief's connection, or a server's."""
    determinism.configure(intra_op_threads=assignment.intra_op_threads, inter_op_threads=assignment.inter_op_threads)
    order, files = wire.receive(chief)
    try:
        folder = _own_folder(assignment, f"worker-{rank}")
        for name, content in files.items():
            write_whole(folder / "built-from" / name, content.tobytes())
        point = checkpoint.read(folder / "built-from")
        with closing(registry_of(assignment)) as registry, closing(log_of(assignment, registry)) as log:
            inputs = fetch_without_parent(assignment, registry, folder)
            seed, data = assignment.plan.seed, data_of(assignment, inputs, log)
            model = adapters.build(
                inputs.definition, inputs.schema, point.statistics, inputs.module, seed=seed, contributes=True
            )
            model.fit(point.arrays, lambda: (block.trained.columns for block in data.prepared(model)))
        adapters.restore_frozen(model, point.arrays, {})
        worker = Worker(chief, servers, adapters.contributor_of(model), order["placement"])
        wire.send(chief, {"ready": True})
        worker.work()
    except ConnectionError:  # of the chief, or of a server: the chief sees which
        return
    except (HeadraceError, DefinitionFailedError) as error:
        wire.send(chief, {"failed": str(error)})


def _own_folder(assignment: RoundAssignment, name: str) -> Path:
    found = Path(assignment.work_dir) / name
    found.mkdir(parents=True, exist_ok=True)
    return found
