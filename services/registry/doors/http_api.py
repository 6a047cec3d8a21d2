"""HTTP door, for people and the command line: JSON whose keys are the field names of common/registry/catalog.py."""

import base64
from collections.abc import Callable
from dataclasses import asdict
from secrets import token_bytes
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query
from fastapi.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from common.access.guard import NO_GUARD, Guard
from common.access.principal import author_of, current
from common.process.health import Health
from common.process.tracing import OFF, Tracing
from common.process.web import BoundedBodies, create_app
from common.registry.catalog import MOST_LISTED, Model
from common.registry.wire import json_text
from services.registry.catalog import Catalog
from services.registry.doors.bodies import (
    END,
    AliasBody,
    Listed,
    ModelBody,
    RollbackBody,
    VersionNumber,
    decoded,
    json_answer,
)
from services.registry.doors.lifecycle_api import add_lifecycle
from services.registry.doors.rules import check_stream
from services.registry.pages.door import Pages
from services.registry.pages.service_links import ServiceLinks
from services.registry.series import KEPT_SECONDS, STEP_SECONDS, Wanted

MAX_BODY_BYTES = 32 * 1024 * 1024
JsonObject = dict[str, Any]


def create_registry_app(
    catalog: Catalog,
    service_health: Health,
    *,
    service_links: ServiceLinks | None = None,
    secret: bytes = b"",
    webhooks: Callable[[], list[dict[str, Any]]] = list,
    tracing: Tracing = OFF,
    guard: Guard = NO_GUARD,
) -> ASGIApp:
    """The registry's routes and pages beside health and metrics, with bodies bounded.

    Args:
        service_links: services that the pages call on a reader's behalf; none by default.
        secret: the key of the pages' forms; made at the start by default.
        webhooks: the state of each.
        guard: the rights of principals.
    """
    pages = Pages(catalog, service_links or ServiceLinks(), secret=secret or token_bytes(32), access=guard.access)
    app = create_app(
        "Headrace registry", service_health, tracing=tracing, guard=guard, identify=pages.identify,
        refused=pages.refused,
    )  # fmt: skip
    _add_streams_and_models(app, catalog)
    _add_rounds(app, catalog)
    _add_versions(app, catalog)
    _add_aliases(app, catalog)
    _add_live(app, catalog)
    _add_files(app, catalog)
    _add_instances(app, catalog)
    add_lifecycle(app, catalog)

    @app.get("/v1/webhooks", tags=["webhooks"])
    def list_webhooks() -> Response:
        """The receivers of webhooks, and the newest results: `{webhooks: [{name, host, events, models, delivered,
        given_up, trouble, results: [{event_id, kind, outcome, attempts, answer, at}]}]}`. Counts are since the registry
        began."""
        return json_answer({"webhooks": webhooks()})

    pages.add_to(app)
    return BoundedBodies(app, MAX_BODY_BYTES)


def _add_streams_and_models(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/streams", tags=["streams"])
    def list_streams() -> Response:
        return json_answer({"streams": [asdict(stream) for stream in catalog.list_streams()]})

    @app.get("/v1/streams/{stream}", tags=["streams"])
    def get_stream(stream: str, schema_version: Annotated[int, Query(ge=0, lt=END)] = 0) -> Response:
        """The newest schema, or the version asked for."""
        return json_answer(asdict(catalog.get_stream(stream, schema_version)))

    @app.put("/v1/streams/{stream}", tags=["streams"])
    def register_stream(stream: str, schema: Annotated[JsonObject, Body()]) -> Response:
        """Registers the stream, or a compatible new version of its schema."""
        check_stream(catalog, stream, json_text(schema))
        return json_answer(asdict(catalog.register_stream(stream, json_text(schema))))

    @app.get("/v1/models", tags=["models"])
    def list_models() -> Response:
        """`{models: [...]}`, each as the model alone."""
        return json_answer({"models": [_model_json(catalog, model) for model in catalog.list_models()]})

    @app.get("/v1/models/{model}", tags=["models"])
    def get_model(model: str) -> Response:
        """The model. `head_version`: where the next round starts; `paused`: who and why, or empty; `pinned_version`: 0
        when it is not pinned; `failure`: `{message, stage, place, events, advice, log, round_id, attempts, at}` of the
        last failed round, which stays when later rounds succeed; `serving`: `{version, moved_at, replicas, available,
        failed: {instance: reason}, converged_at}` says how replicas stand with production, null in `converged_at` while
        one lacks it."""
        return json_answer(_model_json(catalog, catalog.get_model(model)))

    @app.put("/v1/models/{model}", tags=["models"])
    def register_model(model: str, body: ModelBody) -> Response:
        """Registers the model, or a new definition of it."""
        files = {path: decoded(path, text) for path, text in body.files.items()}
        found = catalog.register_model(model, stream=body.stream, files=files, by=body.by)
        return json_answer(_model_json(catalog, found))

    @app.get("/v1/definitions/{digest}", tags=["models"])
    def get_definition(digest: str) -> Response:
        files = catalog.get_definition(digest)
        encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
        return json_answer({"digest": digest, "files": encoded})


def _model_json(catalog: Catalog, model: Model) -> JsonObject:
    return {**asdict(model), "serving": asdict(catalog.observed.serving(model))}


def _add_rounds(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/models/{model}/rounds", tags=["rounds"])
    def list_rounds(model: str, limit: Annotated[int, Query(gt=0)] = 50) -> Response:
        """Newest first."""
        return json_answer({"rounds": [asdict(found) for found in catalog.list_rounds(model, limit)]})

    @app.get("/v1/rounds", tags=["rounds"])
    def list_rounds_of_all(limit: Annotated[int, Query(gt=0, le=1000)] = 50) -> Response:
        """Of all models together, newest first."""
        names = [model.name for model in catalog.list_models()]
        return json_answer({"rounds": [asdict(found) for found in catalog.recent_rounds(names, limit)]})

    @app.get("/v1/models/{model}/rounds/{round_id}", tags=["rounds"])
    def get_round(model: str, round_id: str) -> Response:
        """With its `resume_point`: `{files, saved_at, state}`, or null. Of a round that has ended without a version the
        files stay until the next collection."""
        found, point = catalog.get_round(model, round_id), catalog.resume_point(round_id)
        return json_answer({**asdict(found), "resume_point": point and asdict(point)})


def _add_versions(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/models/{model}/versions", tags=["versions"])
    def list_versions(model: str, limit: Listed = MOST_LISTED, before: Annotated[int, Query(ge=0)] = 0) -> Response:
        """The newest, oldest first, without their files; `served_by` lists the replicas that have each. `older` is the
        `before` of the next page, 0 where there is none.

        `thinned` says what `retention` of the definition has thinned: `[{rule: hourly | daily | none, versions,
        first_version, last_version, at}]`; such a version keeps its record and has `thinned_at` and `thinned_by`.
        """
        served = catalog.observed.served_by(model)
        found = catalog.list_versions(model, limit=limit + 1, before=before)
        shown = found[-limit:]
        listed = [asdict(version) | {"served_by": served.get(version.version, [])} for version in shown]
        thinned = [asdict(thinning) for thinning in catalog.thinned(model)]
        older = shown[0].version if len(found) > limit else 0
        return json_answer({"versions": listed, "thinned": thinned, "older": older})

    @app.get("/v1/models/{model}/versions/{version}", tags=["versions"])
    def get_version(model: str, version: VersionNumber) -> Response:
        """With its files, `served_by`: `[{instance_id, state, since, aliases, reason, given_up}]`, and `live`: as
        `/v1/models/{model}/live` has it of this version, `{}` where none of its predictions has a label."""
        served = catalog.observed.served_by(model).get(version, [])
        beside = {"served_by": served, "live": catalog.live_evidence(model, version)}
        return json_answer(asdict(catalog.get_version(model, version)) | beside)

    @app.get("/v1/models/{model}/account", tags=["models"])
    def account(model: str) -> Response:
        """Where every event of the stream's log is, from where the model began to the log's end.

        Answers `{examples: {total, trained, held_out, unusable, left_out, again, waiting}, unusable: {reasons: {reason:
        count}, samples}, left_out: [{partition, from_offset, to_offset, examples, reason, version}], waiting:
        {examples, in_round, round_id, judged_before, log_end, waiting_for}, versions, adds_up, problems: [sentence],
        model, stream, head_version, production_version}`. `total` and `waiting` are null until a trainer has reported;
        `again`, where there is any, counts second examples of late labels, which `total` does not. `version` is 0 for
        what the next round will leave out. Reasons to leave out: retention, rejection, rollback,
        canary, held, failed, chosen; and max_steps and early_stopping, where a round ended before its range did: these
        lie in the version's own ranges, and their partition and offsets are null.
        """
        return json_answer(catalog.observed.account(model))

    @app.get("/v1/models/{model}/why", tags=["models"])
    def why(model: str) -> Response:
        """What stops the model, its last failure and what to do.

        Answers `{model, state, sentences, advice, failure: {message, stage, place, events, advice, log, round_id,
        attempts, at} or null, resolved, consecutive_failures, retry_at, waiting_for, unloadable: {instance: reason}}`;
        `log` is the end of what the round's process has logged; state is ok, failing, paused, archived or unloadable.
        """
        return json_answer(catalog.observed.why(model))


def _add_aliases(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/models/{model}/history", tags=["versions"])
    def alias_history(model: str, limit: Listed = MOST_LISTED) -> Response:
        """The newest moves of aliases, oldest first; `/v1/history` has all, page by page."""
        return json_answer({"changes": [asdict(change) for change in catalog.alias_history(model, limit=limit)]})

    @app.put("/v1/models/{model}/aliases/{alias}", tags=["versions"])
    def set_alias(model: str, alias: str, body: AliasBody) -> Response:
        """Points the alias at a version; `production` is what unversioned predictions use."""
        return json_answer(asdict(catalog.set_alias(model, alias, body.version, by=body.by, reason=body.reason)))

    @app.delete("/v1/models/{model}/aliases/{alias}", tags=["versions"])
    def remove_alias(model: str, alias: str, by: str = "", reason: str = "") -> Response:
        return json_answer(asdict(catalog.set_alias(model, alias, 0, by=author_of(by), reason=reason)))

    @app.post("/v1/models/{model}:rollback", tags=["versions"])
    def rollback(model: str, body: RollbackBody) -> Response:
        """Moves production back to the version it named before.

        `events` says what becomes of those that only rolled-back versions have learned: the next round learns
        them again (`learn`), or no round does (`leave_out`); without it, as `gate.on_reject` has it. The answer has it
        and their number under `rolled_back`.
        """
        return json_answer(asdict(catalog.rollback(model, by=body.by, reason=body.reason, events=body.events)))


def _add_live(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/models/{model}/live", tags=["versions"])
    def live_quality(model: str) -> Response:
        """How good live versions are, by the labels that came for their predictions.

        Answers `{model, aliases, revision, updated_at, counts: {labelled, late, never, unmatched,
        duplicate_predictions, duplicate_labels, unusable, dropped, waiting}, versions: [{version, updated_at,
        tracks: [{alias, since, window: {examples, metrics}, total: {examples, metrics}}], judge: {against, metric,
        margin, alpha, bound, samples, difference, e_value, verdict, curve: [[samples, e_value, difference]], at,
        reason, moved_to or stays}}]}`, the newest ten versions. With `live: slices` a track has `slices: [{where,
        window, total}]` as well. `judge` is there where `rollout` compares
        production with its predecessor: `difference` is how much larger the mean loss is on the same examples,
        `verdict` is worse, inconclusive or empty.
        """
        return json_answer(catalog.live_quality(model))


def _add_instances(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/whoami", tags=["access"])
    def whoami() -> Response:
        """`{name, roles}` of the principal whose credentials the request has; `anonymous` without identity."""
        principal = current()
        return json_answer({"name": principal.name, "roles": sorted(principal.roles)})

    @app.get("/v1/instances", tags=["instances"])
    def instances() -> Response:
        """Every instance of every service that has reported in the last 15 s, as it says of itself.

        Answers `{instances: [{instance_id, service, address, started_at, reported_at, age_seconds, serves: [{model,
        version, state, since, aliases, reason, given_up}], does, faults: [sentence], numbers: {name: value}, parts:
        [{stream, model, version, numbers}]}]}`.
        """
        return json_answer({"instances": catalog.observed.instances()})

    @app.get("/v1/overview", tags=["instances"])
    def overview() -> Response:
        """`{models: [...]}`: every model with what production and the newest version are and know, its open round, how
        replicas stand, what waits, and what is wrong (`why`). `freshness_seconds`: the age of the newest event that a
        version has learned from, since ingest took it; `event_time_freshness_seconds`: by its event time, null where
        the stream has none."""
        return json_answer({"models": catalog.observed.overview()})

    @app.get("/v1/series", tags=["instances"])
    def series(
        name: str,
        service: str = "",
        instance_id: str = "",
        stream: str | None = None,
        model: str | None = None,
        version: Annotated[int | None, Query(ge=0, lt=END)] = None,
        seconds: Annotated[int, Query(ge=STEP_SECONDS, le=KEPT_SECONDS)] = 3600,
        step_seconds: Annotated[int, Query(ge=0, le=KEPT_SECONDS)] = 0,
    ) -> Response:
        """A number that instances report, over the last day at most: rates, queues, percentiles.

        Answers `{from, step_seconds, series: [{name, service, instance_id, stream, model, version, points}]}`; a point
        is null where nothing was reported. `stream=`, `model=` and `version=0` without a value choose what is of none.
        `step_seconds` 0: as fine as 400 points allow. It is in memory: a restarted registry begins anew.
        """
        wanted = Wanted(name, service, instance_id, stream, model, version)
        return json_answer(catalog.observed.series.find(wanted, seconds=seconds, step_seconds=step_seconds))


def _add_files(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/files/{digest}", tags=["files"])
    def get_file(digest: str) -> Response:
        """The file's bytes. A damaged file never arrives whole: its last chunk is held back."""
        size_bytes = catalog.blobs.known_size_of(digest)
        return StreamingResponse(
            catalog.blobs.read(digest),
            media_type="application/octet-stream",
            headers={"Content-Length": str(size_bytes), "X-Content-Type-Options": "nosniff"},
        )

    @app.post("/v1/gc", tags=["files"])
    def collect() -> Response:
        """Thins old versions as `retention` of their definitions says, and removes files that nothing needs."""
        collected = catalog.collect(by="")
        archived = [{"model": model, "version": version} for model, version in collected.archived_versions]
        return json_answer({**asdict(collected), "archived_versions": archived})
