"""Versions on the pages: compared, in one table, tried; what the gate decided in its colour, classes by their words."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from common.definition.gate import Gate, Rule
from common.eventlog.tfrecord import frame
from common.examples.codec import delimited, varint
from common.registry.catalog import Version
from common.registry.reporting import Report, Served
from protos import tfserving_pb2, warmup_pb2
from services.registry.catalog import Catalog
from services.registry.pages.reading import Reading
from services.registry.pages.service_links import ServiceLinks
from services.registry.pages.trying import WARMUP_PATH, Offer, offered
from services.registry.tests.building import SCHEMA, Clock, draft, lease, multiply, next_plan, publish, store
from services.registry.tests.seeing import Seen, seen
from testing.rows import each_row
from testing.saved_models import saved_model

CARRIERS = ["AA", "DL", "UA"]


def made(catalog: Catalog, *, rate: object, auc: float = 0.7, losses: dict[int, float] | None = None) -> Version:
    """A version of a learning rate, with the losses of these steps."""
    configuration = {"training": {"optimizer": {"learning_rate": rate}, "passes": 2}, "left_out": []}
    catalog.plan_round(replace(next_plan(catalog), configuration=configuration))
    held = lease(catalog)
    own = held.round.round_id
    contents = {"checkpoint/state": own.encode(), "saved_model/saved_model.pb": saved_model(mark=own)}
    if losses:
        contents["tensorboard/events.out.tfevents"] = frame([_loss(step, value) for step, value in losses.items()])
    return catalog.register_version(own, held.token, draft(catalog, auc=auc, contents=contents))


def _loss(step: int, value: float) -> bytes:
    """An Event of TensorBoard with one scalar."""
    tensor = delimited(b"\x2a", struct.pack("<f", value))
    found = delimited(b"\x0a", b"loss") + delimited(b"\x42", tensor)
    return b"\x10" + varint(step) + delimited(b"\x2a", delimited(b"\x0a", found))


def test_two_versions_stand_side_by_side_under_an_address_that_can_be_passed_on(
    browser: httpx.Client, catalog: Catalog
) -> None:
    made(catalog, rate=0.01, auc=0.7, losses={0: 0.9, 1: 0.5, 2: 0.3})
    other = f"name: m\nstream: s\nlabel: y\nseed: 7\nestimator: linear_classifier\n{'#' * 3} slower\n"
    files = {"model.yaml": f"{other}features: {{x: {{type: numeric}}}}\n".encode()}
    catalog.register_model("m", stream="s", files=files, by="ada")
    made(catalog, rate=0.001, auc=0.75, losses={300: 0.8, 301: 0.4, 302: 0.25})
    answer = browser.get("/models/m/compare?left=1&right=2")
    page, text = seen(answer), seen(answer).text
    for words in (
        "m : version 1 and version 2", "2 descends from 1", "+### slower", "auc (the gate's) 0.7 0.75 +0.0500",
        "records of partition 0 0 to 10 10 to 20", "trained 900 900", "training.optimizer.learning_rate 0.01 0.001",
        "version 1 0.3 at its end version 2 0.25 at its end", "0 steps of the round 2",
    ):  # fmt: skip
        assert words in text, words
    assert "training.passes" not in text, "what does not differ"
    (drawn,) = page.all("svg", role="img")
    assert drawn["aria-label"] == "loss of both versions"
    lines = [str(path["d"]) for path in page.all("path") if str(path.get("class", "")) in ("l0", "l1")]
    assert len(lines) == 2
    assert {line.count("L") for line in lines} == {2}
    assert page.all("a", href="?left=2&right=1")


def test_what_is_compared_is_chosen_in_the_tables_and_otherwise_production_with_the_newest(
    browser: httpx.Client, catalog: Catalog
) -> None:
    assert browser.get("/models/m/compare").status_code == 404
    for auc in (0.7, 0.7, 0.1):
        publish(catalog, auc=auc)
    assert "m : version 2 and version 3" in seen(browser.get("/models/m/compare")).text
    for path in ("/models/m", "/models/m/versions"):
        page = seen(browser.get(path))
        assert page.all("form", id="compare", action="/models/m/compare", method="get"), path
        chosen = [(one["name"], one["value"]) for one in page.all("input", type="radio") if "checked" in one]
        assert chosen == [("right", "3"), ("left", "2")], path
        assert {str(one["form"]) for one in page.all("input", type="radio")} == {"compare"}
    catalog.set_alias("m", "production", 1, by="ada", reason="")
    assert "m : version 1 and version 3" in seen(browser.get("/models/m/compare")).text
    assert browser.get("/models/m/compare?left=9&right=1").status_code == 404
    assert browser.get("/models/m/compare?left=x&right=1").status_code == 400


def shown(page: Seen) -> list[str]:
    return [str(row["id"]) for row in page.all("tr") if "id" in row]


def test_parameters_and_metrics_are_one_table_that_links_sort(browser: httpx.Client, catalog: Catalog) -> None:
    for rate, auc in ((0.01, 0.72), (0.1, 0.75), ("cosine", 0.71), (0.001, 0.74)):
        made(catalog, rate=rate, auc=auc)
    path = "/models/m/versions"
    page = seen(browser.get(path))
    assert shown(page) == ["v4", "v3", "v2", "v1"]
    assert page.lacks("auc | training.optimizer.learning_rate | 0.72 | 1 parameter the same in all | passes 2") == []
    assert "left_out" not in page.text
    wanted = {
        "sort=metric.auc&order=descending": ["v2", "v4", "v1", "v3"],
        "sort=metric.auc&order=ascending": ["v3", "v1", "v4", "v2"],
        "sort=training.optimizer.learning_rate&order=ascending": ["v4", "v1", "v2", "v3"],
        "sort=made&order=ascending": ["v4", "v3", "v2", "v1"],
    }
    for query, rows in wanted.items():
        assert shown(seen(browser.get(f"{path}?{query}"))) == rows, query
    links = {str(one["href"]) for one in page.all("a", **{"class": "sort"})}
    assert "?sort=metric.auc&order=descending" in links
    sorted_by = seen(browser.get(f"{path}?sort=metric.auc&order=descending"))
    assert [one["aria-sort"] for one in sorted_by.all("th") if "aria-sort" in one] == ["descending"]
    assert sorted_by.all("a", href="?sort=metric.auc&order=ascending")
    refused = browser.get(f"{path}?sort=colour")
    assert (refused.status_code, "expected one of version, made" in refused.text) == (400, True)
    assert browser.get(f"{path}?order=up").status_code == 400


def test_a_version_without_a_value_comes_last_in_either_order(browser: httpx.Client, catalog: Catalog) -> None:
    made(catalog, rate=0.01)
    made(catalog, rate=0.02)
    file = replace(store(catalog, saved_model(mark="pushed")), path="saved_model/saved_model.pb")
    catalog.push_version("m", [file], origin="here", by="ada", reason="")
    for order in ("ascending", "descending"):
        for column in ("metric.auc", "training.optimizer.learning_rate"):
            assert shown(seen(browser.get(f"/models/m/versions?sort={column}&order={order}")))[-1] == "v3"


def test_thousands_of_versions_are_sorted_as_a_whole_and_read_page_by_page(
    browser: httpx.Client, catalog: Catalog, asked: list[str], tmp_path: Path
) -> None:
    publish(catalog)
    multiply(tmp_path, versions=2_500, models=1)
    asked.clear()
    answer = browser.get("/models/m/versions?sort=version&order=ascending&page=20")
    assert shown(seen(answer)) == [f"v{number}" for number in range(2401, 2501)]
    assert "2,000 versions of 2,500, 1901 to 2000 shown." in seen(answer).text
    assert seen(answer).all("a", href="?sort=version&order=ascending&page=19")
    assert "The next page" not in answer.text
    assert len(answer.content) < 200_000
    assert len(asked) < 12, "however many versions there are"
    assert seen(answer).all("a", href="?sort=version&order=ascending&before=501")
    older = browser.get("/models/m/versions?before=501")
    assert shown(seen(older)) == [f"v{number}" for number in range(500, 400, -1)]
    assert "Older versions" not in older.text
    model = browser.get("/models/m?before=2")
    assert shown(seen(model))[:1] == ["v1"]
    assert "1 of 2,500." in seen(model).text


def warmed_up(signature: str, **inputs: tfserving_pb2.TensorProto) -> bytes:
    log = warmup_pb2.PredictionLog()
    log.predict_log.request.model_spec.signature_name = signature
    for name, proto in inputs.items():
        log.predict_log.request.inputs[name].CopyFrom(proto)
    return frame([warmup_pb2.PredictionLog().SerializeToString(), log.SerializeToString()])


def tensor(kind: int, shape: tuple[int, ...], **values: Any) -> tfserving_pb2.TensorProto:
    proto = tfserving_pb2.TensorProto(dtype=kind, **values)  # type: ignore[arg-type]  # an enum's number
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def test_a_version_is_tried_with_a_real_event_of_its_own_round(catalog: Catalog) -> None:
    floats = np.array([[1.9, 2.5], [3.0, 4.0]], "<f4").tobytes()
    requests = warmed_up(
        "",  # that is serving_default
        x=tensor(tfserving_pb2.DT_FLOAT, (2, 2), tensor_content=floats),
        carrier=tensor(tfserving_pb2.DT_STRING, (1,), string_val=[b"AA"]),
        picture=tensor(tfserving_pb2.DT_STRING, (1,), string_val=[b"\x89PNG"]),
        many=tensor(tfserving_pb2.DT_INT64, (2, 3), int64_val=[7]),
    )
    version = publish(catalog, contents={WARMUP_PATH: requests})
    offer = offered(Reading(catalog, ServiceLinks()), version)
    row = {"carrier": "AA", "many": [7, 7, 7], "picture": {"b64": "iVBORw=="}, "x": [1.9, 2.5]}
    assert offer == Offer({"instances": [row]}, "A real event of the round that made the version.")


class Ingest(ServiceLinks):
    def newest_events(self, stream: str, last: int) -> dict[str, list[dict[str, Any]]]:
        return {"events": [{"x": 4.5, "carrier": "DL", "y": 1}]}


def pushed(catalog: Catalog, saved: bytes, warmup: bytes = b"") -> Version:
    files = [replace(store(catalog, saved), path="saved_model/saved_model.pb")]
    files += [replace(store(catalog, warmup), path=WARMUP_PATH)] if warmup else []
    return catalog.push_version("m", files, origin="here", by="ada", reason="")


def test_a_version_without_warm_up_is_tried_with_the_newest_event_or_values_of_its_own_inputs(catalog: Catalog) -> None:
    publish(catalog)
    own = pushed(catalog, saved_model())
    offer = offered(Reading(catalog, Ingest()), own)
    assert offer == Offer({"instances": [{"x": 4.5}]}, "The newest event of s.")
    inputs = {"pixels": ("DT_FLOAT", (-1, 2, 1)), "word": ("DT_STRING", (-1,))}
    other = pushed(catalog, saved_model(inputs=inputs, signature="score"))
    offer = offered(Reading(catalog, Ingest()), other)
    row = {"pixels": [[0.0], [0.0]], "word": ""}
    assert offer.request == {"signature_name": "score", "instances": [row]}
    assert offer.origin.startswith("Made-up values")
    whole = pushed(catalog, saved_model(inputs={"k": ("DT_INT64", ())}))
    assert offered(Reading(catalog, Ingest()), whole).request == {"inputs": {"k": 0}}


@each_row(
    "warmup",
    [
        b"no record",
        frame([b"no message"]),
        warmed_up("serving_default", x=tensor(tfserving_pb2.DT_FLOAT, (1,), float_val=[float("nan")])),
        warmed_up("serving_default", x=tensor(tfserving_pb2.DT_COMPLEX64, (1,))),
        warmed_up("serving_default", x=tensor(tfserving_pb2.DT_FLOAT, (1 << 40,))),
        warmed_up("serving_default", x=tensor(tfserving_pb2.DT_FLOAT, (-1, 2), tensor_content=b"123")),
        warmed_up("serving_default", x=tensor(tfserving_pb2.DT_INT64, (0,))),
    ],
)
def test_a_broken_warm_up_leaves_the_page_whole(browser: httpx.Client, catalog: Catalog, warmup: bytes) -> None:
    answer = browser.get(f"/models/m/versions/{pushed(catalog, saved_model(), warmup).version}")
    assert answer.status_code == 200
    assert "Made-up values of the right kind" in answer.text


def test_held_is_amber_and_a_long_reason_is_folded(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    pushed(catalog, saved_model(inputs={f"input_{number}": ("DT_FLOAT", (-1,)) for number in range(40)}))
    page = seen(browser.get("/models/m/versions/2"))
    assert page.all("div", **{"class": "state warn"})
    assert not [one for one in page.all("div") if one.get("class") == "state good"]
    assert seen(browser.get("/models/m/versions/1")).all("div", **{"class": "state good"})
    for path in ("/", "/models/m", "/models/m/versions/2"):
        folded = seen(browser.get(path))
        assert folded.all("details", **{"class": "clamp"}), path
        assert "input_1 (float32 [n]) is new" in folded.text, path
        assert not folded.all("details", **{"class": "clamp", "open": ""}), path
    assert seen(browser.get("/models/m")).all("details", **{"class": "clamp"})


def test_classes_are_called_by_the_words_of_their_label_and_columns_are_what_was_predicted(
    browser: httpx.Client, catalog: Catalog
) -> None:
    label = {"name": "carrier", "dtype": "string", "vocabulary": CARRIERS}
    catalog.register_stream("w", json.dumps({"features": SCHEMA["features"], "labels": [label]}))
    text = "name: words\nstream: w\nestimator: linear_classifier\nfeatures: {x: {type: numeric}}\n"
    text += "heads: {who_flies: {label: carrier, task: multiclass}}\n"
    catalog.register_model("words", stream="w", files={"model.yaml": text.encode()}, by="ada")
    confusion = {"classes": [0, 2, "others"], "counts": [[5, 1, 0], [2, 7, 0], [1, 0, 3]]}
    drawn = {"confusion": confusion, "classes": [[0, 0.9, 0.8, 0.5], [2, 0.7, 0.6, 0.5]]}
    publish(catalog, model="words", evaluation={"curves": {"candidate": {"who_flies": drawn}}})
    text = seen(browser.get("/models/words/versions/1")).text
    assert "confusion of who_flies (candidate) label predicted AA UA others AA 5 1 0 UA 2 7 0 others 1 0 3" in text
    assert "classes of who_flies (candidate) class precision recall share of labels AA 0.9" in text
    publish(catalog, evaluation={"curves": {"candidate": {"y": {"confusion": {"classes": [0], "counts": [[5]]}}}}})
    assert "label predicted 0 0 5" in seen(browser.get("/models/m/versions/1")).text, "a label without words"


def everybody(catalog: Catalog, *, version: int = 0) -> None:
    """Ingest, a trainer and a replica report; the replica answers with this version."""
    served = (Served("m", version, "AVAILABLE", since=7.0, aliases=("production",)),) if version else ()
    for service in ("ingest", "trainer", "serving"):
        catalog.observed.report(Report(service, service, "", 5.0, serves=served if service == "serving" else ()))


def test_a_stall_is_amber_on_the_overview_and_on_its_model(
    browser: httpx.Client, catalog: Catalog, clock: Clock
) -> None:
    def said(words: str) -> None:
        for path in ("/", "/models/m"):
            page = seen(browser.get(path))
            assert words in page.text, path
            assert page.all("section", **{"class": "card warnbox"}), path
            assert not page.all("p", **{"class": "state good"}), path

    catalog.plan_round(next_plan(catalog))
    everybody(catalog)
    assert seen(browser.get("/")).all("p", **{"class": "state good"})
    clock.pass_seconds(1_200.0)
    everybody(catalog)
    said("round m-000001 has waited 20 min for a trainer")
    held = lease(catalog)
    assert seen(browser.get("/")).all("p", **{"class": "state good"})
    progress = {"activity": "starved", "cpu_seconds": 7.0, "wall_seconds": 300.0}
    catalog.renew_lease(held.round.round_id, held.token, ttl_seconds=10.0, progress=progress)
    said("starved: 7 s of processor time in 300 s")
    catalog.renew_lease(held.round.round_id, held.token, ttl_seconds=10.0, progress={"activity": "moves"})
    clock.pass_seconds(70.0)
    everybody(catalog)
    said("nothing was heard of round m-000001 since its lease ended 60 s ago")
    catalog.register_version(held.round.round_id, lease(catalog).token, draft(catalog))
    clock.pass_seconds(1.0)
    everybody(catalog, version=7)
    assert seen(browser.get("/")).all("p", **{"class": "state good"}), "it is changing over"
    clock.pass_seconds(300.0)
    everybody(catalog, version=7)
    said("serving does not answer with version 1, which is production since 5 min")
    everybody(catalog, version=1)
    assert seen(browser.get("/")).all("p", **{"class": "state good"})


def test_a_round_says_its_longest_stages_and_the_legend_their_sums_without_pointing(
    browser: httpx.Client, catalog: Catalog
) -> None:
    publish(catalog)
    publish(catalog)
    page = seen(browser.get("/rounds"))
    assert "train 3 s Round State" in page.text, "the legend's sum of both rounds"
    assert page.text.count("train 1.5 s 0 ms") == 2, "beside each round"


def test_latency_is_in_milliseconds_with_its_percentile_named(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    numbers = {"requests_per_second": 5.0, "request_p50_seconds": 0.0021, "request_p99_seconds": 1.25}
    catalog.observed.report(Report("r", "serving", "", 5.0, numbers=numbers))
    assert "Latency p99 1,250 ms p50 2.1 ms" in seen(browser.get("/")).text
    page = seen(browser.get("/serving"))
    assert "Latency p99 1,250 ms p50 2.1 ms" in page.text
    assert "Latency over the day: p99 in milliseconds" in page.text
    (chart,) = page.all("div", id="latency")
    assert (chart["data-unit"], chart["data-times"], chart["data-y"]) == ("ms", "1000", "p99, ms")


def test_a_gate_of_many_rules_keeps_every_reason_in_the_page(browser: httpx.Client, catalog: Catalog) -> None:
    rules = tuple(Rule("auc", min_value=0.8 + number / 100) for number in range(15))
    publish(catalog, auc=0.7, gate=Gate(rules=rules))
    text = seen(browser.get("/models/m")).text
    assert "below the least allowed, 0.8" in text
    assert "below the least allowed, 0.94" in text
