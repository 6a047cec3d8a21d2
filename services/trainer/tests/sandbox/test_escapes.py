"""Authors' code gets out of no sandbox, and every attempt is one: without the sandbox it is successful."""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from common.registry.catalog import Lease, OffsetRange, Round, RoundPlan, RoundState
from services.trainer.control.zygote_client import ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, Message
from services.trainer.sandbox import confine, landlock
from services.trainer.sandbox.rules import REQUIRE, SandboxRules, scrubbed
from services.trainer.tests.support import escapes
from testing.waiting import wait_until

pytestmark = pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI or ("CI" not in os.environ and bool(confine.not_confined())),
    reason=f"no package brings a kernel with Landlock {landlock.SCOPE_ABI}; here: {confine.not_confined()}",
)
_FUNCTION = "services.trainer.tests.support.escapes:run_round"
_ENVIRONMENT = {**os.environ, escapes.SECRET: "planted"}


@dataclass
class Ground:
    folder: Path
    closed_port: int
    unix_socket: str
    unix_datagrams: str
    ports: tuple[int, ...] = (1,)
    has_gpu: bool = False

    def assignment(self, attempt: str) -> RoundAssignment:
        told = {name: str(self.folder / name) for name in ("registry", "other_model", "events", "elsewhere")}
        plan = RoundPlan(
            model="m", sequence=1, parent_version=0, stream="s", schema_version=1, ranges=(OffsetRange(0, 0, 1),),
            definition_digest="d", configuration={"attempt": attempt, "closed_port": self.closed_port, **told,
            "unix": self.unix_socket, "unix_datagrams": self.unix_datagrams},
            configuration_digest="c", code_digest="e", seed=1, example_count=1, trigger="manual", last_event_at=0.0,
        )  # fmt: skip
        work_dir = self.folder / "rounds" / "m" / attempt
        work_dir.mkdir(parents=True, exist_ok=True)
        return RoundAssignment(
            Lease(Round("m-1", plan, 0.0, RoundState.RUNNING), 1, 0.0), event_log="",
            work_dir=str(work_dir), cache_dir=str(self.folder / "cache"), intra_op_threads=1, inter_op_threads=1,
            resume_interval_seconds=1.0,
        )  # fmt: skip

    def confined(self, assignment: RoundAssignment) -> RoundAssignment:
        rules = SandboxRules(
            REQUIRE, write=(str(self.folder / "rounds" / "m"),), read=(str(self.folder / "events"),), ports=self.ports,
            processes=escapes.FORKS // 2, memory_mib=escapes.DATA_BYTES >> 21, file_mib=escapes.FILE_BYTES >> 21,
            open_files=escapes.FILES // 2, has_gpu=self.has_gpu,
        )  # fmt: skip
        return replace(assignment, sandbox=rules)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """What an author's code is after."""
    for name, files in {
        "registry": ("catalog.sqlite", "removable", "movable"), "other_model": ("weights.npz", "assignment.json"),
        "events": ("records",), "elsewhere": (),
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(b"x")
    unix, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with unix, datagrams, socket.create_server(("127.0.0.1", 0)) as server:
        unix.bind(str(tmp_path / "daemon"))
        unix.listen()
        datagrams.bind(str(tmp_path / "datagrams"))
        yield Ground(tmp_path, server.getsockname()[1], str(tmp_path / "daemon"), str(tmp_path / "datagrams"))


def zygote(**how: object) -> Iterator[ZygoteClient]:
    found = ZygoteClient(_FUNCTION, nice=0, scheduling="normal", log_format="text", log_level="ERROR", **how)  # type: ignore[arg-type]  # passed on
    wait_until(lambda: found.wait_until_ready(0.1), "the zygote is ready")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def free() -> Iterator[ZygoteClient]:
    yield from zygote(environment=_ENVIRONMENT)


@pytest.fixture(scope="module")
def scrubbed_zygote() -> Iterator[ZygoteClient]:
    yield from zygote(environment=scrubbed(_ENVIRONMENT, frozenset()))


@pytest.fixture
def tried(ground: Ground, free: ZygoteClient, scrubbed_zygote: ZygoteClient) -> Callable[..., Done | Failed]:
    """Makes an attempt in a round's process, and gives its last word."""

    def tried(attempt: str, *, confined: bool) -> Done | Failed:
        zygote = scrubbed_zygote if confined else free
        assignment = ground.assignment(attempt)
        child = zygote.spawn(ground.confined(assignment) if confined else assignment)
        said = list[Message]()

        def has_ended() -> bool:
            said.extend(zygote.wait(child, 1.0))
            return child.has_ended

        wait_until(has_ended, f"{attempt} has ended")
        zygote.forget(child)
        assert said, child.status
        assert isinstance(said[-1], Done | Failed), said
        return said[-1]

    return tried


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("attempt", escapes.ATTEMPTS)
def test_no_attempt_gets_out_of_the_sandbox(
    ground: Ground, tried: Callable[..., Done | Failed], attempt: str, has_gpu: bool
) -> None:
    ground.has_gpu = has_gpu
    found = tried(attempt, confined=True)
    assert isinstance(found, Failed), f"{attempt} got out"


@pytest.mark.parametrize("attempt", escapes.ATTEMPTS)
def test_without_the_sandbox_every_attempt_is_successful(tried: Callable[..., Done | Failed], attempt: str) -> None:
    found = tried(attempt, confined=False)
    assert isinstance(found, Done), found


@pytest.mark.parametrize("need", escapes.NEEDS)
def test_what_a_round_needs_is_possible_in_the_sandbox(tried: Callable[..., Done | Failed], need: str) -> None:
    found = tried(need, confined=True)
    assert isinstance(found, Done), found


def test_a_round_that_connects_nowhere_makes_no_socket(ground: Ground, tried: Callable[..., Done | Failed]) -> None:
    ground.ports = ()
    found = tried("make_a_socket", confined=True)
    assert isinstance(found, Failed)
    assert found.reason.startswith("PermissionError")


def test_cuda_begins_where_there_is_a_gpu_and_connects_to_nobody(
    ground: Ground, tried: Callable[..., Done | Failed]
) -> None:
    ground.ports = ()
    assert isinstance(tried("begin_as_cuda_does", confined=True), Failed)
    ground.has_gpu = True
    found = tried("begin_as_cuda_does", confined=True)
    assert isinstance(found, Done), found
    refused = tried("connect_a_socket_of_packets", confined=True)
    assert isinstance(refused, Failed)
    assert refused.reason.startswith("PermissionError")


@pytest.mark.parametrize("confined", [True, False])
def test_no_process_outlives_its_round(ground: Ground, tried: Callable[..., Done | Failed], confined: bool) -> None:
    """It could write to the folders of the model's next rounds."""
    assert isinstance(tried("leave_a_process_behind", confined=confined), Done)
    left = Path(ground.assignment("leave_a_process_behind").work_dir) / "left"
    wait_until(lambda: not Path("/proc", left.read_text()).exists(), "the process has ended")


def test_what_lies_in_a_rounds_folder_does_not_say_how_it_is_confined(
    ground: Ground, tried: Callable[..., Done | Failed]
) -> None:
    """An earlier round of the model may write there, before the process begins."""
    planted = Path(ground.assignment("write_elsewhere").work_dir) / "assignment.json"
    planted.write_text(ground.assignment("write_elsewhere").to_json())
    planted.chmod(0o444)
    assert isinstance(tried("write_elsewhere", confined=True), Failed)
    assert planted.read_text() == ground.assignment("write_elsewhere").to_json(), "nobody writes or reads it"
