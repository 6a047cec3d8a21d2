"""What authors' code asks of the trusted half, over the channel that its process has, and what it is refused."""

import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.definition.gate import Gate
from common.definition.model import Definition, parse_definition
from common.errors import InvalidInput, Overloaded, PermissionDenied, Unavailable
from common.registry.catalog import (
    Decision,
    FileEntry,
    Lease,
    OffsetRange,
    ResumePoint,
    Round,
    RoundPlan,
    RoundState,
    Stream,
    Verdict,
    Version,
    VersionDraft,
    VersionStatus,
)
from common.registry.patches import SMALLEST_FILE_BYTES
from services.trainer.control import trusted_half
from services.trainer.control.trusted_half import Means, TrustedHalf
from services.trainer.protocol import calls
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import Place
from services.trainer.protocol.messages import Figures
from services.trainer.rounds.outside import Outside
from services.trainer.settings import TrainerSettings
from services.trainer.tests.support.platform_processes import definition
from testing.waiting import wait_until

_DEFINITION = parse_definition({"model.yaml": definition(gate="{metric: auc, min_value: 0.9}")})
_GATE = _DEFINITION.gate
_WEIGHTS = FileEntry("checkpoint/weights.npz", 5, "a" * 64)


@dataclass
class Registry:
    """Has one version of each model; notes what is done in the trainer's name."""

    plan: RoundPlan
    done: list[tuple[Any, ...]] = field(default_factory=list)
    niceness: int = -1
    """Of the thread that uploads."""

    def get_stream(self, name: str, *, schema_version: int) -> Stream:
        return Stream(name, schema_version, "{}", 0.0)

    def get_definition(self, digest: str) -> dict[str, bytes]:
        return {"model.yaml": digest.encode()}

    def get_version(self, model: str, version: int) -> Version:
        return Version(
            model=model, version=version, status=VersionStatus.ACCEPTED, round_id="r", parent_version=0, stream="s",
            schema_version=1, ranges=(), definition_digest="older", configuration_digest="", code_digest="", seed=1,
            weights_digest="w", metrics={}, verdict=Verdict(Decision.PROMOTE, (), _GATE), events_trained=5,
            events_held_out=0, events_unusable=0, files=(_WEIGHTS,), created_at=0.0, last_event_at=0.0, timings={},
            environment={}, step=1,
        )  # fmt: skip

    def get_round(self, model: str, round_id: str) -> Round:
        return Round(round_id, self.plan, 0.0, RoundState.DONE)

    def download(self, files: list[FileEntry], directory: Path) -> int:
        self.done.append(("download", files, directory))
        return 5

    def upload(self, directory: Path, files: tuple[FileEntry, ...], *, bases: dict[str, Path]) -> int:
        self.done.append(("upload", directory, files, bases))
        self.niceness = os.nice(0)
        return sum(file.size_bytes for file in files)

    def put_resume_point(self, lease: Lease, *, state: dict[str, Any], files: tuple[FileEntry, ...]) -> None:
        self.done.append(("resume point", lease.token, state, files))

    def register_version(self, lease: Lease, draft: VersionDraft) -> Version:
        self.done.append(("register", lease.token, draft))
        return replace(self.get_version(lease.round.plan.model, 7), files=draft.files)


@dataclass
class Ground:
    """`outside` is what authors' code has, `half` what it speaks to; `secret` is a file that is not its own."""

    folder: Path
    assignment: RoundAssignment
    registry: Registry
    half: TrustedHalf
    channel: socket.socket
    outside: Outside

    @property
    def output(self) -> Path:
        return Path(self.assignment.work_dir) / "output"

    @property
    def secret(self) -> Path:
        return self.folder / "secret"


def given(folder: Path, **more: Any) -> RoundAssignment:
    plan = RoundPlan(
        model="m", sequence=1, parent_version=0, stream="s", schema_version=1, ranges=(OffsetRange(0, 0, 1),),
        definition_digest="d", configuration={"warm_start": {"model": "words", "version": 2}},
        configuration_digest="c", code_digest="e", seed=1, example_count=1, trigger="manual", last_event_at=0.0,
    )  # fmt: skip
    point = ResumePoint({}, (FileEntry("checkpoint/weights.npz", 6, "b" * 64),), 0.0)
    return RoundAssignment(
        Lease(Round("m-1", plan, 0.0, RoundState.RUNNING), 3, 0.0, point), event_log="", work_dir=str(folder / "work"),
        cache_dir=str(folder / "cache"), intra_op_threads=1, inter_op_threads=1, resume_interval_seconds=1.0, **more,
    )  # fmt: skip


def settings_of(folder: Path, **more: Any) -> TrainerSettings:
    """Of a trainer whose rounds hand in a mebibyte at most."""
    chosen = {"max_version_mib": 1, "nice": 2, "score_outside": "none", "round_timeout_seconds": 60.0, **more}
    return TrainerSettings(data_dir=folder, event_log="segments:/nowhere", **chosen)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Ground]]:
    opened: list[Ground] = []

    def make(**more: Any) -> Ground:
        assignment = given(tmp_path, **more)
        (tmp_path / "work" / "output").mkdir(parents=True)
        (tmp_path / "secret").write_text("the trainer's key")
        registry: Any = Registry(assignment.plan)
        half = TrustedHalf(assignment, registry, Means(settings_of(tmp_path), lambda digest: _DEFINITION))
        ours, theirs = socket.socketpair()
        threading.Thread(target=taken, args=(ours, half), daemon=True).start()
        opened.append(Ground(tmp_path, assignment, registry, half, theirs, Outside(theirs.fileno())))
        return opened[-1]

    yield make
    for one in opened:
        one.outside.close()
        one.channel.close()


def taken(channel: socket.socket, half: TrustedHalf) -> None:
    """What control's loop does with the channel."""
    with channel, suppress(OSError):  # the test has ended, and closed it
        while (found := socket.recv_fds(channel, 1, 1))[0]:
            half.take(found[1][0])


@pytest.fixture
def ground(made: Callable[..., Ground]) -> Ground:
    return made()


def draft(**more: Any) -> VersionDraft:
    fields = {"files": (), "gate": Gate(), "environment": {}, "metrics": {"candidate": {"auc": 0.5}}, **more}
    return VersionDraft(
        weights_digest="w", events_trained=1, events_held_out=0, events_unusable=0, step=1, timings={}, **fields,
    )  # fmt: skip


def scoring_half(folder: Path, registry: Any, of: Definition, *, setting: str) -> TrustedHalf:
    """Of a round that has written a version's files."""
    assignment = given(folder)
    lease = replace(assignment.lease, round=replace(assignment.round, plan=registry.plan))
    (folder / "work" / "output").mkdir(parents=True)
    (folder / "work" / "output" / "weights").write_bytes(b"w")
    means = Means(settings_of(folder, score_outside=setting), lambda digest: of)
    return TrustedHalf(replace(assignment, lease=lease), registry, means)


def hand_in(half: TrustedHalf, stated: VersionDraft) -> None:
    """As the round's process does."""
    ours, theirs = socket.socketpair()
    with theirs, ours:
        threading.Thread(target=taken, args=(ours, half), daemon=True).start()
        outside = Outside(theirs.fileno())
        outside.upload(Path("output"))
        outside.register_version(stated)


def linked_whole(ground: Ground) -> None:
    ground.output.rmdir()
    ground.output.symlink_to(ground.folder)


def huge(ground: Ground) -> None:
    with (ground.output / "weights").open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("lay", "words"),
    [
        (
            lambda ground: (ground.output / "weights").symlink_to(ground.secret),
            "weights, which is neither a file nor a folder",
        ),
        (
            lambda ground: (ground.output / "checkpoint").symlink_to(ground.folder),
            "checkpoint, which is neither a file nor a folder",
        ),
        (linked_whole, "output, which is a link"),
        (lambda ground: os.mkfifo(ground.output / "weights"), "weights, which is neither a file nor a folder"),
        (huge, "have 1099511627776 bytes, and may have 1048576"),
        (
            lambda ground: (ground.output / "weights\n2026 version registered").write_text("x"),
            "expected a name of printable characters",
        ),
        (lambda ground: [(ground.output / f"{number}").touch() for number in range(10_001)], "more than 10000 files"),
    ],
)
def test_what_is_no_ordinary_version_is_not_handed_in(
    ground: Ground, lay: Callable[[Ground], object], words: str
) -> None:
    lay(ground)
    with pytest.raises(InvalidInput, match=words):
        ground.outside.upload(ground.output)
    with pytest.raises(InvalidInput, match="has handed in no files"):
        ground.outside.register_version(draft())
    assert not ground.registry.done


def test_files_and_gate_of_a_version_are_those_that_control_has_seen(ground: Ground) -> None:
    (ground.output / "saved_model").mkdir()
    (ground.output / "saved_model" / "saved_model.pb").write_bytes(b"graph")
    entry = FileEntry("saved_model/saved_model.pb", 5, hashlib.sha256(b"graph").hexdigest())
    assert ground.outside.upload(ground.output) == ((entry,), 5)
    environment = {"pushed": {"by": "somebody else"}, "tensorflow": "2.21.0"}
    told = draft(
        files=(FileEntry("../../etc/shadow", 5, "0" * 64),), gate=Gate(metric="auc", min_value=0.0),
        environment=environment,
    )  # fmt: skip
    version = ground.outside.register_version(told)
    assert ground.registry.niceness == min(19, os.nice(0) + 2), "files are read and sent as training is"
    (_, token, registered) = ground.registry.done[-1]
    assert (token, registered.files, registered.gate) == (3, (entry,), _GATE)
    assert (registered.metrics, registered.environment) == (
        told.metrics, {"tensorflow": "2.21.0", "scored_outside": {"reason": "TRAINER_SCORE_OUTSIDE is none"}},
    )  # fmt: skip
    assert (version.version, ground.half.version) == (7, version)


def test_facts_of_a_version_have_a_bound(ground: Ground) -> None:
    ground.outside.upload(ground.output)
    with pytest.raises(InvalidInput, match="facts have"):
        ground.outside.register_version(draft(environment={"notes": "x" * (5 << 20)}))
    assert ground.registry.done[-1][0] == "upload"


_OWN = "{rules: [{metric: auc, max_regression: 0.1}, {metric: own, direction: higher, min_value: 0.5}], max_skew: 0.1}"
_BESIDE = {"max_skew": "no other process measures it"}
_OF_CODE = {"own": "the definition's own code measures it"}
_OPERATIONS = "its export runs operations of its author's"


@pytest.mark.parametrize(
    ("setting", "operations", "against", "told"),
    [
        ("modules", "", 3, {"unscored": _OF_CODE | _BESIDE}),
        ("required", "", 3, {"unscored": _OF_CODE | _BESIDE, "required": True}),
        ("all", "", 0, {"unscored": {"auc of the parent": "the files of version 3 are removed"} | _OF_CODE | _BESIDE}),
        ("all", "own.so", 3, {"reason": _OPERATIONS, "unscored": dict.fromkeys(("auc", "own"), _OPERATIONS) | _BESIDE}),
    ],
)
def test_a_version_says_which_of_the_gates_metrics_no_other_process_has_measured(
    tmp_path: Path, setting: str, operations: str, against: int, told: dict[str, Any]
) -> None:
    text = definition(gate=_OWN).replace(b"estimator: linear_classifier\n", b"module: module.py\ntask: binary\n")
    named = f"operations: [{operations}]\n".encode() if operations else b""
    code = {"module.py": b""} | ({operations: b"\x7fELF"} if operations else {})
    files = {"model.yaml": text.replace(b"features:\n  distance: {type: numeric}\n", named), **code}
    plan = replace(given(tmp_path).plan, parent_version=3)
    found = Figures(against, {}, {"candidate": {"auc": 0.5}, "parent": {"auc": 0.5} if against else {}}, {}, 0)
    registry, stated = Registry(plan), {"candidate": {"auc": 0.5, "own": 0.9}, "parent": {"auc": 0.5}}
    half = scoring_half(tmp_path, registry, parse_definition(files), setting=setting)
    with ThreadPoolExecutor(1) as pool:
        handed_in = pool.submit(hand_in, half, draft(metrics=stated))
        if not operations:
            question = wait_until(half.scoring.taken, "a second process is asked for")
            assert question
            question.answer.set_result(found)
            told = {"metrics": found.metrics} | told
        handed_in.result()
    assert registry.done[-1][-1].environment["scored_outside"] == told


@pytest.mark.parametrize(
    "attempt",
    [
        lambda ground: ground.outside.get_version("another", 1),
        lambda ground: ground.outside.get_round("another", "another-000001"),
        lambda ground: ground.outside.get_stream("another"),
        lambda ground: ground.outside.get_definition("f" * 64),
        lambda ground: ground.outside.download([replace(_WEIGHTS, digest="c" * 64)], Path(ground.assignment.work_dir)),
        lambda ground: ground.outside.download([_WEIGHTS], Path(ground.assignment.work_dir)),
        lambda ground: shown(ground).download([_WEIGHTS], ground.folder),
        lambda ground: shown(ground).download([_WEIGHTS], ground.output / "../../cache/other"),
        lambda ground: shown(ground).download([_WEIGHTS], link_to(ground.output / "out", ground.folder)),
        lambda ground: shown(ground).download(
            [replace(_WEIGHTS, path="../../../secret")], Path(ground.assignment.work_dir)
        ),
        lambda ground: ground.outside.upload(Path("..")),
        lambda ground: ground.outside.upload(ground.folder),
    ],
)
def test_a_round_reads_and_hands_in_nothing_but_its_own(ground: Ground, attempt: Callable[[Ground], Any]) -> None:
    with pytest.raises(PermissionDenied):
        attempt(ground)
    assert not ground.registry.done


def shown(ground: Ground) -> Outside:
    """The files of a version that the round may read."""
    assert ground.outside.get_version("m", 1).files == (_WEIGHTS,)
    return ground.outside


def link_to(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def test_a_round_reads_what_its_plan_names_and_what_that_names_in_turn(ground: Ground) -> None:
    outside, work_dir = ground.outside, Path(ground.assignment.work_dir)
    assert outside.get_stream("s", schema_version=4) == Stream("s", 4, "{}", 0.0)
    assert outside.get_definition("d") == {"model.yaml": b"d"}
    assert outside.get_version("words", 2) == ground.registry.get_version("words", 2)
    assert outside.get_definition("older") == {"model.yaml": b"older"}
    assert outside.get_round("m", "m-0").plan == ground.assignment.plan
    point = ground.assignment.lease.resume_point
    assert point is not None
    assert outside.download(point.files, work_dir / "resume") == 5
    assert outside.download([_WEIGHTS], ground.folder / "cache/m/1") == 5


def test_a_resume_point_is_of_the_files_that_were_handed_in(ground: Ground) -> None:
    folder = Path(ground.assignment.work_dir) / "resume"
    folder.mkdir()
    (folder / "weights").write_bytes(b"w")
    ground.outside.upload(folder)
    ground.outside.put_resume_point({"step": 4})
    entry = FileEntry("weights", 1, hashlib.sha256(b"w").hexdigest())
    assert ground.registry.done[-1] == ("resume point", 3, {"step": 4}, (entry,))


@pytest.mark.covers("dist-chief-evaluator")
@pytest.mark.parametrize("more", [{"rebuild_of": 3}, {"candidate": (_WEIGHTS,)}, {"rank": 1}])
def test_only_the_chief_of_a_leased_round_hands_anything_in(made: Callable[..., Ground], more: dict[str, Any]) -> None:
    ground = made(**more)
    for attempt in (
        lambda: ground.outside.upload(ground.output), lambda: ground.outside.register_version(draft()),
        lambda: ground.outside.set_aside([Place(0, 0, 0, "bad")]),
    ):  # fmt: skip
        with pytest.raises(PermissionDenied, match="nothing is handed in here"):
            attempt()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("SetAlias", b""), ("", b""), ("GetStream", b"\xff\xff"), ("Download", b"[]"), ("Download", b"{}"),
        ("Download", b'{"directory": 1, "files": [{"path": 2}]}'), ("Upload", b"[" * 100_000),
        ("RegisterVersion", b"\x0a"), ("PutResumePoint", json.dumps({"state": 5}).encode()),
        ("Upload", b"x" * (65 << 20)), ("SetAside", b'{"places": [[0, 0, 0, "no version yet"]]}'),
        ("SetAside", b"{}"), ("SetAside", b'{"places": [[0, 0, true, "odd"]]}'),
        ("SetAside", b'{"places": [[0, 0, 0]]}'),
        ("SetAside", json.dumps({"places": [[0, 0, 0, ""]] * 50_001}).encode()),
    ],
)  # fmt: skip
def test_what_is_no_call_is_refused_and_the_next_is_answered(ground: Ground, name: str, body: bytes) -> None:
    with pytest.raises((InvalidInput, Overloaded, Unavailable)):
        calls.call(ground.channel, name, body)
    assert ground.outside.get_definition("d")
    assert not ground.registry.done


def test_descriptors_that_are_no_sockets_and_more_calls_than_are_answered_at_once_cost_nothing(ground: Ground) -> None:
    with ground.secret.open("rb") as file:
        socket.send_fds(ground.channel, [calls.MARK], [file.fileno()])
    pairs = [socket.socketpair() for _ in range(trusted_half.MOST_CALLS + 1)]
    for _, theirs in pairs:
        socket.send_fds(ground.channel, [calls.MARK], [theirs.fileno()])
        theirs.close()
    last = pairs[-1][0]
    last.settimeout(60.0)
    assert last.recv(1) == b"", "it is closed at once"
    for ours, _ in pairs:
        ours.close()
    while True:  # as soon as one of those has been given up
        try:
            assert ground.outside.get_definition("d")
            break
        except Unavailable:
            continue


def test_a_round_that_is_over_is_answered_nothing(ground: Ground) -> None:
    ground.half.close()
    with pytest.raises(Unavailable):
        ground.outside.get_definition("d")


def test_the_parents_files_are_what_patches_are_made_from(made: Callable[..., Ground]) -> None:
    ground = made()
    plan = replace(ground.assignment.plan, parent_version=1)
    large = replace(_WEIGHTS, size_bytes=SMALLEST_FILE_BYTES)
    registry: Any = SimpleNamespace(
        get_version=lambda *_: SimpleNamespace(files=(large, _WEIGHTS)), upload=ground.registry.upload,
        upload_ahead=ground.registry.upload,
    )  # fmt: skip
    lease = replace(ground.assignment.lease, round=replace(ground.assignment.round, plan=plan))
    means = Means(settings_of(ground.folder, max_version_mib=0), lambda digest: _DEFINITION)
    half = TrustedHalf(replace(ground.assignment, lease=lease), registry, means)
    (ground.output / "weights").write_bytes(bytes(SMALLEST_FILE_BYTES))
    ours, theirs = socket.socketpair()
    with theirs, ours:
        threading.Thread(target=taken, args=(ours, half), daemon=True).start()
        Outside(theirs.fileno()).upload(ground.output)
    bases = {large.digest: ground.folder / "cache/m/1/checkpoint/weights.npz"}
    unnamed = FileEntry("weights", SMALLEST_FILE_BYTES, "")
    named = replace(unnamed, digest=hashlib.sha256(bytes(SMALLEST_FILE_BYTES)).hexdigest())
    assert ground.registry.done == [
        ("upload", ground.output, [unnamed], bases), ("upload", ground.output, (named,), bases)
    ]  # fmt: skip
