"""show, diff, why, account, streams, history, dead-letters: what there is, what happened, and why."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from common.counted import counted
from common.definition.class_words import Words
from common.errors import InvalidInput, NotFound
from common.registry import scored_outside
from common.registry.catalog import THINNED_TO, Decision, Model, Version
from common.registry.plan_notes import FIRED
from common.schema import Schema
from headrace.commands import evaluation_tables, training_facts
from headrace.commands.evaluation_tables import number_of
from headrace.commands.live import judged
from headrace.commands.session import Limit, ModelName, Session, age, print_facts, print_table
from headrace.commands.terminal import echo

_SHOWN_LETTER = 160


def show(session: Session, name: Annotated[str, typer.Argument(metavar="MODEL[@VERSION]")]) -> None:
    """Show a model, or a version with its lineage, metrics, verdict and files."""
    name, version = reference(name)
    client = session.client()
    model = client.model(name)
    if version:
        found = client.version(name, version)
        words = {} if session.as_json else evaluation_tables.class_words(client, found)
        versions = client.live(name).get("versions", ())
        live: Mapping[str, Any] = next((entry for entry in versions if entry["version"] == version), {})
        session.show(asdict(found) | {"live": live}, lambda: _print_version(found, model, words, live))
        return
    definition = client.definition(model.definition_digest)
    text = definition["model.yaml"].decode(errors="replace")

    def print_text() -> None:
        print_facts(f"model {name}", _model_facts(model))
        echo()
        echo(text.rstrip())

    session.show(asdict(model) | {"definition": sorted(definition), "model_yaml": text}, print_text)


def diff(
    session: Session,
    first: Annotated[str, typer.Argument(metavar="MODEL@V1")],
    second: Annotated[str, typer.Argument(metavar="MODEL@V2", help="Or the version alone.")],
) -> None:
    """Compare two versions: definition, configuration, metrics, events, environment."""
    model, before = reference(first)
    other_model, after = reference(second if second.rpartition("@")[0] else f"{model}@{second.removeprefix('@')}")
    if not before or not after:
        raise InvalidInput("diff takes two versions, as in: headrace diff flights-late@3 flights-late@4")
    if other_model != model:
        raise InvalidInput(f"diff compares versions of one model, not of {model} and {other_model}")
    found = session.client().diff(model, before, after)
    session.show(found, lambda: _print_diff(found))


def why(session: Session, model: ModelName) -> None:
    """Show why a model does not go on: the last failure, its place and events, and the remedy."""
    client = session.client()
    found = client.why(model)
    newest = client.versions(model, limit=1)
    refused = [version for version in newest if version.verdict.decision in (Decision.REJECT, Decision.HOLD)]

    def print_text() -> None:
        for sentence in _reasons(found, refused[0] if refused else None):
            echo(sentence)

    session.show(dict(found) | {"verdict": asdict(refused[0].verdict) if refused else None}, print_text)


def account(session: Session, model: ModelName) -> None:
    """Show where every event of a model's stream is: trained, held out, unusable, left out or waiting."""
    found = session.client().account(model)
    session.show(found, lambda: _print_account(found))


def streams(session: Session) -> None:
    """List the streams: schema, events, which models learn from them."""
    client = session.client()
    found = client.streams()
    learners = client.models()
    rows: list[dict[str, Any]] = []
    for stream in found:
        schema = Schema.from_json(stream.schema_json)
        names = ", ".join(model.name for model in learners if model.stream == stream.name)
        rows.append({
            "stream": stream.name, "schema_version": stream.schema_version, "features": len(schema.features),
            "labels": [label.name for label in schema.labels], "models": names, "archived": stream.archived,
            "source": schema.source.to_mapping() if schema.source else None,
        })  # fmt: skip

    def table() -> None:
        columns = ("stream", ">schema", ">features", "labels", "models", "events from")
        cells = [
            [row["stream"] + (" (archived)" if row["archived"] else ""), row["schema_version"], row["features"],
             ", ".join(row["labels"]), row["models"] or "-",
             f"Kafka topic {row['source']['kafka']['topic']}" if row["source"] else "ingest"]
            for row in rows
        ]  # fmt: skip
        print_table("", columns, cells)

    session.show(rows, table)


def history(
    session: Session,
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Everything without.")] = "",
    stream: Annotated[str, typer.Option(help="Only of this stream.")] = "",
    by: Annotated[str, typer.Option(help="Only by this person.")] = "",
    action: Annotated[str, typer.Option(help="Only this action, such as promote.")] = "",
    limit: Limit = 50,
) -> None:
    """Show the changes and their authors, times and reasons: applied, promoted, rolled back, paused, deleted, ..."""
    found = session.client().history(model=model, stream=stream, by=by, action=action, limit=limit)
    if model and not (found or stream or by or action):
        raise NotFound(f"nothing is on record of a model {model}")  # a deletion would be

    def table() -> None:
        if not found:
            echo("nothing is on record of that")
            return
        columns = (">age", "what", "of", "by", "why")
        rows = [
            [age(time.time() - entry.at, units=1), entry.action + (f" {entry.version}" if entry.version else ""),
             entry.model or entry.stream, entry.by, "; ".join(part for part in (entry.detail, entry.reason) if part)]
            for entry in found
        ]  # fmt: skip
        print_table("", columns, rows)

    session.show([asdict(entry) for entry in found], table)


def dead_letters(
    session: Session,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    limit: Limit = 20,
    replay: Annotated[
        bool, typer.Option("--replay", help="Append those that fit the newest schema, each once for all time.")
    ] = False,
) -> None:
    """Show events that were set aside, with their reasons, or try them again."""
    client = session.client(timeout_seconds=120.0)
    if replay:
        report = client.replay_dead_letters(stream)
        session.show(report, lambda: _print_replay(report))
        return
    letters = client.dead_letters(stream, limit=limit)

    def print_text() -> None:
        if not letters:
            echo(f"stream {stream} has no dead letters")
        for letter in letters:
            text = str(letter.get("payload", ""))
            echo(str(letter.get("reason", "")), bold=True)
            echo(f"  {text if len(text) <= _SHOWN_LETTER else text[:_SHOWN_LETTER] + '... (--json shows all)'}")

    session.show(letters, print_text)


def reference(text: str) -> tuple[str, int]:
    """MODEL@VERSION as (model, version); the version is 0 where none is named."""
    model, at, version = text.rpartition("@")
    if not at:
        return text, 0
    if not model or not version.isdigit() or int(version) < 1:
        raise InvalidInput(f"expected MODEL@VERSION, such as flights-late@3, got {text!r}")
    return model, int(version)


def _model_facts(model: Model) -> dict[str, object]:
    aliases = ", ".join(f"{alias} is version {number}" for alias, number in sorted(model.aliases.items()))
    facts: dict[str, object] = {
        "stream": model.stream, "live": aliases or "nothing yet", "newest version": model.newest_version or "none",
        "rounds": model.round_sequence, "definition": model.definition_digest[:12],
        "created": _clock(model.created_at),
    }  # fmt: skip
    facts |= {"paused by": model.paused} if model.paused else {}
    facts |= {"pinned at": f"version {model.pinned_version}"} if model.pinned_version else {}
    facts |= {"archived": "neither trained nor served"} if model.archived else {}
    return facts | ({"last failure": model.last_failure} if model.last_failure else {})


def _print_version(version: Version, model: Model, words: Words, quality: Mapping[str, Any]) -> None:
    live = ", ".join(alias for alias, number in model.aliases.items() if number == version.version)
    reasons = "; ".join(version.verdict.reasons)
    facts: dict[str, object] = {
        "status": version.status, "live as": live or "-", "parent": version.parent_version or "none",
        "verdict": f"{version.verdict.decision}{f': {reasons}' if reasons else ''}",
        "events": f"{version.events_trained:,} trained, {version.events_held_out:,} held out"
        f"{training_facts.duplicates(version)}, {version.events_unusable:,} unusable{training_facts.left_out(version)}",
        "judged on": training_facts.judged(version),
        "range": ", ".join(f"{r.partition}: {r.from_offset} to {r.to_offset}" for r in version.ranges),
        "stream": f"{version.stream}, schema version {version.schema_version}",
        "created": _clock(version.created_at), "definition": version.definition_digest[:12],
        "weights": version.weights_digest[:12], "seed": version.seed, "step": version.step,
        "seconds": ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in version.timings.items()),
        "training": training_facts.course(version),
        "forgotten": version.forgotten_at
        and f"at {_clock(version.forgotten_at)}, events that it or an ancestor learned; it never goes live again",
        "files": _files(version),
        "signed by": ", ".join(f"key {key[:16]}" for key in version.signed_by.split(",") if key) or "no key",
    }  # fmt: skip
    print_facts(f"{version.model}@{version.version}", facts)
    for name, signature in version.contract.get("signatures", {}).items():
        echo(
            f"signature {name} ({signature['method']}): {_tensors(signature, 'inputs')} -> "
            f"{_tensors(signature, 'outputs')}"
        )
    unusable: Mapping[str, int] = version.unusable.get("reasons", {})
    for trigger, sentence in version.environment.get(FIRED, {}).items():
        echo(f"due by    {trigger}: {sentence}")
    for sentence in judged(quality):
        echo(f"live      {sentence}")
    for reason, count in unusable.items():
        echo(f"unusable  {count:,}: {reason}")
    for subject, sentence in version.environment.get("warnings", {}).items():
        echo(f"warning   {subject}: {sentence}")
    for sentence in scored_outside.in_words(version.environment, version.verdict.rule):
        echo(f"scored    {sentence}")
    for name, found in version.environment.get("formats", {}).items():
        echo(f"format    {name}: {_format_facts(found)}")
    for sentence in version.environment.get("warm_start", {}).get("rows", ()):
        echo(f"carried   {sentence}")
    metrics: Mapping[str, Any] = asdict(version)["metrics"]
    sides = [name for name in ("candidate", "parent", "progressive") if metrics.get(name)]
    names = dict.fromkeys(name for part in sides for name in metrics[part])
    if sides:
        rows = [[name, *(number_of(metrics[part].get(name)) for part in sides)] for name in names]
        print_table("", ("metric", *(f">{part}" for part in sides)), rows)
    evaluation_tables.print_losses(metrics.get("training", {}))
    training_facts.print_evaluations(version)
    evaluation_tables.print_classes(version, words)
    evaluation_tables.print_slices(version)
    evaluation_tables.print_rules(version)


def _files(version: Version) -> str:
    if version.thinned_at:
        stays = THINNED_TO.get(version.thinned_by, version.thinned_by)
        return f"thinned at {_clock(version.thinned_at)}: {stays} stays; `headrace rebuild` trains it again"
    return f"{len(version.files)}, {sum(file.size_bytes for file in version.files) / 1e6:.1f} MB"


def _format_facts(found: Mapping[str, Any]) -> str:
    if found.get("problem"):
        return f"not made: {found['problem']}"
    facts = [f"{found['bytes']:,} bytes"]
    if "largest_difference" in found:
        on = (
            ""
            if "rows" not in found
            else f" on {counted(found['rows'], ('held-out' if found['held_out'] else 'learned') + ' event')}"
        )
        facts.append(f"differs from the SavedModel by up to {found['largest_difference']:.3g}{on}")
    if found.get("differing_share"):
        facts.append(f"{found['differing_share']:.1%} of other values differ")
    if "metric" in found:
        measured, whole = found["metric"], found["saved_model_metric"]
        value, its_own = (f"{metric['value']:.4f}" for metric in (measured, whole))
        facts.append(f"{measured['name']} {value} on held-out events, the SavedModel's {its_own}")
    return ", ".join(facts)


def _tensors(signature: Mapping[str, Any], side: str) -> str:
    """As common/saved_model says them; that needs protobuf, which this command does not."""
    listed = []
    for name, tensor in signature[side].items():
        shape = tensor["shape"]
        sizes = "?" if shape is None else ", ".join("n" if size < 0 else str(size) for size in shape)
        listed.append(f"{name} {tensor['dtype']} [{sizes}]")
    return ", ".join(listed)


def _print_diff(found: Mapping[str, Any]) -> None:
    model, first, second = found["model"], f"@{found['from']}", f"@{found['to']}"
    echo(f"{model}: {first} and {second}; {found['relation']}", bold=True)
    metrics = [
        [name, number_of(values["from"]), number_of(values["to"]), number_of(values["change"])]
        for name, values in found["metrics"].items()
    ]
    if metrics:
        print_table("", ("metric", f">{first}", f">{second}", ">change"), metrics)
    changed = [
        [f"{part}.{key}", _short(before), _short(after)]
        for part in ("events", "configuration", "environment")
        for key, (before, after) in found[part].items()
    ]
    if changed:
        print_table("", ("what", first, second), changed)
    for path, lines in found["definition"].items():
        echo(path, bold=True)
        for line in lines:
            colour = "green" if line.startswith("+") else "red" if line.startswith("-") else None
            echo(line, fg=colour)
    same = [kind for kind in ("code", "weights") if found[kind]["same"]]
    echo(f"the same: {', '.join(same)}" if same else "neither code nor weights are the same")


def _print_account(found: Mapping[str, Any]) -> None:
    examples = found["examples"]
    words = {"trained": "trained", "held_out": "held out", "unusable": "unusable", "left_out": "left out"}
    words |= {"waiting": "waiting", "total": "total"}
    rows = [[word, "unknown" if examples[key] is None else f"{examples[key]:,}"] for key, word in words.items()]
    echo(f"events of {found['model']} in stream {found['stream']}", bold=True)
    print_table("", ("where", ">events"), rows)
    if again := examples.get("again"):
        echo(f"{again:,} of them were learned twice, the second time with a late label")
    for reason, count in found["unusable"]["reasons"].items():
        echo(f"unusable: {count:,}, {reason}")
    for part in found["left_out"]:
        place = f"{part['partition']}:{part['from_offset']} to {part['to_offset']}"
        place = f"version {part['version'] or 'to come'}" if part["partition"] is None else place
        echo(f"left out: {_count(part['examples'])} at {place}, {part['reason']}")
    waiting = found["waiting"]
    for sentence in waiting.get("sentences", []):
        echo(sentence)
    if waiting.get("waiting_for"):
        echo(f"waiting for: {waiting['waiting_for']}")
    for problem in found["problems"]:
        echo(f"but: {problem}")
    echo("it adds up" if found["adds_up"] else "it does not add up yet")


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown"


def _reasons(found: Mapping[str, Any], refused: Version | None) -> list[str]:
    lines = [str(sentence) for sentence in found["sentences"]]
    failure = found.get("failure")
    if failure:
        when = f", {age(time.time() - failure['at'])} ago" if failure.get("at") else ""
        over = "; rounds have succeeded since" if found.get("resolved") else ""
        lines.append(f"the last failed round{when}{over}: {failure.get('message', '')}")
        place = ", ".join(str(failure[key]) for key in ("stage", "place") if failure.get(key))
        lines += [f"  where: {place}"] if place else []
        lines += [f"  events: {_short(failure['events'])}"] if failure.get("events") else []
        lines += training_facts.not_finite(failure.get("not_finite", {}))
        lines += [f"  log: {line}" for line in failure.get("log", ())]
        lines += [f"  what to do: {failure['advice']}"] if failure.get("advice") else []
    if refused is not None:
        reasons = "; ".join(refused.verdict.reasons)
        lines.append(f"the verdict on version {refused.version} is {refused.verdict.decision}: {reasons}")
    lines += [f"waiting for: {found['waiting_for']}"] if found.get("waiting_for") else []
    lines += [f"what to do: {found['advice']}"] if found.get("advice") and not failure else []
    return lines or [f"nothing is wrong with {found['model']}"]


def _print_replay(report: Mapping[str, Any]) -> None:
    before = f", {report['replayed_before']:,} were appended before" if report.get("replayed_before") else ""
    echo(f"{report['replayed']:,} appended{before}, {report['refused_count']:,} still do not fit")
    for item in report["refused"][:10]:
        echo(f"  letter {item['offset']}.{item['index']}: {item['reason']}")


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _short(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
