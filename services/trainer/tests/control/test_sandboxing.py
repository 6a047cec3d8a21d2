"""What a round may reach follows from its plan, its stream and the settings."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from common.errors import InvalidInput, NotFound, Unavailable
from common.registry.catalog import Stream
from common.registry.plan_notes import LABELS, SKEW
from services.trainer.control.assignments import Assignments
from services.trainer.control.sandboxing import check_machine, confining, environment_of
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.sandbox.rules import SandboxRules
from services.trainer.settings import TrainerSettings

SCHEMA = {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "int64"}]}
SOURCE = {"kafka": {"topic": "orders", "format": "json", "servers": "kafka-1:9192,kafka-2:9292"}}

BROKERS = {"kafka:broker:9092,other:9093": ["broker:19092"], "kafka:kafka-1:9192,kafka-2:9292": ["kafka-3:9392"],
           "kafka:kafka:9192": []}  # fmt: skip
"""As each Kafka names them to clients."""


class Registry:
    """Knows one stream, the second of its name."""

    def __init__(self, schema: Mapping[str, Any] = SCHEMA) -> None:
        self._schema = schema

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream:
        if name != "flights":
            raise NotFound(f"there is no stream {name}")
        return Stream(name, 2, json.dumps(self._schema), 0.0, log_number=2)


def settings_of(folder: Path, **more: Any) -> TrainerSettings:
    return TrainerSettings(data_dir=folder, event_log="segments:/nowhere", **{"sandbox": "auto", **more})


def rules(settings: TrainerSettings, assignment: RoundAssignment, registry: Registry | None = None) -> SandboxRules:
    confined = confining(settings, registry or Registry(), lambda url: BROKERS[url])  # type: ignore[arg-type]  # the one call that is made
    return confined(assignment).sandbox


@pytest.fixture(autouse=True)
def _no_authorities_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)


@pytest.fixture
def of_segments(assignment: RoundAssignment, tmp_path: Path) -> RoundAssignment:
    return replace(assignment, event_log=f"segments:{tmp_path}/log?segment_bytes=1000")


def test_a_round_reads_its_streams_events_and_writes_its_models_folders(
    of_segments: RoundAssignment, tmp_path: Path
) -> None:
    found = rules(settings_of(tmp_path), of_segments)
    assert found.read == (f"{tmp_path}/log/examples.2.flights",)
    assert found.write == (f"{tmp_path}/work", f"{tmp_path}/cache/late"), "no topic of the log"
    assert (found.ports, found.resolves_names) == ((), False)


def test_a_round_that_joins_labels_or_looks_for_skew_reads_these_topics_and_no_other_round_does(
    of_segments: RoundAssignment, tmp_path: Path
) -> None:
    plan = of_segments.plan
    for more, topics in (
        ({LABELS: {"labels": []}}, []),
        ({LABELS: {"labels": [{"partition": 0, "from_offset": 0, "to_offset": 1}]}}, ["labels.2.flights"]),
        ({SKEW: True}, ["predictions.late"]),
    ):
        own = replace(plan, configuration={**plan.configuration, **more})
        lease = replace(of_segments.lease, round=replace(of_segments.round, plan=own))
        found = rules(settings_of(tmp_path), replace(of_segments, lease=lease))
        assert found.read == tuple(f"{tmp_path}/log/{topic}" for topic in ("examples.2.flights", *topics))


def test_a_process_that_may_stay_writes_to_the_folder_of_all_its_models_rounds(
    of_segments: RoundAssignment, tmp_path: Path
) -> None:
    found = rules(settings_of(tmp_path), replace(of_segments, may_stay=True))
    assert found.write[0] == str(tmp_path)


def test_kafkas_and_the_sources_ports_may_be_connected_to(assignment: RoundAssignment, tmp_path: Path) -> None:
    of_kafka = replace(assignment, event_log="kafka:broker:9092,other:9093")
    found = rules(settings_of(tmp_path, sandbox_ports="9999"), of_kafka, Registry(SCHEMA | {"source": SOURCE}))
    assert found.ports == (9092, 9093, 9192, 9292, 9392, 9999, 19092)
    assert found.resolves_names
    assert found.read == ()


def test_rounds_reach_kafka_as_a_user_of_their_own(assignment: RoundAssignment, tmp_path: Path) -> None:
    trainers, own = (
        f"kafka:kafka:9092?security_protocol=SASL_PLAINTEXT&sasl_mechanism=PLAIN&sasl_plain_username={user}"
        f"&password_file=/secret/{user}"
        for user in ("trainer", "rounds")
    )
    settings = TrainerSettings(data_dir=tmp_path, event_log=trainers, round_event_log=own)
    configuration = {**assignment.plan.configuration, "intra_op_threads": 1, "inter_op_threads": 1}
    plan = replace(assignment.plan, configuration=configuration)
    lease = replace(assignment.lease, round=replace(assignment.round, plan=plan))
    confined = confining(settings, Registry(), lambda url: [])(Assignments(settings).of(lease))  # type: ignore[arg-type]  # as above
    assert (confined.event_log, confined.sandbox.read) == (own, ("/secret/rounds",))


@pytest.mark.parametrize(
    ("url", "port"), [("http://names:8081", 8081), ("https://a:b@names/v1", 443), ("http://names", 80)]
)
def test_the_schema_registrys_port_may_be_connected_to(
    of_segments: RoundAssignment, tmp_path: Path, url: str, port: int
) -> None:
    source = {"kafka": {"topic": "orders", "format": "avro", "servers": "kafka:9192", "schema_registry": url}}
    assert port in (rules(settings_of(tmp_path), of_segments, Registry(SCHEMA | {"source": source})).ports or ())


@pytest.mark.parametrize("together", [{"workers": 2}, {"addresses": ("a:1", "b:2")}])
def test_processes_that_compute_a_round_together_reach_each_other(
    of_segments: RoundAssignment, tmp_path: Path, together: Mapping[str, Any]
) -> None:
    assert rules(settings_of(tmp_path), replace(of_segments, **together)).ports is None


def test_what_the_settings_name_is_added(
    of_segments: RoundAssignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/authorities.pem")
    chosen = settings_of(
        tmp_path, sandbox_read="/data/words:/data/more", sandbox_processes=7, sandbox_memory_mib=8, sandbox_file_mib=9
    )
    found = rules(chosen, of_segments)
    assert found.read[:3] == ("/data/words", "/data/more", "/etc/authorities.pem")
    assert (found.processes, found.memory_mib, found.file_mib) == (7, 8, 9)


def test_an_assignment_keeps_its_rules_on_its_way(of_segments: RoundAssignment, tmp_path: Path) -> None:
    confined = confining(settings_of(tmp_path), Registry())(of_segments)  # type: ignore[arg-type]  # the one call that is made
    assert RoundAssignment.from_json(confined.to_json()) == confined
    together = replace(confined, sandbox=replace(confined.sandbox, ports=None))
    assert RoundAssignment.from_json(together.to_json()) == together


def test_off_changes_nothing(of_segments: RoundAssignment, tmp_path: Path) -> None:
    assert rules(settings_of(tmp_path, sandbox="off"), of_segments) == SandboxRules()


def test_a_stream_that_is_not_known_gives_the_round_back(of_segments: RoundAssignment, tmp_path: Path) -> None:
    strange = replace(of_segments.plan, stream="elsewhere")
    lease = replace(of_segments.lease, round=replace(of_segments.round, plan=strange))
    with pytest.raises(Unavailable, match="there is no stream elsewhere"):
        rules(settings_of(tmp_path), replace(of_segments, lease=lease))


def test_secrets_of_the_environment_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setenv("TRAINER_ANY_TOKEN", "planted")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setenv("MODULES_OWN", "given")
    found = environment_of(settings_of(tmp_path, sandbox_environment="MODULES_OWN"))
    assert "planted" not in found.values()
    assert (found["TF_CPP_MIN_LOG_LEVEL"], found["MODULES_OWN"], "PATH" in found) == ("2", "given", True)
    assert environment_of(settings_of(tmp_path, sandbox="off"))["AWS_SECRET_ACCESS_KEY"] == "planted"


def test_a_machine_that_lacks_something_is_told_or_refused() -> None:
    lacks = ["files: the kernel has no Landlock"]
    assert check_machine("auto", lacks) == lacks
    assert check_machine("off", []) == ["anything: TRAINER_SANDBOX is off"]
    assert check_machine("require", []) == []
    with pytest.raises(InvalidInput, match="cannot confine files: the kernel has no Landlock"):
        check_machine("require", lacks)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sandbox": "off", "sandbox_read": "/data"}, "would be ignored: sandbox is off"),
        ({"sandbox_ports": "kafka"}, "must be numbers"),
        ({"sandbox": "perhaps"}, "'auto', 'require' or 'off'"),
        ({"round_event_log": "segments:/elsewhere"}, "must name the brokers of event_log, a Kafka"),
        ({"round_event_log": "kafka:kafka:9092"}, "must name the brokers of event_log, a Kafka"),
    ],
)
def test_settings_that_could_not_be_kept_are_refused(tmp_path: Path, given: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        settings_of(tmp_path, **given)
