"""`headrace predict --round`: the resume point of a round that has made no version, as an export of its weights."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidInput, NotFound
from common.registry.catalog import OffsetRange, RoundPlan
from common.registry.client import manifest_of
from headrace import Client
from headrace.client.loading import LoadedVersion
from headrace.commands.predict import predict
from headrace.local.check import check_events, check_round
from headrace.tests.answering_server import AtRegistry, at
from testing.registry_process import RegistryProcess
from testing.warm_python import called

pytestmark = pytest.mark.usefixtures("warm_python")
_MODULE = b"name: own\nstream: s\ntask: binary\nlabel: y\nmodule: model.py\nfeatures: {x: {type: numeric}}\n"
_ROWS = [{"x": -1.5}, {"x": 0.25}, {"x": 3.0}]


def _answers(url: str, round_id: str, folder: Path, exported: Path) -> tuple[list[Any], list[Any], list[Any], str]:
    """To rows, by the command; to a file of them; by the export of the same weights; and of a point that is damaged."""
    session = AtRegistry.of(url, folder)
    answer = io.StringIO()
    with redirect_stdout(answer):
        predict(session, "m", json.dumps(_ROWS), here=True, round_id=round_id)
    (folder / "rows.ndjson").write_text("\n".join(map(json.dumps, _ROWS)))
    with redirect_stdout(io.StringIO()):
        to = str(folder / "answers.ndjson")
        predict(session, "m", file=str(folder / "rows.ndjson"), to=to, here=True, round_id=round_id)
    lines = [json.loads(line) for line in (folder / "answers.ndjson").read_text().splitlines()]
    own = LoadedVersion(exported.parent, [*exported.rglob("*.pb")], 1).predict("m", rows=_ROWS)
    with Client(at(url), timeout_seconds=60.0) as client, pytest.raises(InvalidInput) as caught:
        client.loaded_point("m", "m-000002")
    found = json.loads(answer.getvalue())
    assert (found["version"], {line["version"] for line in lines}) == (0, {0})
    return (
        found["predictions"],
        [line["prediction"] for line in lines],
        own.outputs["probability"].tolist(),
        str(caught.value),
    )


def _refuses_code(client: Client, registry: RegistryProcess) -> None:
    """Code of a definition's authors runs here only where the caller permits it."""
    code = b"def build_model(schema, parameters): ...\nraise RuntimeError('it ran')\n"
    files = {"model.yaml": _MODULE, "model.py": code}
    digest = registry.client.register_model("own", stream="s", files=files, by="test").definition_digest
    plan = registry.client.list_rounds("m", limit=1)[0].plan
    planned = registry.client.plan_round(replace(plan, model="own", sequence=1, definition_digest=digest))
    lease = registry.client.lease_round("test", ttl_seconds=60.0, models=["own"])
    assert lease is not None
    registry.client.put_resume_point(lease, state={}, files=())
    with pytest.raises(InvalidInput, match=r"code of its authors \(model.py\)"):
        client.loaded_point("own", planned.round_id)
    session = AtRegistry.of(registry.url, Path())
    with pytest.raises(InvalidInput, match=r"cannot be exported: .*it ran"):
        predict(session, "own", "[[1.0]]", here=True, round_id=planned.round_id, trust_code=True)


@pytest.mark.covers("est-predict")
def test_a_rounds_resume_point_answers_as_the_export_of_its_weights(tmp_path: Path) -> None:
    registry, work = RegistryProcess(tmp_path / "registry"), tmp_path / "work"
    registry.start()
    registry.add_model("m")
    work.mkdir()
    events = [{"x": n / 10, "id": n, "y": int(n > 5)} for n in range(60)]
    (work / "events.ndjson").write_text("\n".join(map(json.dumps, events)))
    digest = registry.client.get_model("m").definition_digest
    check_events(work, registry.client.get_stream("s").schema_json)
    check_round(work, registry.client.get_definition(digest), on_step=lambda step: None, limit_seconds=300)
    point = work / "versions" / "m" / "1" / "checkpoint"
    damaged = tmp_path / "damaged" / "checkpoint"
    damaged.mkdir(parents=True)
    (damaged / "state.json").write_text("{}")
    for number, files in enumerate((point, damaged), 1):
        plan = RoundPlan(
            model="m", sequence=number, parent_version=0, stream="s", schema_version=1,
            ranges=(OffsetRange(0, 0, 10),), definition_digest=digest, configuration={}, configuration_digest="c0",
            code_digest="c1", seed=7, example_count=10, trigger="manual", last_event_at=1.0,
        )  # fmt: skip
        planned = registry.client.plan_round(plan)
        lease = registry.client.lease_round("test", ttl_seconds=60.0, models=["m"])
        assert lease is not None
        with Client(at(registry.url), timeout_seconds=60.0) as client, pytest.raises(NotFound, match="no resume point"):
            client.loaded_point("m", planned.round_id)
        manifest = manifest_of(files, "checkpoint")
        registry.client.upload(files.parent, manifest)
        registry.client.put_resume_point(lease, state={}, files=manifest)
        registry.client.fail_round(lease, reason="a disk was full")
    by_command, of_file, own, refusal = called(
        _answers, tmp_path / "answer", registry.url, "m-000001", tmp_path, work / "versions/m/1/saved_model"
    )
    with Client(at(registry.url), timeout_seconds=60.0) as client:
        _refuses_code(client, registry)
    registry.kill()
    np.testing.assert_allclose([row["probability"] for row in by_command], own, atol=1e-6)
    assert of_file == by_command
    assert len({row["probability"] for row in by_command}) == 3
    assert "cannot be exported" in refusal


def test_a_versions_files_run_no_python() -> None:
    session: Any = None
    with pytest.raises(InvalidInput, match="--trust-code needs --round"):
        predict(session, "m", "[1]", here=True, trust_code=True)


def test_a_resume_point_goes_with_no_version() -> None:
    session: Any = None
    for more in ({}, {"here": True, "version": 1}, {"here": True, "label": "a"}):
        with pytest.raises(InvalidInput, match="--round names a resume point"):
            predict(session, "m", "[1]", round_id="m-000001", **more)
