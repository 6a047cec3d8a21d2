"""HTTP door: people's decisions about models, streams and rounds, and their record."""

from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.responses import Response, StreamingResponse

from common.access.guard import called, require, rule
from common.access.principal import author_of
from common.registry.catalog import FileEntry
from common.registry.wire import json_text
from services.registry.catalog import Catalog
from services.registry.decided import ModelChange, RoundChange, StreamChange
from services.registry.doors.bodies import END, ApplyBody, AuthorBody, PinBody, PushBody, decoded, json_answer
from services.registry.doors.rules import check_stream
from services.registry.store.audit import Call

_MODEL_WORDS: dict[ModelChange, str] = {
    "pause": "No round is planned until it is resumed; a running round goes on to its end.",
    "resume": "Rounds are planned again, at once also after failures.",
    "unpin": "The next version that passes the gate is promoted again.",
    "archive": "The model is neither trained nor served any more; 409 while a round of it is open.",
    "restore": "Undoes archiving.",
}
_STREAM_WORDS: dict[StreamChange, str] = {
    "archive": "The stream takes neither events nor models; 409 while a model that is not archived learns from it.",
    "restore": "Undoes archiving.",
}
_ROUND_WORDS: dict[RoundChange, str] = {
    "fail": "Ends a round that is planned or running, of any trainer.",
    "stop": "Its trainer ends the block of examples that it learns, saves a resume point and gives the round back. No "
    "trainer takes it until it is resumed.",
    "resume": "A stopped round goes on from its resume point, on any trainer.",
}
_AUTHOR = rule("author:{model}")
Version = Annotated[int, Query(gt=0, lt=END)]


def add_lifecycle(app: FastAPI, catalog: Catalog) -> None:
    for model_change in _MODEL_WORDS:
        _add_model_change(app, catalog, model_change)
    for stream_change in _STREAM_WORDS:
        _add_stream_change(app, catalog, stream_change)
    for round_change in _ROUND_WORDS:
        _add_round_change(app, catalog, round_change)
    _add_apply(app, catalog)
    _add_deletion(app, catalog)
    _add_record(app, catalog)

    @app.post("/v1/models/{model}:pin", tags=["versions"])
    def pin(model: str, body: PinBody) -> Response:
        """Production stays at the version it names; what passes the gate is held."""
        return json_answer(catalog.pin(model, body.version, by=body.by, reason=body.reason))

    @app.post("/v1/models/{model}:push", tags=["versions"])
    def push(model: str, body: PushBody) -> Response:
        """A SavedModel made elsewhere becomes a version that a person may promote; its files were uploaded before. With
        `measured`, what a trainer found, the gate judges it beside the live version.

        400 where it lacks a part or a tag, or holds operations that no replica can run. 409 where the `signature` is of
        another version number than the next.
        """
        files = [FileEntry(file.path, file.size_bytes, file.digest) for file in body.files]
        measured = body.measured.measured() if body.measured else None
        return json_answer(
            catalog.push_version(
                model, files, origin=body.origin, by=body.by, reason=body.reason, measured=measured,
                signature=body.signature,
            )
        )  # fmt: skip


def _add_round_change(app: FastAPI, catalog: Catalog, how: RoundChange) -> None:
    path = "/v1/models/{model}/rounds/{round_id}:" + how

    @app.post(path, name=f"{how}_round", description=_ROUND_WORDS[how], tags=["rounds"])
    def change(model: str, round_id: str, body: AuthorBody) -> Response:
        return json_answer(catalog.change_round(model, round_id, how, by=body.by, reason=body.reason))


def _add_model_change(app: FastAPI, catalog: Catalog, how: ModelChange) -> None:
    @app.post("/v1/models/{model}:" + how, name=f"{how}_model", description=_MODEL_WORDS[how], tags=["models"])
    def change(model: str, body: AuthorBody) -> Response:
        return json_answer(catalog.change_model(model, how, by=body.by, reason=body.reason))


def _add_stream_change(app: FastAPI, catalog: Catalog, how: StreamChange) -> None:
    @app.post("/v1/streams/{stream}:" + how, name=f"{how}_stream", description=_STREAM_WORDS[how], tags=["streams"])
    def change(stream: str, body: AuthorBody) -> Response:
        return json_answer(catalog.change_stream(stream, how, by=body.by, reason=body.reason))


def _add_apply(app: FastAPI, catalog: Catalog) -> None:
    @app.post("/v1/apply", tags=["models"])
    def apply(body: ApplyBody) -> Response:
        """Registers a stream and a model, both or neither; either may be left out, and `dry_run` stores nothing.

        Answers `{stream, stream_change, model, model_change, changes: {key: [before, after]}, notes: [sentence],
        learned: [sentence]}`; a change is created, changed, unchanged, or empty for what was not sent. `learned` says
        what of the weights is kept, moved, new and dropped; 409 where a layer must start anew that `restart.yaml` of
        the definition does not name.
        """
        stream = (body.stream.name, json_text(body.stream.schema_)) if body.stream else None
        model = None
        if body.model is not None:
            model = (body.model.name, {path: decoded(path, text) for path, text in body.model.files.items()})
        if body.model is not None:
            with catalog.audit.refusals(Call("apply", body.by, {"model": body.model.name})):
                require(_AUTHOR, called(body.model.name))
        if stream:
            check_stream(catalog, *stream)
        return json_answer(catalog.apply(stream=stream, model=model, by=body.by, dry_run=body.dry_run))


def _add_deletion(app: FastAPI, catalog: Catalog) -> None:
    @app.delete("/v1/models/{model}", tags=["models"])
    def delete_model(model: str, by: str = "", reason: str = "", dry_run: bool = False) -> Response:
        """Removes an archived model that no replica serves; with `dry_run` only answers whether that is possible."""
        catalog.delete_model(model, by=author_of(by), reason=reason, dry_run=dry_run)
        return json_answer({"deleted": "" if dry_run else model})

    @app.delete("/v1/streams/{stream}", tags=["streams"])
    def delete_stream(stream: str, by: str = "", reason: str = "", dry_run: bool = False) -> Response:
        """Removes an archived stream that no model names; its events stay in the log. `dry_run` as for a model."""
        catalog.delete_stream(stream, by=author_of(by), reason=reason, dry_run=dry_run)
        return json_answer({"deleted": "" if dry_run else stream})


def _add_record(app: FastAPI, catalog: Catalog) -> None:
    @app.get("/v1/history", tags=["history"])
    def history(
        model: str = "",
        stream: str = "",
        by: str = "",
        action: str = "",
        limit: Annotated[int, Query(gt=0, le=10_000)] = 100,
        before: str = "",
    ) -> Response:
        """Who did what, when and why, the newest first: `{entries: [{at, by, action, model, stream, version, detail,
        reason}], older}`; with `before=` what `older` says, the entries before these.

        Actions: apply, promote, rollback, alias, pause, resume, pin, unpin, archive, restore, delete, fail_round,
        stop_round, resume_round, push;
        train and replay as asked for on a page.
        """
        found = catalog.history_page(model=model, stream=stream, by=by, action=action, limit=limit, before=before)
        return json_answer({"entries": [entry for _, entry in found.entries], "older": found.older})

    @app.get("/v1/audit", tags=["history"], response_class=Response)
    def audit(
        after: Annotated[int, Query(ge=0, lt=END)] = 0, limit: Annotated[int, Query(gt=0, le=100_000)] = 10_000
    ) -> Response:
        """Every call that has changed something or was refused, as JSON lines, the oldest first: `{sequence, at, by,
        action, result: done | denied, ..., previous, digest}`. `after`: entries behind that sequence number.
        `headrace audit verify` checks the chain of digests; the guide says what is in it."""
        return StreamingResponse(catalog.audit.lines(after, limit), media_type="application/jsonl")

    @app.get("/v1/audit/head", tags=["history"])
    def audit_head() -> Response:
        """`{sequence, digest}` of the newest entry."""
        return json_answer(catalog.audit.head())

    @app.get("/v1/models/{model}/diff", tags=["versions"])
    def diff(model: str, from_version: Annotated[int, Query(alias="from", gt=0, lt=END)], to: Version) -> Response:
        """Two versions side by side.

        Answers `{model, from, to, relation, configuration: {key: [from, to]}, definition: {path: [line]}, metrics:
        {name: {from, to, change}}, events, ranges: {from, to}, environment, code: {same}, weights: {same}, files}`;
        `definition` holds unified diffs.
        """
        return json_answer(catalog.compare(model, from_version, to))
