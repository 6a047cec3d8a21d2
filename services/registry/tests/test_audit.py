"""Every call that changes something leaves an entry in the audit log, with its change or not at all."""

import ast
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Unauthenticated
from common.process.health import Health
from common.registry import wire
from common.registry.audit import verify_chain
from common.registry.reporting import Report, Served
from protos import registry_pb2 as pb
from services.registry.catalog import Catalog
from services.registry.doors.audited import AuditedGuard
from services.registry.doors.grpc_api import RegistryServicer
from services.registry.doors.http_api import create_registry_app
from services.registry.doors.rules import RULES
from services.registry.pages.actions import FORMS
from services.registry.store.audit import Call
from services.registry.tests.building import (
    NEWEST_ONLY,
    SCHEMA,
    Clock,
    definition,
    draft,
    lease,
    new_catalog,
    next_plan,
    publish,
    report_log,
)
from services.registry.tests.seeing import browsing
from testing.walking import access_in, bearer

Entry = dict[str, Any]
MACHINES = {
    "LeaseRound", "RenewLease", "ReleaseRound", "PutResumePoint", "OfferHelp", "FormTeam", "KeepTeam",
    "Report", "TakeJob", "TellJob", "GetUpload", "UploadFile", "MissingFiles", "PutEvidence",
}  # fmt: skip
"""What trainers and replicas say of themselves, and bytes that no version names yet."""
READS = {
    "GetStream", "ListStreams", "GetModel", "ListModels", "GetDefinition", "ListRounds", "ListJobs", "DownloadFile",
    "GetVersion", "ListVersions", "ListAliasHistory", "Watch", "GetEvidence", "GetForgotten",
}  # fmt: skip


def entries(catalog: Catalog, after: int = 0) -> list[Entry]:
    return [json.loads(line) for line in catalog.audit.lines(after, 10_000)]


@dataclass
class Platform:
    """A catalog with two versions of m, and both of its doors."""

    catalog: Catalog
    http: httpx.Client
    grpc: RegistryServicer

    def planned(self) -> str:
        """The id of a planned round."""
        return self.catalog.plan_round(next_plan(self.catalog)).round_id

    def newest_round(self) -> str:
        return self.catalog.list_rounds("m", 1)[0].round_id


@pytest.fixture
def platform(catalog: Catalog, browser: httpx.Client) -> Platform:
    publish(catalog)
    publish(catalog)
    return Platform(catalog, browser, RegistryServicer(catalog))


def files_of(contents: dict[str, bytes]) -> dict[str, str]:
    return {path: b64encode(content).decode() for path, content in contents.items()}


def author(**more: object) -> dict[str, object]:
    return {"by": "ann", "reason": "so", **more}


def archived(platform: Platform) -> None:
    platform.catalog.change_model("m", "archive", by="bob", reason="")


def stream_archived(platform: Platform) -> None:
    platform.catalog.change_stream("s", "archive", by="bob", reason="")


def pushed(platform: Platform) -> dict[str, object]:
    files = [asdict(file) for file in draft(platform.catalog).files if file.path.startswith("saved_model/")]
    return author(files=files)


Made = tuple[str, Callable[[Platform], httpx.Response]]
"""The action that the newest entry names, and the request."""


def asking(
    action: str,
    method: str,
    path: str,
    *,
    before: Callable[[Platform], object] = lambda platform: None,
    json: object = None,
    **params: str,
) -> Made:
    def ask(platform: Platform) -> httpx.Response:
        before(platform)
        return platform.http.request(method, path, json=json, params=params)

    return action, ask


def of_round(action: str, how: str, round_id: Callable[[Platform], str]) -> Made:
    return action, lambda p: p.http.post(f"{MODEL}/rounds/{round_id(p)}:{how}", json=author())


MODEL, STREAM = "/v1/models/m", "/v1/streams/s"
NEW_MODEL = {"stream": "s", "files": files_of(definition(seed=8)), "by": "ann"}
APPLIED = {"model": {"name": "m", "files": files_of(definition(seed=9))}, "by": "ann"}
HTTP: dict[str, Made] = {
    "PUT /v1/streams/{stream}": asking("register_stream", "PUT", "/v1/streams/new", json=SCHEMA),
    "PUT /v1/models/{model}": asking("register_model", "PUT", MODEL, json=NEW_MODEL),
    "PUT /v1/models/{model}/aliases/{alias}": asking(
        "set_alias", "PUT", f"{MODEL}/aliases/canary", json=author(version=1)
    ),
    "DELETE /v1/models/{model}/aliases/{alias}": asking("set_alias", "DELETE", f"{MODEL}/aliases/canary", by="ann"),
    "POST /v1/models/{model}:rollback": asking("rollback", "POST", f"{MODEL}:rollback", json=author()),
    "POST /v1/gc": asking("collect", "POST", "/v1/gc"),
    "POST /v1/models/{model}:pause": asking("pause_model", "POST", f"{MODEL}:pause", json=author()),
    "POST /v1/models/{model}:resume": asking("resume_model", "POST", f"{MODEL}:resume", json=author()),
    "POST /v1/models/{model}:pin": asking("pin_model", "POST", f"{MODEL}:pin", json=author(version=1)),
    "POST /v1/models/{model}:unpin": asking("unpin_model", "POST", f"{MODEL}:unpin", json=author()),
    "POST /v1/apply": asking("apply", "POST", "/v1/apply", json=APPLIED),
    "POST /v1/models/{model}:push": ("push_version", lambda p: p.http.post(f"{MODEL}:push", json=pushed(p))),
    "POST /v1/models/{model}/rounds/{round_id}:stop": of_round("stop_round", "stop", Platform.planned),
    "POST /v1/models/{model}/rounds/{round_id}:resume": of_round("resume_round", "resume", Platform.newest_round),
    "POST /v1/models/{model}/rounds/{round_id}:fail": of_round("fail_round", "fail", Platform.newest_round),
    "POST /v1/models/{model}:archive": asking("archive_model", "POST", f"{MODEL}:archive", json=author()),
    "POST /v1/models/{model}:restore": asking("restore_model", "POST", f"{MODEL}:restore", json=author()),
    "DELETE /v1/models/{model}": asking("delete_model", "DELETE", MODEL, before=archived, by="ann"),
    "POST /v1/streams/{stream}:archive": asking("archive_stream", "POST", f"{STREAM}:archive", json=author()),
    "POST /v1/streams/{stream}:restore": asking("restore_stream", "POST", f"{STREAM}:restore", json=author()),
    "DELETE /v1/streams/{stream}": asking("delete_stream", "DELETE", STREAM, before=stream_archived, by="ann"),
}
"""In an order in which each may follow those before it."""


def registered(platform: Platform) -> pb.RegisterVersionRequest:
    platform.planned()
    held = lease(platform.catalog)
    version = wire.draft_to_wire(draft(platform.catalog))
    return pb.RegisterVersionRequest(round_id=held.round.round_id, token=held.token, version=version)


def failed(platform: Platform) -> pb.FailRoundRequest:
    held = lease(platform.catalog)
    return pb.FailRoundRequest(round_id=held.round.round_id, token=held.token, reason="no")


GRPC: dict[str, Callable[[Platform], object]] = {
    "RegisterStream": lambda p: pb.RegisterStreamRequest(name="new", schema_json=json.dumps(SCHEMA)),
    "RegisterModel": lambda p: pb.RegisterModelRequest(
        name="m", stream="s", files=wire.definition_to_wire(definition(seed=8)), by="ann"
    ),
    "PlanRound": lambda p: pb.PlanRoundRequest(round=wire.sent_as(pb.Round, next_plan(p.catalog))),
    "FailRound": failed,
    "RegisterVersion": registered,
    "AskJob": lambda p: pb.AskJobRequest(kind="rebuild", model="m", version=1, by="ann"),
    "SetAlias": lambda p: pb.SetAliasRequest(model="m", alias="canary", version=1, by="ann"),
    "Rollback": lambda p: pb.RollbackRequest(model="m", by="ann"),
    "Forget": lambda p: pb.ForgetRequest(
        model="m", forgotten_json='{"pieces": [[0, 0, 1, []]], "examples": 5}', by="ann"
    ),
}
"""Requests, in such an order, too."""


def routes(catalog: Catalog) -> Iterator[str]:
    """Every route of the HTTP door that is not only for reading."""
    door: Any = create_registry_app(catalog, Health())
    while not isinstance(door, FastAPI):
        door = door._app
    for route in door.routes:
        if isinstance(route, Route):
            yield from (f"{method} {route.path}" for method in set(route.methods or ()) - {"GET", "HEAD"})


def test_no_route_and_no_method_is_left_out_of_what_follows(catalog: Catalog) -> None:
    of_pages = {f"POST {form.path}" for form in FORMS} | {"POST /models/{model}/versions/{version}/try"}
    sessions = {"POST /login", "POST /logout"}  # change nothing of the registry's
    assert set(routes(catalog)) == HTTP.keys() | of_pages | sessions
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["RegistryService"].methods}
    assert methods == GRPC.keys() | MACHINES | READS


def test_each_route_that_changes_something_leaves_an_entry(platform: Platform) -> None:
    for name, (action, ask) in HTTP.items():
        answer = ask(platform)
        assert answer.status_code == 200, f"{name}: {answer.text}"
        newest = entries(platform.catalog)[-1]
        assert (newest["action"], newest["result"]) == (action, "done"), name
        assert newest["by"] == ("" if action in ("register_stream", "collect") else "ann"), name
    verify_chain(line.rstrip("\n") for line in platform.catalog.audit.lines(0, 10_000))


def test_each_call_that_changes_something_leaves_an_entry(platform: Platform) -> None:
    for name, request in GRPC.items():
        asked = request(platform)
        before = platform.catalog.audit.head().sequence
        getattr(platform.grpc, name)(asked, None)
        newest = entries(platform.catalog, before)
        assert {entry["result"] for entry in newest} == {"done"}, name
        assert newest[-1]["by" if name != "RegisterStream" else "stream"] in ("ann", "trainer", "new"), name
        if name == "RegisterVersion":
            assert (newest[-1]["version"], newest[-1]["decision"]) == (3, "promote")


def writes(node: ast.AST) -> bool:
    """Whether it opens a writing transaction by itself."""
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    names = [ast.unparse(call) for call in calls]
    return any(name == "writing" or ("database" in name and name.endswith(".write")) for name in names)


def test_no_write_of_the_registry_passes_the_log_by() -> None:
    """What opens a writing transaction by itself: the log, the start, and what machines call many times a second."""
    room = Path(__file__).parents[1]
    sources = [path for path in room.rglob("*.py") if "tests" not in path.relative_to(room).parts]
    parsed = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if writes(node)]
    found = {node.name for node in parsed if isinstance(node, ast.FunctionDef)}
    found |= {ast.unparse(target) for node in parsed if isinstance(node, ast.Assign) for target in node.targets}
    assert found == {"change", "prune", "_write_denied", "__init__", "writing", "method"} | {
        "end_session",  # changes nothing of the registry's
        "lease_round", "renew_lease", "release_round", "put_resume_point", "take", "report",
        "put_evidence",  # which is in the log where it moves production: test_live.py
    }  # fmt: skip


def test_an_entry_has_author_action_and_model(platform: Platform) -> None:
    platform.http.put("/v1/models/m/aliases/canary", json=author(version=1))
    newest = entries(platform.catalog)[-1]
    assert newest | {"digest": "", "previous": "", "sequence": 0} == {
        "at": "1970-01-12T13:46:40.000000+00:00", "by": "ann", "action": "set_alias", "model": "m", "alias": "canary",
        "version": 1, "reason": "so", "result": "done", "digest": "", "previous": "", "sequence": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("refused", "error", "action"),
    [
        (lambda c: c.set_alias("m", "production", 9, by="eve", reason=""), NotFound, "set_alias"),
        (lambda c: c.set_alias("m", "production", 1, by="", reason=""), InvalidInput, "set_alias"),
        (lambda c: c.rollback("m", by="eve", reason=""), Conflict, "rollback"),
        (lambda c: c.register_version("none", 1, draft(c)), NotFound, "register_version"),
        (lambda c: c.push_version("m", [], origin="", by="eve", reason=""), InvalidInput, "push_version"),
        (lambda c: c.delete_model("m", by="eve", reason=""), Conflict, "delete_model"),
        (lambda c: c.jobs.request("dig", model="m", by="eve", reason=""), InvalidInput, "ask_job"),
        (lambda c: c.change_round("m", "none", "fail", by="eve", reason=""), NotFound, "fail_round"),
    ],
)
def test_a_refusal_is_one_entry(
    catalog: Catalog, refused: Callable[[Catalog], object], error: type[HeadraceError], action: str
) -> None:
    before = catalog.audit.head().sequence
    with pytest.raises(error):
        refused(catalog)
    (entry,) = entries(catalog, before)
    assert (entry["action"], entry["result"], entry["error"]) == (action, "denied", error.__name__)


def test_a_change_that_cannot_be_logged_does_not_happen(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are one transaction: here the log's table takes no entry."""
    with catalog.audit._database.write() as transaction:
        transaction.connection.exec_driver_sql("ALTER TABLE audit RENAME TO elsewhere")
    with pytest.raises(HeadraceError):
        catalog.change_model("m", "pause", by="ann", reason="")
    assert catalog.get_model("m").paused == ""


def test_repeated_calls_of_machines_are_not_in_it(catalog: Catalog) -> None:
    plan = replace(next_plan(catalog), configuration={"fired": {"schedule": "30 2 * * * in UTC"}})
    catalog.plan_round(plan)
    assert entries(catalog)[-1]["fired"] == {"schedule": "30 2 * * * in UTC"}
    before = catalog.audit.head()
    catalog.plan_round(plan)
    held = lease(catalog)
    catalog.renew_lease(held.round.round_id, held.token, ttl_seconds=10.0, progress={})
    catalog.release_round(held.round.round_id, held.token, reason="")
    catalog.observed.report(Report("t", "trainer", "", 1.0))
    catalog.collect()
    assert catalog.audit.head() == before


def test_decisions_of_the_registry_are_in_it(catalog: Catalog, clock: Clock) -> None:
    catalog.register_model("m", stream="s", files=definition(retention=NEWEST_ONLY), by="test")
    for _ in range(3):
        publish(catalog)
    clock.pass_seconds(2 * 24 * 3600.0)
    report_log(catalog)
    catalog.collect()
    thinned = entries(catalog)[-1]
    assert (thinned["by"], thinned["action"], thinned["versions"]) == ("registry", "thin", 1)
    bad = Served("m", 3, "END", 1.0, reason="no", given_up=True)
    catalog.observed.report(Report("r", "serving", "", 1.0, serves=(bad,)))
    left = entries(catalog)[-1]
    assert (left["by"], left["action"], left["left_version"]) == ("registry", "leave_unloadable", 3)


def test_who_is_refused_again_and_again_does_not_fill_the_disk(catalog: Catalog, clock: Clock) -> None:
    before = catalog.audit.head().sequence

    def refused() -> None:
        with pytest.raises(NotFound):
            catalog.set_alias("none", "production", 1, by="eve", reason="")

    for _ in range(150):
        refused()
    assert len(entries(catalog, before)) == 120
    clock.pass_seconds(61)
    refused()
    assert entries(catalog)[-1]["unwritten"] == 30


def test_long_text_is_cut_and_named_by_its_digest(catalog: Catalog) -> None:
    catalog.change_model("m", "pause", by="ann", reason="x" * 2000)
    assert entries(catalog)[-1]["reason"].startswith("x" * 300 + "… (SHA-256 of 2000 characters: ")


def test_a_dry_run_and_its_refusal_leave_nothing(catalog: Catalog) -> None:
    before = catalog.audit.head()
    catalog.apply(stream=None, model=("m", definition(seed=9)), by="ann", dry_run=True)
    with pytest.raises(Conflict):
        catalog.delete_model("m", by="ann", reason="", dry_run=True)
    assert catalog.audit.head() == before


def test_the_log_is_exported_as_lines_in_parts(platform: Platform) -> None:
    lines = platform.http.get("/v1/audit").text.splitlines()
    head = verify_chain(lines)
    assert platform.http.get("/v1/audit/head").json() == asdict(head)
    part = platform.http.get("/v1/audit", params={"after": 2, "limit": 2}).text.splitlines()
    assert part == lines[2:4]


def test_the_log_goes_on_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    first = new_catalog(tmp_path / "data", clock)
    head = first.audit.head()
    first.close()
    again = new_catalog(tmp_path / "data", clock)
    lines = [line.rstrip("\n") for line in again.audit.lines(0, 10_000)]
    assert json.loads(lines[head.sequence])["previous"] == head.digest
    verify_chain(lines)
    again.close()


def test_the_oldest_entries_go_once_there_are_a_tenth_too_many_and_the_rest_verifies(platform: Platform) -> None:
    log = platform.catalog.audit
    for name in range(20):
        log.note_denied(Call(f"denied-{name}", "ann"), NotFound("no"))
    log.close()
    log.note_denied(Call("denied-late", "ann"), NotFound("no"))
    before = log.head()
    assert log.prune(before.sequence) == 0
    assert log.prune(10) == before.sequence - 10
    lines = [line.rstrip("\n") for line in log.lines(0, 10_000)]
    assert len(lines) == 11
    assert verify_chain(lines) == log.head() == replace(log.head(), sequence=before.sequence + 1)
    assert json.loads(lines[-1])["through"] == before.sequence - 10
    assert log.prune(10) == 0, "one more is not a tenth"
    with pytest.raises(HeadraceError, match="does not follow the beginning"):
        verify_chain(lines[1:])


def test_an_entry_that_was_changed_in_the_database_shows(platform: Platform) -> None:
    with platform.catalog.audit._database.write() as transaction:
        changed = "UPDATE audit SET line = replace(line, 'test', 'eve') WHERE sequence = 2"
        transaction.connection.exec_driver_sql(changed)
    with pytest.raises(HeadraceError, match=r"entry 2\) was changed"):
        verify_chain(line.rstrip("\n") for line in platform.catalog.audit.lines(0, 10_000))


@pytest.fixture
def guarded(catalog: Catalog, tmp_path: Path) -> Iterator[httpx.Client]:
    """A door that asks for credentials, of the principals of testing/walking.py."""
    guard = AuditedGuard(access_in(tmp_path), RULES, catalog.audit)
    with browsing(catalog, guard=guard) as client:
        yield client


def test_who_did_it_is_the_principal_whatever_the_request_says(guarded: httpx.Client, catalog: Catalog) -> None:
    answer = guarded.post("/v1/models/m:pause", json={"by": "somebody else"}, headers=bearer("operator"))
    assert answer.status_code == 200, answer.text
    assert entries(catalog)[-1]["by"] == "operator"


@pytest.mark.parametrize(
    ("name", "error", "by", "told"),
    [("", "Unauthenticated", "", {}), ("sender", "PermissionDenied", "sender", {"model": ["m"]})],
)
def test_who_is_refused_at_the_door_is_in_the_log(
    guarded: httpx.Client, catalog: Catalog, name: str, error: str, by: str, told: Entry
) -> None:
    before = catalog.audit.head().sequence
    assert guarded.put("/v1/models/m", json={}, headers=bearer(name)).status_code in (401, 403)
    assert guarded.get("/v1/models/m", headers=bearer(name)).status_code in (401, 403)
    catalog.audit.close()  # what is to be written soon is written then
    (entry,) = entries(catalog, before)
    assert (entry["action"], entry["result"], entry["error"]) == ("PUT /v1/models/{model}", "denied", error)
    assert (entry["by"], {key: entry[key] for key in told}) == (by, told)


@pytest.mark.parametrize("method", ["Watch", "DownloadFile", "MissingFiles", "GetModel", "ListModels"])
def test_reading_that_is_refused_takes_no_place_in_the_log(catalog: Catalog, tmp_path: Path, method: str) -> None:
    guard = AuditedGuard(access_in(tmp_path), RULES, catalog.audit)
    before = catalog.audit.head()
    with pytest.raises(Unauthenticated):
        guard.let_in(f"headrace.RegistryService/{method}", lambda: guard.access.principal_of(""))
    catalog.audit.close()
    assert catalog.audit.head() == before


def test_a_schema_that_an_author_may_not_change_is_in_the_log(guarded: httpx.Client, catalog: Catalog) -> None:
    other = {
        **SCHEMA,
        "features": [*SCHEMA["features"], {"name": "z", "dtype": "float32", "required": False, "default": 0.0}],
    }
    assert guarded.put("/v1/streams/s", json=other, headers=bearer("author")).status_code == 403
    entry = entries(catalog)[-1]
    assert (entry["by"], entry["action"], entry["error"]) == ("author", "register_stream", "PermissionDenied")
