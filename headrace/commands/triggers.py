"""triggers replay: when a policy would have planned rounds over the log as it was."""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput
from headrace.commands.session import CommandApp, ModelName, Session, age, print_line, print_table

app = CommandApp(help="Show the rounds that other triggers would plan over the same log.", no_args_is_help=True)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHOWN = 10


@app.command()
def replay(
    session: Session,
    model: ModelName,
    triggers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Another policy beside that in force: a model.yaml, or its triggers."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the other policy, such as min_examples=2000."),
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="From this long ago on, such as 36h or 7d.")] = "",
) -> None:
    """Run a policy over the log as it was: when it fires, what its versions cost and gain, how old events get."""
    section = _section(triggers, setting or [])
    found = session.client().replay_triggers(model, triggers=section, since=_since(since))

    def show() -> None:
        _show(model, found)

    session.show(found, show)


def _section(path: Path | None, settings: Sequence[str]) -> dict[str, Any] | None:
    from common.strict_yaml import read_yaml

    if path is None and not settings:
        return None
    section: Any = {}
    if path is not None:
        try:
            section = read_yaml(path.read_bytes(), str(path))
        except OSError as error:
            raise InvalidInput(f"the policy cannot be read: {error}") from error
        section = section.get("triggers", section) if isinstance(section, dict) else section
    given = dict(setting.split("=", 1) for setting in settings if "=" in setting)
    if len(given) < len(settings) or not isinstance(section, dict):
        raise InvalidInput("a policy is a mapping of keys of `triggers` to values, and --set takes KEY=VALUE")
    return section | {name: read_yaml(value.encode(), f"--set {name}") for name, value in given.items()}


def _since(text: str) -> float:
    if not text:
        return 0.0
    match = re.fullmatch(r"(\d+)([smhd])", text, re.ASCII)
    if match is None:
        raise InvalidInput(f"--since takes a number and s, m, h or d, such as 36h; got {text!r}")
    return max(0.0, time.time() - int(match[1]) * _UNITS[match[2]])


def _show(model: str, found: Mapping[str, Any]) -> None:
    was, cost, gain, policies = found["as_it_was"], found["cost"], found["gain"], found["policies"]
    columns: list[Mapping[str, Any]] = [was, *policies]
    names = ["as it was", *(column["name"] for column in policies)]
    title = f"{model}: {counted(found['examples'], 'event')} in {age(found['to'] - found['from'])}"
    print_table(
        title,
        ("", *(f">{name}" for name in names)),
        [
            ["versions", *(str(column["versions"]) for column in columns)],
            ["events learned", *(str(column["examples"]) for column in columns)],
            ["events that wait", *(str(column.get("waiting", "")) for column in columns)],
            ["seconds of a trainer", *(f"{column['trainer_seconds']:.0f}" for column in columns)],
            ["event to version, p50", *(_seconds(column, "p50") for column in columns)],
            ["event to version, p95", *(_seconds(column, "p95") for column in columns)],
            ["events behind, mean", *(f"{column['behind_examples']:.0f}" for column in columns)],
            *_given_up(found["gain"], columns),
            ["fired", *(", ".join(f"{name} {n}" for name, n in column["fired"].items()) for column in columns)],
        ],
    )
    if cost["rounds"]:
        fixed, more = cost["fixed_seconds"], cost["example_seconds"] * 1000
        print_line(
            f"a round takes {fixed:.2f} s and {more:.3g} s for 1,000 events, by {counted(cost['rounds'], 'round')}"
        )
    else:
        print_line("no round has made a version yet, so rounds are taken to cost nothing")
    if gain["versions"]:
        print_line(
            f"1,000 events make {gain['metric']} better by {gain['example_gain'] * 1000:.3g}, by "
            f"{counted(gain['versions'], 'version')} against their parents"
        )
    else:
        print_line("no version was measured against a parent, so what versions gain is not known")
    for policy in policies:
        for name in policy["not_replayed"]:
            print_line(f"{policy['name']}: {name} is not replayed, since it follows from the versions that were live")
    for plan in policies[-1]["plans"][:_SHOWN]:
        at = datetime.fromtimestamp(plan["at"], UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        print_line(f"{at}  {counted(plan['examples'], 'event')}  {plan['why'] or plan['trigger']}")
    if (more_plans := policies[-1]["versions"] - _SHOWN) > 0:
        print_line(f"and {more_plans} more; --json has the first hundred")


def _given_up(gain: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """How much worse answers were than with every event learned at once."""
    if not gain["versions"]:
        return []
    return [
        [
            f"{gain['metric']} given up",
            *(f"{gain['example_gain'] * column['behind_examples']:.3g}" for column in columns),
        ]
    ]


def _seconds(policy: Mapping[str, Any], name: str) -> str:
    found = policy.get("freshness_seconds", {})
    return f"{found[name]:.2f} s" if name in found else ""
