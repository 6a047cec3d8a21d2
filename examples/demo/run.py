"""Conducts a demonstration: starts a platform, replays, asks, watches, adds up, stops everything."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from examples.demo.asker import AskerSettings, read_answers
from examples.demo.feeder import FeederSettings, replay
from examples.demo.foresight import FIRST, Question
from examples.demo.report import Expectation, broken_promises, make_report, version_row
from examples.demo.screen import Picture, Screen, foresight_table, versions_table
from examples.demo.watcher import Seen, Watcher
from headrace.client.platform import Client
from headrace.commands.session import COMPOSE, LOCAL
from headrace.files.definition_folder import DefinitionFolder, read_folder
from headrace.local.launcher import Launcher, remove_data
from headrace.places import HOST, SERVICES, PlatformState, write_json

if TYPE_CHECKING:
    from headrace.compose.platform import ComposeLauncher

EXPECTATION_OF: Mapping[str, Expectation] = {
    "flights": Expectation(metric="auc", events=100_000, events_per_second=5_000, published=4),
    "digits": Expectation(metric="accuracy", events=5_000, events_per_second=250, published=4, final_value=0.95),
}
_LONGEST_SECONDS = 900.0
_LOOK_SECONDS = 0.2
_AFTERGLOW_SECONDS = 2.0
"""Predictions go on this long after the last version is served, so that its reload is measured whole."""
_QUIET_SECONDS = 2.0
"""No round was open for this long: none is coming by a trigger soon."""
_CONNECTIONS = 8
_SAMPLE_REQUESTS = 256
_FAILED_ROUNDS = 3


@dataclass(frozen=True)
class DemoSettings:
    """`event_count` None with is_full False: the example's usual number."""

    example: str
    event_count: int | None
    is_full: bool
    predictions_per_second: float
    replicas: int
    directory: Path
    as_json: bool
    kind: str = LOCAL


class _Lines:
    """The last line of JSON that a process has printed, read by a thread so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.last: dict[str, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = json.loads(line)

    def end(self, timeout_seconds: float = 30.0) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=timeout_seconds)


def run(settings: DemoSettings) -> int:
    """The exit status: 0 when every promise was kept, 1 when one was broken.

    Raises:
        InvalidInput: there is no such example. Unavailable: the platform did not come to an end in time.
    """
    expected = EXPECTATION_OF.get(settings.example)
    if expected is None:
        raise InvalidInput(f"there is no example {settings.example!r}; there are {', '.join(EXPECTATION_OF)}")
    began = time.monotonic()
    settings.directory.mkdir(parents=True, exist_ok=True)
    launcher = _fresh_launcher(settings)
    try:
        with Screen(quiet=settings.as_json) as screen:
            demo = _Demo(settings, expected, launcher, screen)
            try:
                report, broken = demo.run()
            finally:
                demo.close()
    finally:
        launcher.close()
    _publish(settings, expected, report, broken, time.monotonic() - began)
    return 1 if broken else 0


def _fresh_launcher(settings: DemoSettings) -> "Launcher | ComposeLauncher":
    """Of a platform without data."""
    if settings.kind == COMPOSE:
        from headrace.compose.platform import ComposeLauncher

        # One per folder, as with the local platform's data: a run takes the place of a run that was cut off there.
        project = f"headrace-demo-{blake2b(os.fsencode(settings.directory), digest_size=4).hexdigest()}"
        containers = ComposeLauncher(project=project, services=("proxy", *SERVICES), is_temporary=True)
        with contextlib.suppress(NotFound):
            containers.down()
        return containers
    data_dir = settings.directory / "platform"
    remove_data(data_dir)
    return Launcher(data_dir)


class _Demo:
    """One run, in order: see run()."""

    def __init__(
        self, settings: DemoSettings, expected: Expectation, launcher: "Launcher | ComposeLauncher", screen: Screen
    ) -> None:
        self._settings, self._expected, self._launcher, self._screen = settings, expected, launcher, screen
        self._folder = Path("examples").absolute() / settings.example
        total = None if settings.is_full else settings.event_count or expected.events
        self._picture = Picture(f"headrace demo {settings.example}", expected.metric, total=total)
        self._feeder: _Lines | None = None
        self._asker: _Lines | None = None
        self._answers_path = settings.directory / "predictions.csv"
        self._quiet_since = time.monotonic()

    def run(self) -> tuple[dict[str, Any], list[str]]:
        definition = read_folder(self._folder)
        self._show("starting the platform")
        self._launcher.up(replicas=self._settings.replicas, port_offset=None)
        # The others come up while the first events flow.
        state = self._launcher.wait_until_ready(names=("registry", "ingest"), on_change=self._show_start)
        with self._launcher.client(by="headrace demo") as client:
            if client.token:
                os.environ["HEADRACE_TOKEN"] = client.token  # for the processes that feed and ask
            client.apply(definition)
            watcher = Watcher(client, definition.model)
            self._feeder = self._start_feeder(state, definition)
            self._follow(client, watcher, definition, state)
            return self._add_up(watcher.seen)

    def close(self) -> None:
        for process in (self._feeder, self._asker):
            if process is not None:
                process.end()

    def _follow(self, client: Client, watcher: Watcher, definition: DefinitionFolder, state: PlatformState) -> None:
        """Until every event is in a judged version's range and the last promoted version is served everywhere."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while True:
            time.sleep(_LOOK_SECONDS)
            seen = watcher.look()
            self._check_going(seen, deadline)
            if self._asker is None and self._is_served(seen):
                self._keep_first(client, seen)
                self._asker = self._start_asker(state, definition, client.signatures(definition.model))
            self._picture.step = "training on what is left" if self._fed().get("done") else "replaying"
            self._show_progress(seen)
            if not self._fed().get("done") or seen.open_round is not None:
                self._quiet_since = time.monotonic()
                continue
            position = {int(partition): offset for partition, offset in self._fed()["position"].items()}
            if not seen.covers(position):
                self._request_rest(client, definition.model)
            elif self._is_served(seen) and self._asker is not None:
                break
        self._show("the last predictions")
        time.sleep(_AFTERGLOW_SECONDS)
        self._show_progress(watcher.look())

    def _keep_first(self, client: Client, seen: Seen) -> None:
        """Labels the first promoted version, which the live versions are compared with."""
        first = next(version for version in seen.versions if seen.is_promoted(version))
        client.promote(first.model, first.version, alias=FIRST, reason="stays as it is, to be compared")

    def _request_rest(self, client: Client, model: str) -> None:
        """What is left is fewer events than min_examples: asks for a round rather than wait for max_interval."""
        if time.monotonic() - self._quiet_since < _QUIET_SECONDS:
            return
        self._quiet_since = time.monotonic()
        try:
            client.train(model, reason="the rest of the replay")
        except Conflict:
            # A trigger was quicker, or the cooldown is on.
            return

    def _is_served(self, seen: Seen) -> bool:
        promoted = [version for version in seen.versions if seen.is_promoted(version)]
        return bool(promoted) and seen.served_at(promoted[-1], self._settings.replicas) is not None

    def _check_going(self, seen: Seen, deadline: float) -> None:
        if "error" in self._fed():
            raise Unavailable(f"the replay stopped: {self._fed()['error']}")
        for name, process in (("replay", self._feeder), ("predicting client", self._asker)):
            if process is not None and process.process.poll() not in (None, 0):
                raise Unavailable(f"the {name} ended with status {process.process.returncode}")
        if seen.model is not None and seen.model.consecutive_failures >= _FAILED_ROUNDS:
            raise Unavailable(f"{_FAILED_ROUNDS} rounds failed one after the other: {seen.model.last_failure}")
        if time.monotonic() > deadline:
            lag = f"{len(seen.versions)} versions, open round {seen.open_round}"
            raise Unavailable(f"the demo did not end within {_LONGEST_SECONDS:.0f} s: {lag}")

    def _fed(self) -> dict[str, Any]:
        return self._feeder.last if self._feeder is not None else {}

    def _start_feeder(self, state: PlatformState, definition: DefinitionFolder) -> _Lines:
        _, model = definition.checked()
        question = Question(model.name, model.task, model.label, self._expected.metric)
        feeder = FeederSettings(
            example_dir=str(self._folder),
            stream=definition.stream,
            event_count=self._picture.total,
            events_per_second=self._expected.events_per_second,
            ingest_url=state.addresses.ingest,
            predictions_url=state.addresses.predictions or state.addresses.serving[0],
            question=asdict(question),
            parent_pid=os.getpid(),
        )
        return self._start("examples.demo.feeder", feeder.to_json())

    def _start_asker(self, state: PlatformState, definition: DefinitionFolder, signatures: Mapping[str, Any]) -> _Lines:
        """Asks with real events, without what the model does not take, one instance a request."""
        inputs = sorted(signatures["serving_default"]["inputs"])
        requests = self._settings.directory / "requests.ndjson"
        instances = ({name: event[name] for name in inputs} for event in replay(self._folder, _SAMPLE_REQUESTS))
        requests.write_bytes(b"\n".join(orjson.dumps({"instances": [instance]}) for instance in instances))
        # A proxy spreads them over the replicas; without it, the asker does.
        addresses = [state.addresses.predictions] if state.addresses.predictions else state.addresses.serving
        ports = [int(url.rpartition(":")[2]) for url in addresses]
        asker = AskerSettings(
            host=HOST,
            ports=tuple(ports),
            path=f"/v1/models/{definition.model}:predict",
            requests_path=str(requests),
            answers_path=str(self._answers_path),
            per_second=self._settings.predictions_per_second,
            connections=max(_CONNECTIONS, len(ports)),
            parent_pid=os.getpid(),
        )
        return self._start("examples.demo.asker", asker.to_json())

    def _start(self, module: str, argument: str) -> _Lines:
        log = (self._settings.directory / f"{module.rpartition('.')[2]}.log").open("wb")
        with log:
            # In a separate session, so that Ctrl-C reaches this process first and the asker can write its answers.
            return _Lines(
                subprocess.Popen(
                    [sys.executable, "-m", module, argument],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _add_up(self, seen: Seen) -> tuple[dict[str, Any], list[str]]:
        self._show("adding up")
        assert self._asker is not None
        self._asker.end()
        report = make_report(
            seen,
            accepted=int(self._fed()["accepted"]),
            answers=read_answers(self._answers_path),
            stretches=self._fed()["stretches"],
            metric=self._expected.metric,
            replica_count=self._settings.replicas,
        )
        self._show("stopping the platform")
        return report, broken_promises(report, seen, self._expected)

    def _show(self, step: str) -> None:
        self._picture.step = step
        self._screen.show(self._picture)

    def _show_start(self, state: PlatformState) -> None:
        waiting = [process.name for process in state.processes if process.phase != "ready"]
        self._show("starting the platform" + (f": {', '.join(waiting)}" if self._screen.is_live and waiting else ""))

    def _show_progress(self, seen: Seen) -> None:
        picture, fed = self._picture, self._fed()
        picture.accepted = int(fed.get("accepted", 0))
        if fed.get("seconds"):
            picture.events_per_second = picture.accepted / fed["seconds"]
        if fed.get("done"):
            picture.total = picture.accepted
        picture.judged = sum(version.events_trained + version.events_held_out for version in seen.chain())
        picture.predictions = self._asker.last if self._asker is not None else {}
        metric, replicas = self._expected.metric, self._settings.replicas
        picture.rows = [version_row(seen, version, metric, replicas) for version in seen.versions]
        picture.round_line = _round_line(seen)
        self._screen.show(picture)


def _round_line(seen: Seen) -> str:
    current = seen.open_round
    if current is None:
        return ""
    stage = seen.progress.get("stage") or current.progress.get("stage") or str(current.state)
    done = int(seen.progress.get("examples_done") or 0)
    return f"round {current.plan.sequence}: {stage} {done:,} of {current.plan.example_count:,}"


def _publish(
    settings: DemoSettings, expected: Expectation, report: Mapping[str, Any], broken: list[str], seconds: float
) -> None:
    path = settings.directory / "report.json"
    write_json(path, report)
    if settings.as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_report(report, expected.metric, Console(width=None if sys.stdout.isatty() else 120))
        print(f"{seconds:.0f} s in all; report in {path}")
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)


def _print_report(report: Mapping[str, Any], metric: str, console: Console) -> None:
    predictions, fresh, stretches = report["predictions"], report["freshness"], report["foresight"]
    console.print(versions_table(report["versions"], metric))
    if stretches:
        console.print(foresight_table(stretches, metric))
    used = f"{report['events_trained']:,} trained on + {report['events_held_out']:,} held out"
    freshness = f"p50 {fresh['p50_seconds']} s, p95 {fresh['p95_seconds']} s"
    latency = f"p50 {predictions['p50_ms']} ms, p99 {predictions['p99_ms']} ms"
    latency = f"{latency}, p99 during reloads {predictions['p99_during_reload_ms']} ms"
    lines = (
        f"{report['events_accepted']:,} events accepted = {used}",
        f"{fresh['versions']} versions served; from a version's last event to its first answer {freshness}",
        f"{predictions['sent']:,} predictions, {predictions['failed']} failed; {latency}",
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
