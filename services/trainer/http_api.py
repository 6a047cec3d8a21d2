"""HTTP door of the trainer: ask for a round, see what goes on."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Self

from fastapi import FastAPI, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response
from starlette.types import ASGIApp

from common.access.guard import NO_GUARD, Guard
from common.process.author import By
from common.process.health import Health
from common.process.tracing import OFF, Tracing
from common.process.web import BoundedBodies, create_app
from common.registry.catalog import OffsetRange, Round
from common.registry.client import RegistryClient
from common.registry.jobs import Job, JobKind
from services.trainer.control.attempt import Attempt
from services.trainer.control.lease import RoundLoop
from services.trainer.control.rebuilds import Rebuilds
from services.trainer.control.running import RunningRound, in_front
from services.trainer.plan.forgetting import Forgetting
from services.trainer.plan.planner import Planner
from services.trainer.plan.replay import Replays
from services.trainer.settings import TrainerSettings

MAX_BODY_BYTES = 256 * 1024
_ASKING = {"by", "reason"}
_REBUILT: Mapping[str, Any] = {
    "reason": "", "stage": "", "examples_done": 0, "pass_number": 0, "passes": 0, "expected_digest": "",
    "rebuilt_digest": "", "equal": None, "events_trained": 0, "metrics": {}, "reproducible": True, "missing": [],
    "differences": [], "warnings": [], "seconds": 0.0,
}  # fmt: skip
_MEASURED: Mapping[str, Any] = {"version": 0, "reason": "", "figures": None, "seconds": 0.0}
Partition = Annotated[int, Field(ge=0, lt=2**31)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]


class Asking(BaseModel):
    """Who asks, and why; kept in the history."""

    model_config = ConfigDict(extra="forbid")
    by: By = Field("a request to a trainer", min_length=1, max_length=256, validate_default=True)
    reason: str = Field("", max_length=4096)


class TrainRequest(Asking):
    """Who asks for a round, and why; kept with the round."""

    by: By = Field(None, min_length=1, max_length=256, validate_default=True)
    start: Literal["head", "scratch"] | dict[Partition, Offset] = Field("head", alias="from")
    allow_signature_change: bool = Field(False, strict=True)
    request_id: str = Field("", max_length=64)


class ForgetRange(BaseModel):
    """Records [from_offset, to_offset) of a partition."""

    model_config = ConfigDict(extra="forbid")
    partition: Partition
    from_offset: Offset
    to_offset: Offset


class ForgetRequest(Asking):
    """Which events: `ranges`, or those whose `feature` has the `value`."""

    by: By = Field(None, min_length=1, max_length=256, validate_default=True)
    ranges: list[ForgetRange] = Field(default_factory=list, max_length=1000)
    feature: str = Field("", max_length=256)
    value: Annotated[str, Field(max_length=4096)] | Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)] = ""
    dry_run: bool = Field(False, strict=True)

    @model_validator(mode="after")
    def _names_events(self) -> Self:
        if bool(self.ranges) == bool(self.feature):
            raise ValueError("either ranges or a feature says which events are forgotten")
        return self


class ReplayRequest(BaseModel):
    """`triggers`: a policy beside the policy in force, as model.yaml has it. `since`: epoch seconds."""

    model_config = ConfigDict(extra="forbid")
    triggers: dict[str, Any] | None = None
    since: float = Field(0.0, ge=0, lt=1e11, allow_inf_nan=False)


class StoredFile(BaseModel):
    """A file that the registry has, and where it belongs."""

    model_config = ConfigDict(extra="forbid")
    path: str = Field(min_length=1, max_length=1024)
    size_bytes: int = Field(ge=0, lt=2**63, strict=True)
    digest: str = Field(min_length=1, max_length=128)


class MeasureRequest(Asking):
    """A SavedModel's files, each below saved_model/."""

    files: list[StoredFile] = Field(min_length=1, max_length=1000)


class ProfileRequest(Asking):
    """Which steps of a round to trace, counted from 0."""

    first_step: int = Field(10, ge=0, le=1_000_000, strict=True)
    steps: int = Field(10, ge=1, le=100, strict=True)


def create_http_app(
    planner: Planner,
    forgetting: Forgetting,
    replays: Replays,
    rounds: RoundLoop,
    rebuilds: Rebuilds,
    health: Health,
    settings: TrainerSettings,
    registry: RegistryClient,
    tracing: Tracing = OFF,
    guard: Guard = NO_GUARD,
) -> ASGIApp:
    app = create_app("Headrace trainer", health, tracing=tracing, guard=guard)
    _add_rounds(app, planner, forgetting, replays)
    _add_jobs(app, registry)
    _add_status(app, planner, rounds, rebuilds, settings)
    return BoundedBodies(app, MAX_BODY_BYTES)


def _add_rounds(app: FastAPI, planner: Planner, forgetting: Forgetting, replays: Replays) -> None:
    @app.post("/v1/models/{model}:train", status_code=202, tags=["rounds"])
    def train(model: str, request: TrainRequest) -> dict[str, Any]:
        """Plans a round over what is new. 409 when there is nothing new or a round is open already.

        `from`: `"head"` (the default); `"scratch"`: from nothing, over the log from its start; `{partition: offset}`:
        from there on, what lies between is left out and stands in the account. `allow_signature_change`: the version
        may break the signatures of the version before it, which is rejected otherwise. `request_id`: of the caller's
        making; the plan has it under `configuration.requested`: a caller without an answer sees what came of it.
        """
        return round_as_json(planner.plan_now(model, **dict(request)))

    @app.post("/v1/models/{model}:forget", tags=["rounds"])
    def forget(model: str, request: ForgetRequest) -> dict[str, Any]:
        """No later version learns the events, nor descends from a version that has. Where a version has, the next
        round starts from the newest ancestor without them and is planned at once; `dry_run` only says what would
        be. Answers `{examples, learned_by: [version], head_version, was, production_version, events_again,
        rounds_again, seconds, not_looked_at, round_id or waits}`. 409 while a round is open.
        """
        ranges = [OffsetRange(part.partition, part.from_offset, part.to_offset) for part in request.ranges]
        key = (request.feature, request.value) if request.feature else None
        return forgetting.forget(
            model, ranges=ranges, key=key, by=request.by, reason=request.reason, dry_run=request.dry_run
        )

    @app.post("/v1/models/{model}/triggers:replay", tags=["rounds"])
    def replay_triggers(model: str, request: ReplayRequest) -> dict[str, Any]:
        """When the policy in force, and the one of `triggers`, would have planned rounds over the log as it was.

        Answers `{from, to, records, examples, cost, as_it_was, policies: [{name, versions, examples, waiting,
        trainer_seconds, busy_share, freshness_seconds, fired, plans, not_replayed}]}`.
        """
        return replays.compare(model, request.triggers, since=request.since)


def _add_jobs(app: FastAPI, registry: RegistryClient) -> None:
    """What any trainer that is free takes, between two rounds."""

    @app.post("/v1/models/{model}/versions/{version}:rebuild", status_code=202, tags=["rebuilds"])
    def rebuild(
        model: str, version: Annotated[int, Path(gt=0, lt=2**63)], request: Asking | None = None
    ) -> dict[str, Any]:
        """Trains the version again from its lineage and compares the weights; ask /v1/rebuilds/{id} how it ended.

        A free trainer takes it, one at a time, between two rounds. Asked while it is open, gives that job.
        """
        asking = request or Asking.model_validate({})
        return rebuild_as_json(
            registry.request_job(JobKind.REBUILD, model, version=version, by=asking.by, reason=asking.reason)
        )

    @app.get("/v1/rebuilds/{rebuild_id}", tags=["rebuilds"])
    def get_rebuild(rebuild_id: str) -> dict[str, Any]:
        """`state` is waiting, running, done or failed; `equal` is there when it is done. Any trainer knows it.

        Where the weights differ, `metrics` has each metric of the held-out events as `[registered, rebuilt]`.
        """
        return rebuild_as_json(registry.jobs(job_id=rebuild_id)[0])

    @app.post("/v1/models/{model}:measure", status_code=202, tags=["rebuilds"])
    def measure(model: str, request: MeasureRequest) -> dict[str, Any]:
        """Measures a SavedModel made elsewhere, whose files the registry has, beside the live version on the slice that
        the model's last round held out; ask /v1/measurements/{id} how it ended. 409 where no round has made a version.

        A free trainer takes it, as a rebuild.
        """
        options = request.model_dump(exclude=_ASKING)
        return measurement_as_json(
            registry.request_job(JobKind.MEASURE, model, options=options, by=request.by, reason=request.reason)
        )

    @app.get("/v1/measurements/{measurement_id}", tags=["rebuilds"])
    def get_measurement(measurement_id: str) -> dict[str, Any]:
        """`state` is waiting, running, done or failed; `figures` is there when it is done: the version that it was held
        `against`, that model's `gate`, `metrics`, `evaluation` and the number of `held_out` examples."""
        return measurement_as_json(registry.jobs(job_id=measurement_id)[0])

    @app.post("/v1/models/{model}:profile", status_code=202, tags=["rounds"])
    def profile(model: str, request: ProfileRequest) -> dict[str, Any]:
        """Has some steps of the model's next round traced by TensorFlow's profiler, on any trainer; its
        version then has the files profile/*. No weight depends on it. 409 while one is asked for already."""
        options = request.model_dump(exclude=_ASKING)
        registry.request_job(JobKind.PROFILE, model, options=options, by=request.by, reason=request.reason)
        return {"model": model, **options}


def _add_status(
    app: FastAPI, planner: Planner, rounds: RoundLoop, rebuilds: Rebuilds, settings: TrainerSettings
) -> None:
    @app.get("/v1/rounds/{round_id}/events", tags=["rounds"], response_class=Response)
    def live_events(round_id: str) -> Response:
        """The curve of a round that this trainer is running, as far as it is: a TensorBoard event file. 404 when it
        runs no such round."""
        return Response(rounds.live_events(round_id), media_type="application/octet-stream")

    @app.get("/v1/status", tags=["rounds"])
    def status() -> dict[str, Any]:
        """What this trainer is doing, and per model the lag in examples, the open round and the next trigger.

        `attempt`: the round that it is busy with; `set_aside`: others whose processes live beside it. `activity` of
        each: moves; starved: it wants a core and gets next to none (`cpu_seconds` of `wall_seconds`,
        `starved_seconds` of them without one); stalled: it neither reports anything nor wants a core.
        `sandbox`: what of a round's process is not confined on this machine, a sentence each.
        `helps_only`: it takes no rounds (TRAINER_HELPER_IDLE_SECONDS).
        `signing_key_id`: of the key that signs this trainer's versions; empty: they are not signed.
        """
        return {
            "trainer": rounds.holder,
            "signing_key_id": rounds.signing_key_id,
            "sandbox": {"mode": settings.sandbox, "not_confined": rounds.not_confined},
            **_rounds_as_json(rounds.running),
            "helps_only": settings.helper_idle_seconds > 0,
            "helping": None if rounds.helping is None else rounds.helping.shown(),
            "rebuild": _running_job(rebuilds.job),
            "models": planner.status(),
            "faults": planner.faults(),
            "zygote": rounds.zygote_status(),
            "devices": _devices(),
            "rounds_at_once": settings.usable_rounds_at_once(),
            "threads": {
                "intra_op": settings.usable_intra_op_threads(),
                "inter_op": settings.inter_op_threads,
                "cores": len(os.sched_getaffinity(0)),
            },
        }


def round_as_json(found: Round) -> dict[str, Any]:
    """The round with the plan's fields beside its own."""
    values = asdict(found)
    plan = values.pop("plan")
    return {**plan, **values}


def rebuild_as_json(job: Job) -> dict[str, Any]:
    return {"rebuild_id": job.job_id, "version": job.version, "attempts": job.attempts, **_facts(job, _REBUILT)}


def measurement_as_json(job: Job) -> dict[str, Any]:
    return {"measurement_id": job.job_id, **_facts(job, _MEASURED)}


def _facts(job: Job, facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts`: of its kind, and what stands for those that are not known yet."""
    document = {name: job.told.get(name, unknown) for name, unknown in facts.items()}
    return {"model": job.model, "state": str(job.state), "trainer": job.holder, **document}


def _running_job(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    return measurement_as_json(job) if job.kind is JobKind.MEASURE else rebuild_as_json(job)


def _rounds_as_json(running: Sequence[RunningRound]) -> dict[str, Any]:
    front = in_front(running)
    return {
        "attempt": None if front is None else _attempt_as_json(front.attempt),
        "set_aside": [_attempt_as_json(other.attempt) for other in running if other is not front],
    }


def _attempt_as_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "model": attempt.assignment.plan.model,
        "round_id": attempt.assignment.round.round_id,
        "examples": attempt.assignment.plan.example_count,
        "seconds": round(time.time() - attempt.began_at, 3),
        "workers": attempt.assignment.workers,
        "trainers": list(attempt.assignment.trainers),
        "progress": asdict(attempt.progress),
        **attempt.usage(),
    }


def _devices() -> list[str]:
    """What a round can compute on: TensorFlow is not asked, since only rounds' processes may start it."""
    return ["cpu", *sorted(path.name for path in FilePath("/dev").glob("nvidia[0-9]*"))]
