"""A reader's changes, each with a page that describes it, an author, a reason and an entry in the history."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from common.access.guard import Rule, rule, values_of
from common.access.principal import author_of, current
from common.counted import counted
from common.errors import Conflict, NotFound
from common.registry.catalog import LEARN, LEAVE_OUT, PRODUCTION, Model, VersionStatus
from common.registry.jobs import JobKind
from common.registry.plan_notes import PUSHED
from common.registry.round_words import rolled_back_words
from services.registry.decided import ModelChange
from services.registry.pages.reading import Place, Reading, positive
from services.registry.store.history import check_author

Fields = Mapping[str, str]
TRIES = rule("predict:{model}")
_AUTHOR, _OPERATOR, _SENDER = rule("author:{model}"), rule("operator"), rule("ingest:{stream}")
_PROFILED = {"first_step": 10, "steps": 10}


@dataclass(frozen=True)
class Preview:
    """What a change will do, in sentences, and the obstacle to it ("" for none)."""

    sentences: tuple[str, ...]
    obstacle: str = ""
    choices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """{a field of the form: {value: its effect}}; the first value is chosen beforehand."""


@dataclass(frozen=True)
class Form:
    """One change.

    Attributes:
        rule: the rights that the change and its page need.
        fields: fields that the page carries along, so that the change is the described change.
        of_version: whether the reader goes back to the version's page.
    """

    name: str
    title: str
    button: str
    path: str
    rule: Rule
    preview: Callable[[Reading, Place], Preview]
    do: Callable[[Reading, Place, Fields], None]
    done: str
    known: tuple[str, ...] = ()
    fields: tuple[str, ...] = ("from",)
    is_grave: bool = False
    of_version: bool = False


def confirmation(form: Form, reading: Reading, place: Place, given: Fields | None = None) -> dict[str, Any]:
    """The context of confirm.html."""
    preview = form.preview(reading, place)
    model = place.names.get("model", "")
    return {
        "form": form,
        "preview": preview,
        "subject": model or place.names["stream"],
        "back": _home(form, place),
        "from_version": str(_production(reading, model)) if model else "",
        "given": given or {},
    }


def done(form: Form, reading: Reading, place: Place, fields: Fields) -> str:
    """Makes the change; returns the address that the reader goes to next. Raises the obstacle."""
    model = place.names.get("model", "")
    if model and "from" in form.fields and fields.get("from") != str(_production(reading, model)):
        raise Conflict(
            f"production of {model} has moved to version {_production(reading, model)} since this page was made; "
            f"read again what will happen"
        )
    form.do(reading, place, {**fields, "by": author_of(fields.get("by", "")), "reason": fields.get("reason", "")})
    return f"{_home(form, place)}?done={form.name}"


def may_try(names: Mapping[str, str]) -> bool:
    """Whether the current principal may request a prediction of the model."""
    return TRIES.admits(current(), values_of(names))


def may(name: str, names: Mapping[str, str]) -> bool:
    """Whether the current principal may make the change to the model, version or stream in `names`."""
    return BY_NAME[name].rule.admits(current(), values_of(names))


def notice(place: Place) -> str:
    """The sentence that a reader sees after a change."""
    return next((form.done for form in FORMS if form.name == place.query.get("done")), "")


def _home(form: Form, place: Place) -> str:
    kind = "model" if "model" in place.names else "stream"
    home = f"/{kind}s/{quote(place.names[kind], safe='')}"
    return f"{home}/versions/{place.number('version')}" if form.of_version else home


def _production(reading: Reading, model: str) -> int:
    return reading.catalog.get_model(model).aliases.get(PRODUCTION, 0)


def _model(reading: Reading, place: Place) -> Model:
    return reading.catalog.get_model(place.names["model"])


def _preview_pause(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    sentences = (
        f"No further round of {model.name} will be planned until it is resumed.",
        "A round that runs now goes on to its end. Production stays as it is, and predictions are answered as before.",
    )
    return Preview(sentences, f"it is paused already by {model.paused}" if model.paused else "")


def _preview_resume(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    sentences = (f"Rounds of {model.name} will be planned again, at once also where failures had made it wait.",)
    is_stopped = model.paused or model.consecutive_failures
    return Preview(sentences, "" if is_stopped else "it is neither paused nor waiting after a failure")


def _preview_train(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    waiting = reading.catalog.observed.account(model.name)["examples"]["waiting"]
    events = "the events that wait" if waiting is None else f"the {waiting:,} events that wait"
    sentences = (
        f"A trainer plans a round of {model.name} over {events}; its triggers are not asked.",
        "What comes of it is judged by the gate as always, and replaces production only if it passes.",
    )
    return Preview(sentences, f"its training is paused by {model.paused}" if model.paused else "")


def _preview_promote(reading: Reading, place: Place) -> Preview:
    model, number = _model(reading, place), place.number("version")
    version = reading.catalog.get_version(model.name, number)
    current = model.aliases.get(PRODUCTION, 0)
    before = f"moves from version {current} to version {number}" if current else f"becomes version {number}"
    sentences = [
        f"Production of {model.name} {before}, on every replica, for every prediction that names no version.",
        "No request fails while replicas change over.",
        f"The next round goes on from version {number} and from where its events end.",
    ]
    if current:
        sentences.append(f"Version {current} stays, and rolling back leads to it.")
    if version.status is VersionStatus.REJECTED:
        sentences.append(f"The gate has rejected version {number}: {'; '.join(version.verdict.reasons)}")
    obstacle = f"production is version {number} already" if current == number else _pinned(model)
    if version.status is VersionStatus.ARCHIVED:
        obstacle = f"version {number} is archived: its files are gone"
    return Preview(tuple(sentences), obstacle)


def _preview_rollback(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    current = model.aliases.get(PRODUCTION, 0)
    try:
        target, behind = reading.catalog.rollback_target(model.name)
    except Conflict as error:
        return Preview(("Production would move back to the version that it named before.",), error.message)
    sentences = (
        f"Production of {model.name} moves back from version {current} to version {target}, on every replica.",
        "No request fails while replicas change over.",
        f"Version {current} stays and can be promoted again. The next round goes on from version {target}.",
    )
    usual = (behind["events"], LEAVE_OUT if behind["events"] == LEARN else LEARN) if behind else ()
    words = {events: f"{rolled_back_words(events, behind['examples'])}." for events in usual}
    return Preview(sentences, _pinned(model), {"events": words} if words else {})


def _preview_pin(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    current = model.aliases.get(PRODUCTION, 0)
    sentences = (
        f"Production of {model.name} stays at version {current} until it is unpinned.",
        "Rounds go on; versions that pass the gate are held, and nothing can be promoted or rolled back meanwhile.",
    )
    obstacle = "" if current else "production names no version yet"
    return Preview(
        sentences, f"it is pinned to version {model.pinned_version} already" if model.pinned_version else obstacle
    )


def _preview_unpin(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    sentences = ("The next version that passes the gate is promoted again. Production stays where it is until then.",)
    return Preview(sentences, "" if model.pinned_version else "production is not pinned")


def _preview_rebuild(reading: Reading, place: Place) -> Preview:
    model, number = _model(reading, place), place.number("version")
    version = reading.catalog.get_version(model.name, number)
    sentences = (
        f"A trainer trains version {number} of {model.name} again from its lineage, between two rounds.",
        f"That takes about as long as its round did, over {version.events_trained:,} events.",
        "It compares every weight with the stored weight; where they differ, the metrics of both are shown.",
        "Nothing is registered, and production stays as it is. What came out is shown on the version's page.",
    )
    is_pushed = PUSHED in version.environment
    return Preview(sentences, "it was pushed, so there is nothing to train it again from" if is_pushed else "")


def _preview_profile(reading: Reading, place: Place) -> Preview:
    model = _model(reading, place)
    first, steps = _PROFILED["first_step"], _PROFILED["steps"]
    sentences = (
        f"The trainer that takes the next round of {model.name} traces {counted(steps, 'step')} from step {first} on.",
        "Its version says how long operations took, and whether the round waited for events or computed.",
        "No weight depends on it. The traced steps take a little longer.",
    )
    jobs = [job for job in reading.catalog.jobs.listed(model=model.name) if job.is_open]
    is_requested = any(job.kind is JobKind.PROFILE for job in jobs)
    return Preview(sentences, "its next round is to be traced already" if is_requested else "")


def _preview_replay(reading: Reading, place: Place) -> Preview:
    stream = reading.catalog.get_stream(place.names["stream"])
    sentences = (
        f"Ingest checks every dead letter of {stream.name} again, under schema version {stream.schema_version}.",
        "Those that pass now are appended to the stream, each once for all time; models learn from them then.",
        "The rest stays where it is.",
    )
    return Preview(sentences, "the stream is archived" if stream.archived else "")


def _pinned(model: Model) -> str:
    return f"production is pinned to version {model.pinned_version}; unpin it first" if model.pinned_version else ""


def _change(how: ModelChange, reading: Reading, place: Place, fields: Fields) -> None:
    reading.catalog.change_model(place.names["model"], how, by=fields["by"], reason=fields["reason"])


def _pin(reading: Reading, place: Place, fields: Fields) -> None:
    version = positive(fields.get("from", ""), Conflict("production names no version that could be pinned"))
    reading.catalog.pin(place.names["model"], version, by=fields["by"], reason=fields["reason"])


def _promote(reading: Reading, place: Place, fields: Fields) -> None:
    chosen = place.number("version")
    reading.catalog.set_alias(place.names["model"], PRODUCTION, chosen, by=fields["by"], reason=fields["reason"])


def _rollback(reading: Reading, place: Place, fields: Fields) -> None:
    by, reason = fields["by"], fields["reason"]
    reading.catalog.rollback(place.names["model"], by=by, reason=reason, events=fields.get("events", ""))


def _train(reading: Reading, place: Place, fields: Fields) -> None:
    model, by, reason = place.names["model"], fields["by"], fields["reason"]
    check_author(by, reason)
    try:
        reading.service_links.train(model, by=by, reason=reason)
    except NotFound as error:
        raise Conflict(error.message) from error  # The page is of a model that there is; the trainer lacks it yet.
    reading.catalog.note("train", by=by, reason=reason, model=model)


def _rebuild(reading: Reading, place: Place, fields: Fields) -> None:
    model, version = place.names["model"], place.number("version")
    reading.catalog.jobs.request("rebuild", model=model, version=version, by=fields["by"], reason=fields["reason"])


def _profile(reading: Reading, place: Place, fields: Fields) -> None:
    model = place.names["model"]
    reading.catalog.jobs.request("profile", model=model, options=_PROFILED, by=fields["by"], reason=fields["reason"])


def _replay(reading: Reading, place: Place, fields: Fields) -> None:
    stream, by, reason = place.names["stream"], fields["by"], fields["reason"]
    check_author(by, reason)
    reading.service_links.replay(stream)
    reading.catalog.note("replay", by=by, reason=reason, stream=stream)


def _of_model(name: str) -> str:
    return f"/models/{{model}}/do/{name}"


FORMS = (
    Form("pause", "Pause training", "Pause training", _of_model("pause"), _AUTHOR, _preview_pause,
         partial(_change, "pause"), "Training is paused."),
    Form("resume", "Resume training", "Resume training", _of_model("resume"), _AUTHOR, _preview_resume,
         partial(_change, "resume"), "Rounds are planned again."),
    Form("train", "Train now", "Train now", _of_model("train"), _AUTHOR, _preview_train, _train, "A round is planned."),
    Form("promote", "Promote a version", "Promote", "/models/{model}/versions/{version}/do/promote", _OPERATOR,
         _preview_promote, _promote, "Production has moved. Replicas follow within a second.", is_grave=True),
    Form("rollback", "Roll back", "Roll back", _of_model("rollback"), _OPERATOR, _preview_rollback, _rollback,
         "Production has moved back. Replicas follow within a second.", fields=("from", "events"), is_grave=True),
    Form("pin", "Pin production", "Pin", _of_model("pin"), _OPERATOR, _preview_pin, _pin, "Production is pinned."),
    Form("unpin", "Unpin production", "Unpin", _of_model("unpin"), _OPERATOR, _preview_unpin,
         partial(_change, "unpin"), "Production is not pinned."),
    Form("profile", "Profile the next round", "Profile next round", _of_model("profile"), _AUTHOR, _preview_profile,
         _profile, "The next round is traced; its version shows where the time went.", fields=()),
    Form("rebuild", "Rebuild a version", "Rebuild", "/models/{model}/versions/{version}/do/rebuild", _AUTHOR,
         _preview_rebuild, _rebuild, "A trainer takes the rebuild when it is free.", fields=(), of_version=True),
    Form("replay", "Replay dead letters", "Replay", "/streams/{stream}/do/replay", _SENDER, _preview_replay,
         _replay, "Every dead letter was checked again; those that pass are in the stream."),
)  # fmt: skip
BY_NAME = {form.name: form for form in FORMS}


def possible(model: Model) -> list[Form]:
    """The changes of a model that make sense now and that the current principal may make, in the order of the
    buttons."""
    production = model.aliases.get(PRODUCTION, 0)
    sensible = {
        "train": not model.paused,
        "profile": not model.paused,
        "pause": not model.paused,
        "resume": bool(model.paused or model.consecutive_failures),
        "rollback": bool(production) and not model.pinned_version,
        "pin": bool(production) and not model.pinned_version,
        "unpin": bool(model.pinned_version),
    }
    return [
        BY_NAME[name]
        for name, is_sensible in sensible.items()
        if is_sensible and not model.archived and may(name, {"model": model.name})
    ]
