"""The pages as a browser gets them: what they say, what they refuse, and that nothing in them runs that is not ours."""

import base64
import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from common.definition.gate import Gate, Rule
from common.errors import NotFound
from common.registry.reporting import Part, Report, Served
from common.registry.round_words import rolled_back_words
from common.schema import Schema
from common.statistics.sketches import of_arrays, to_document
from services.registry.catalog import Catalog
from services.registry.pages import statistics, streams
from services.registry.pages import version as version_page
from services.registry.pages.door import MAX_LIVE
from services.registry.pages.headers import HEADERS
from services.registry.pages.reading import Place, Reading
from services.registry.pages.rounds import in_order
from services.registry.pages.service_links import ServiceLinks
from services.registry.pages.trying import example_of
from services.registry.tests.building import SCHEMA, Clock, lease, leased, multiply, next_plan, publish
from services.registry.tests.seeing import browsing, seen
from testing import plain_http
from testing.rows import each_row
from testing.saved_models import saved_model

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'`{{7*7}}"
EVERY_PAGE = (
    "/", "/models/m", "/models/m/versions/1", "/models/m/versions/2", "/models/m/compare?left=1&right=2",
    "/models/m/versions?sort=metric.auc", "/streams", "/streams/s", "/rounds",
    "/rounds?model=m", "/serving", "/history", "/history?action=promote", "/models/m/do/rollback", "/models/m/do/train",
    "/models/m/versions/1/do/promote", "/streams/s/do/replay",
    "/models/m/versions/1/do/rebuild", "/models/m/do/profile", "/documents/guide/dashboard.md",
)  # fmt: skip


MOST_BYTES = {
    "/": 80_000, "/models/m": 300_000, "/models/m?before=401": 300_000, "/models/m/versions/400": 40_000,
    "/rounds": 60_000, "/history": 20_000, "/serving": 20_000, "/streams": 20_000,
}  # fmt: skip


def walked(browser: httpx.Client, path: str, query: str) -> tuple[str, list[str]]:
    """The text of a path's pages from the newest to the oldest, and the ids of their rows; `query` leads on."""
    text, ids, link = "", list[str](), path
    while link:
        answer = browser.get(link)
        page = seen(answer)
        text += answer.text
        ids += [str(row["id"]) for row in page.all("tr") if "id" in row]
        older = [str(found["href"]) for found in page.all("a") if re.search(f"{query}=[0-9m]", str(found["href"]))]
        link = f"{path}{older[-1]}" if older else ""
    return text, ids


def form_of(browser: httpx.Client, path: str, **fields: str) -> dict[str, str]:
    """The form of a page as it would be sent, with these fields filled in."""
    hidden = {str(one["name"]): str(one["value"]) for one in seen(browser.get(path)).all("input", type="hidden")}
    return {**hidden, **fields}


def test_the_overview_shows_the_loop_every_model_and_how_fresh_it_is(
    browser: httpx.Client, catalog: Catalog, clock: Clock
) -> None:
    publish(catalog)
    publish(catalog, auc=0.1)
    clock.pass_seconds(42.0)
    served = Served("m", 1, "AVAILABLE", since=7.0, aliases=("production",))
    part = Part(model="m", version=1, numbers={"requests_per_second": 12.0, "request_p99_seconds": 0.004})
    numbers = {"requests_per_second": 12.0}
    catalog.observed.report(Report("r", "serving", "", 5.0, serves=(served,), numbers=numbers, parts=(part,)))
    catalog.observed.report(Report("i", "ingest", "", 5.0, numbers={"accepted_events_per_second": 321.0}))
    counted = {"head_version": 1, "waiting": 777, "waiting_for": "777 of 1000 new examples"}
    catalog.observed.report(Report("t", "trainer", "", 5.0, models={"m": counted}))
    page = seen(browser.get("/"))
    assert page.lacks("All is well. | 321 events/s | 777 waiting | 1 of 1 | 42 s | rejected | 4 ms") == []
    assert page.lacks("12 predictions/s") == []
    assert "Every replica answers with production" in browser.get("/").text
    assert page.all("a", href="/models/m")
    assert page.all("main")[0]["sse-connect"] == "/live"


def test_a_replica_without_redis_is_something_to_look_at(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    served = Served("m", 1, "END", since=7.0, reason="no memory")
    for service in ("ingest", "trainer"):
        catalog.observed.report(Report(service, service, "", 5.0))
    catalog.observed.report(Report("r", "serving", "", 5.0, serves=(served,), faults=("m version 1: no memory",)))
    assert "r</a>" not in browser.get("/").text, "its model tells it"
    catalog.observed.report(
        Report("r", "serving", "", 5.0, serves=(served,), faults=("Redis is away: no answer within 2 s",))
    )
    text = seen(browser.get("/")).text
    assert "Redis is away" in text
    assert "All is well" not in text


def test_an_empty_platform_teaches_the_next_command(browser: httpx.Client, catalog: Catalog) -> None:
    for path, words in (
        ("/models/m", "headrace ingest FILE --stream s"),
        ("/rounds", "headrace train MODEL"),
        ("/serving", "headrace up"),
        ("/", "no instance of trainer has reported"),
    ):
        assert words in seen(browser.get(path)).text
    catalog.change_model("m", "archive", by="ada", reason="")
    catalog.delete_model("m", by="ada", reason="")
    assert "headrace init data.csv" in seen(browser.get("/")).text
    catalog.change_stream("s", "archive", by="ada", reason="")
    catalog.delete_stream("s", by="ada", reason="")
    assert "Nothing flows yet" in seen(browser.get("/")).text
    assert "headrace apply data" in seen(browser.get("/streams")).text


def test_a_failure_is_shown_with_its_advice(browser: httpx.Client, catalog: Catalog) -> None:
    held = leased(catalog)
    events = [{"at": "0:12", "event": {"x": "-9.5", "city": HOSTILE}}]
    origin = {"step": 3, "operation": "Log", "layer": "layer root", "place": "net.py, line 7", "events": events}
    failure: dict[str, Any] = {"stage": "train", "place": "model.py, line 7", "log": ["boom"], "not_finite": origin}
    failure["advice"] = "make batch_size smaller"
    catalog.fail_round(held.round.round_id, held.token, reason="out of memory", failure=failure)
    for path in ("/", "/models/m"):
        text = seen(browser.get(path)).text
        assert "out of memory" in text
        assert "make batch_size smaller" in text
    for words in ("Step 3", "Operation Log", "Where layer root", "Line net.py, line 7", "Event at 0:12", "x -9.5"):
        assert words in text, words
    assert "<script>alert" in text
    assert "failed" in seen(browser.get("/rounds")).text


@pytest.mark.covers("eco-tfma")
def test_a_versions_page_shows_its_rules_slices_and_curves(browser: httpx.Client, catalog: Catalog) -> None:
    confusion = {"classes": [0], "counts": [[5]]}
    details = {
        "slices": [
            {"by": ["carrier"], "where": {"carrier": "AA"}, "count": 9, "metrics": {"candidate": {"auc": 0.4321}}},
            {"by": ["carrier"], "where": None, "value_count": 7, "count": 1, "metrics": {}},
        ],
        "duplicates": {"same_features": 3, "same_event": 1},
        "curves": {"candidate": {"late": {"roc": [[0.0, 0.0], [0.1234, 0.5], [1, 1]], "confusion": confusion}}},
    }
    gate = Gate(rules=(Rule("auc", min_value=0.5), Rule("auc", min_value=0.45, slice={"carrier": "AA"})))
    scored = {"metrics": {"candidate": {"auc": 0.6543}}, "unscored": {"own": "its code measures it"}}
    environment = {"fired": {"min_examples": "120 of 100 new"}, "scored_outside": scored}
    publish(catalog, auc=0.7, gate=gate, evaluation=details, environment=environment)
    publish(catalog)
    page, model = seen(browser.get("/models/m/versions/1")), seen(browser.get("/models/m"))
    assert page.lacks("by carrier | AA | 0.4321 | 7 others | roc of late | 0.1234 | confusion of late") == []
    assert page.lacks("min_examples: 120 of 100 | 3 of them with the features of a trained event") == []
    assert page.lacks("auc where carrier is AA 0.4321 is below the least allowed, 0.45") == []
    assert page.lacks("Scored outside of its code, too: auc 0.6543 (the gate); own is the word of the round's") == []
    assert model.lacks("own is the word of the round's process: its code measures it") == []
    plots = [json.loads(str(found["data-plot"])) for _, found in page.tags if "data-plot" in found]
    assert [plot["lines"]["true positive rate"] for plot in plots] == [{"value": [0.0, 0.5, 1]}]
    (curve,) = [json.loads(str(found["data-plot"])) for _, found in model.tags if "data-plot" in found]
    assert curve["lines"]["auc, carrier AA"] == {"candidate": [0.4321, None], "parent": [None, None]}
    assert catalog.list_versions("m")[0].evaluation == {}


@pytest.mark.covers("eco-tfdv")
def test_the_fields_of_a_versions_round_are_shown_and_compared_with_its_parents(
    browser: httpx.Client, catalog: Catalog
) -> None:
    random = np.random.default_rng(1)
    for mean in (0.0, 3.0):
        arrays = {"distance": random.normal(mean, 1.0, 500), "carrier": random.choice(["AA", "<b>"], 500)}
        told = json.dumps(to_document(of_arrays(arrays))).encode()
        publish(catalog, contents={"statistics/round.json": told})
    page = seen(browser.get("/models/m/versions/2"))
    assert page.lacks("partition 0: records 10 to 20 | headrace rebuild m@2") == []
    assert page.all("a", href="/models/m/compare?left=1&right=2")
    assert "curl" not in page.text, "the address of serving is not known"
    first, second = seen(browser.get("/models/m/versions/1")).text, page.text
    for words in ("Values of the fields", "distance", "Least", "AA ", "<b> "):
        assert words in html.unescape(first), words
    assert "Against the parent" not in first
    assert "large" in second
    assert 'class="bars"' in browser.get("/models/m/versions/2").text


def test_a_round_is_shown_from_its_plan_on(browser: httpx.Client, catalog: Catalog) -> None:
    planned = catalog.plan_round(next_plan(catalog))
    for path in ("/", "/models/m", "/rounds"):
        assert "planned" in seen(browser.get(path)).text
    held = lease(catalog)
    for path in ("/", "/models/m", "/rounds"):
        assert "running" in seen(browser.get(path)).text
    catalog.observed.report(Report("t", "trainer", "", 5.0, does={"round_id": planned.round_id, "stage": "export"}))
    assert re.search('aria-label="[^"]*export ', browser.get("/rounds").text), "before the lease's first renewal"
    catalog.renew_lease(held.round.round_id, held.token, ttl_seconds=10.0, progress={"stage": "train"})
    for path in ("/", "/models/m", "/rounds"):
        assert "train" in seen(browser.get(path)).text
    assert planned.round_id in seen(browser.get("/rounds")).text


def test_stages_have_an_order() -> None:
    assert in_order({"upload": 1.0, "train": 2.0, "mine": 3.0}) == [("train", 2.0), ("upload", 1.0), ("other", 3.0)]


@pytest.fixture
def two_versions(catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog)


@pytest.mark.usefixtures("two_versions")
@each_row("path", EVERY_PAGE)
def test_nothing_runs_that_is_not_ours_nothing_is_loaded_from_elsewhere_and_reading_changes_nothing(
    browser: httpx.Client, asked: list[str], path: str
) -> None:
    asked.clear()
    answer = browser.get(path)
    assert not [question for question in asked if not question.startswith(("SELECT", "BEGIN", "PRAGMA"))]
    assert answer.status_code == 200
    assert HEADERS.items() <= {name.title(): value for name, value in answer.headers.items()}.items()
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    page = seen(answer)
    assert len(page.all("h1")) == 1
    for tag, found in page.tags:
        assert not any(name.startswith("on") or name == "style" for name in found), (tag, found)
        for name in ("src", "href", "action"):
            assert not re.match(r"(?i)\s*(https?:|//|javascript:|data:)", str(found.get(name, "/"))), (tag, found)
    assert all(script.get("src") for script in page.all("script"))
    assert not [found for found in page.all("form", method="post") if not found["action"]]


def test_hostile_words_are_words(browser: httpx.Client, catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    held = leased(catalog)
    told = {"stage": HOSTILE, "place": HOSTILE, "advice": HOSTILE, "log": [HOSTILE], "events": [HOSTILE]}
    catalog.fail_round(held.round.round_id, held.token, reason=HOSTILE, failure=told)
    catalog.set_alias("m", "shadow", 1, by=HOSTILE, reason=HOSTILE)
    catalog.pin("m", 1, by=HOSTILE, reason=HOSTILE)
    served = Served(HOSTILE, 1, HOSTILE, aliases=(HOSTILE,), reason=HOSTILE)
    part = Part(model=HOSTILE, version=1, numbers={"queue_requests": 1.0})
    does, counted = {"stage": HOSTILE, "round_id": HOSTILE}, {"head_version": 1, "waiting": 5, "waiting_for": HOSTILE}
    catalog.observed.report(Report(HOSTILE, "serving", HOSTILE, 5.0, serves=(served,), does=does, parts=(part,)))
    catalog.observed.report(Report("t", "trainer", HOSTILE, 5.0, faults=(HOSTILE,), models={"m": counted}))
    clock.pass_seconds(1.0)
    shown = 0
    for path in (*EVERY_PAGE, "/history?by=" + HOSTILE.replace("{", "%7B"), "/models/%3Cscript%3E", "/streams/%22%3E"):
        answer = browser.get(path)
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text
        shown += "alert(1)" in seen(answer).text
    assert shown >= 6, "the words were not shown at all"


@pytest.mark.covers("dist-cluster", "dist-input")
def test_the_tasks_of_a_cluster_are_listed_with_what_they_do_and_whom_they_wait_for(
    catalog: Catalog, browser: httpx.Client
) -> None:
    does = {"round_id": "r1", "stage": "train", "workers": 2}
    waits = [{"rank": 0, "waited_seconds": {"1": 2.5}}, {"rank": 1, "waited_seconds": {}}]
    catalog.observed.report(Report("a", "trainer", "a:1", 5.0, does={**does, "trainers": ["a", "b"], "members": waits}))
    catalog.observed.report(Report("b", "trainer", "b:1", 5.0, does={**does, "helps": True, "rank": 1}))
    catalog.observed.report(Report("c", "trainer", "c:1", 5.0, does={}))
    catalog.observed.report(Report("d", "trainer", "d:1", 5.0, does={**does, "round_id": "r2", "workers": 3}))
    servers = {"servers": 1, "workers": 2, "lost": ["worker 1: ended by signal 9"]}
    catalog.observed.report(
        Report("e", "trainer", "e:1", 5.0, does={**does, "round_id": "r3", "asynchronous": servers})
    )
    text = seen(browser.get("/serving")).text
    assert "r1: train, leads 2 workers of a, b; waited 2.5 s for worker 1" in text
    assert "r1: train, worker 1 of 2" in text
    assert "r2: train, 3 workers of this trainer" in text
    assert "r3: train, 1 parameter server and 2 workers; lost: worker 1: ended by signal 9" in text
    assert "free" in text


def test_the_runner_of_a_version_and_the_change_over_are_shown(catalog: Catalog, browser: httpx.Client) -> None:
    publish(catalog)
    served = Served("m", 1, "AVAILABLE", since=7.0, engine="onnx; late: 3 times as fast", runner="m-1, process 77")
    worked = {"runner_private_bytes": 23e6, "runner_batches_per_second": 2.0, "runner_examples_per_second": 9.0}
    part = Part(model="m", version=1, numbers=worked)
    gone, failed = Served("m", 7, "END"), Served("m", 8, "END", reason="out of memory")
    for name in ("a", "b"):
        catalog.observed.report(Report(name, "serving", "", 5.0, serves=(served, gone, failed), parts=(part,)))
    page = seen(browser.get("/serving"))
    rows = {str(one["id"]) for one in page.all("tr") if "id" in one}
    assert {"a-m-1", "a-m-8"} <= rows, "what failed stays"
    assert "a-m-7" not in rows
    assert "1 version " in page.text
    for words in ("onnx late: 3 times as fast", "m-1, process 77", "23 MB", " 4.5 ", "m 1 at"):
        assert words in page.text, words
    (marks,) = [json.loads(str(found["data-marks"])) for _, found in page.tags if "data-marks" in found]
    assert marks == [[7.0, "m 1"]], "of two replicas the first"


def test_a_stream_shows_its_newest_events(catalog: Catalog) -> None:
    class Ingest(ServiceLinks):
        def newest_events(self, stream: str, last: int) -> dict[str, list[dict[str, float]]]:
            return {"events": [{"x": float(number)} for number in range(last)]}

    place = Place("/streams/s", {"stream": "s"}, {}, "", "", "", "")
    told = streams.page(Reading(catalog, Ingest()), place)["newest"]
    assert (told[0], told[-1], len(told)) == ('{"x": 9.0}', '{"x": 0.0}', 10)
    fault = streams.page(Reading(catalog, ServiceLinks()), place)["newest_fault"]
    assert fault.endswith("REGISTRY_INGEST_URL is empty")


@pytest.mark.parametrize(
    ("events", "words", "place"),
    [
        ("learn", "1,000 events that only rolled-back versions have learned wait: the next round learns them again",
         "waiting"),
        ("leave_out", "1,000 events that only rolled-back versions have learned are left out: no version learns them",
         "left_out"),
    ],
)  # fmt: skip
def test_what_becomes_of_the_events_behind_a_rollback_is_chosen_and_told_in_the_same_words_everywhere(
    browser: httpx.Client, catalog: Catalog, events: str, words: str, place: str
) -> None:
    publish(catalog)
    publish(catalog)
    told = {"head_version": 2, "waiting": 0, "judged_before": 0, "left_out": [], "log_end": {"0": 20}}
    catalog.observed.report(Report("t", "trainer", "", 1.0, models={"m": told}))
    path = "/models/m/do/rollback"
    assert words in seen(browser.get(path)).text
    assert browser.post(path, data=form_of(browser, path, by="ada", events=events)).status_code == 303
    found = catalog.observed.account("m")
    assert {name: found["examples"][name] for name in ("trained", "left_out", "waiting")} == {
        "trained": 900, "left_out": 0, "waiting": 0, place: 1000,
    }  # fmt: skip
    behind = catalog.get_model("m").rolled_back_now()
    assert rolled_back_words(behind["events"], behind["examples"]) == words
    if place == "waiting":
        assert found["waiting"]["sentences"] == [words]
        assert f"{words}." in seen(browser.get("/models/m")).text
    else:
        assert [(entry["examples"], entry["reason"]) for entry in found["left_out"]] == [(1000, "rollback")]


def test_a_change_is_confirmed_with_what_it_will_do_and_stands_in_the_history(
    browser: httpx.Client, catalog: Catalog, clock: Clock
) -> None:
    publish(catalog)
    publish(catalog)
    clock.pass_seconds(1.0)
    asked = seen(browser.get("/models/m/do/rollback"))
    assert "Production of m moves back from version 2 to version 1, on every replica." in asked.text
    fields = form_of(browser, "/models/m/do/rollback", by="ada", reason="bad fares")
    done = browser.post("/models/m/do/rollback", data=fields)
    assert (done.status_code, done.headers["location"]) == (303, "/models/m?done=rollback")
    assert catalog.get_model("m").aliases["production"] == 1
    back = seen(browser.get("/models/m?done=rollback"))
    assert "Production has moved back." in back.text
    assert "ada rollback 1 bad fares" in back.text
    (entry, *_) = catalog.history(model="m")
    assert (entry.action, entry.by, entry.reason) == ("rollback", "ada", "bad fares")
    promote = "/models/m/versions/2/do/promote"
    assert browser.post(promote, data=form_of(browser, promote, by="ada")).status_code == 303
    assert catalog.get_model("m").aliases["production"] == 2
    for name in ("pause", "resume", "pin", "unpin"):
        path = f"/models/m/do/{name}"
        assert browser.post(path, data=form_of(browser, path, by="ada", reason="audit")).status_code == 303, name
    actions = {entry.action for entry in catalog.history(model="m", by="ada")}
    assert actions == {"unpin", "pin", "resume", "pause", "promote", "rollback"}
    assert seen(browser.get("/models/m/do/pause")).all("input", name="by", value="ada"), "the name is remembered"


def test_a_version_is_rebuilt_by_a_button_and_its_page_says_what_came_out(
    browser: httpx.Client, catalog: Catalog
) -> None:
    publish(catalog)
    path, page = "/models/m/versions/1/do/rebuild", "/models/m/versions/1"
    assert seen(browser.get(page)).all("a", href=path)
    assert "trains version 1 of m again from its lineage" in seen(browser.get(path)).text
    publish(catalog)
    done = browser.post(path, data=form_of(browser, path, by="ada", reason="audit"))
    assert (done.status_code, done.headers["location"]) == (303, f"{page}?done=rebuild")
    assert "It waits until a trainer is free." in seen(browser.get(f"{page}?done=rebuild")).text
    with browser.stream("GET", f"/live{page}") as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event: rebuild"))
        job = catalog.jobs.take("t1", "rebuild", ttl_seconds=10.0)
        assert job is not None
        assert next(line for line in lines if "t1 trains it again" in line)
        told = {"equal": False, "sentence": "m@1 is not equal", "metrics": {"auc": [0.75, 0.625]}, "differences": ["w"]}
        catalog.jobs.report(job.job_id, "t1", 1, state="done", progress=told, ttl_seconds=10.0)
        assert next(line for line in lines if "m@1 is not equal" in line)
    text = seen(browser.get(page)).text
    assert "auc 0.75 0.625" in text
    assert "Asked for by ada" in text
    assert [entry.action for entry in catalog.history(model="m", limit=2)] == ["rebuild_ended", "rebuild"]
    profile = "/models/m/do/profile"
    assert browser.post(profile, data=form_of(browser, profile, by="ada")).status_code == 303
    assert "to be traced already" in seen(browser.get(profile)).text


def test_a_form_counts_only_for_the_state_it_showed(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog)
    fields = form_of(browser, "/models/m/do/rollback", by="ada")
    publish(catalog)
    answer = browser.post("/models/m/do/rollback", data=fields)
    assert answer.status_code == 409
    assert "has moved to version 3 since this page was made" in seen(answer).text
    assert catalog.get_model("m").aliases["production"] == 3
    nobody = browser.post("/models/m/do/rollback", data=form_of(browser, "/models/m/do/rollback", by=" "))
    assert (nobody.status_code, "by must name the author" in nobody.text) == (400, True)
    catalog.pin("m", 3, by="ada", reason="")
    pinned = seen(browser.get("/models/m/do/rollback"))
    assert "production is pinned to version 3" in pinned.text
    assert not pinned.all("form")
    unheard = browser.post("/models/m/do/train", data=form_of(browser, "/models/m/do/train", by="ada"))
    assert (unheard.status_code, "REGISTRY_TRAINER_URL is empty" in unheard.text) == (503, True)
    assert not catalog.history(action="train"), "what was not done is not in the history"


def test_only_a_form_of_this_session_changes_anything(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog)
    path = "/models/m/do/rollback"
    good = form_of(browser, path, by="ada")
    own = f"http://{browser.base_url.host}:{browser.base_url.port}"
    tries: dict[str, Callable[[], httpx.Response]] = {
        "no token": lambda: browser.post(path, data={**good, "token": ""}),
        "another token": lambda: browser.post(path, data={**good, "token": "0" * 64}),
        "a token that is no ASCII": lambda: browser.post(path, data={**good, "token": "é" * 64}),
        "no cookie": lambda: plain_http.post(own + path, data=good, timeout=60),
        "another session": lambda: plain_http.post(
            own + path, data=good, cookies={"headrace_session": "a" * 32}, timeout=60
        ),
        "another site": lambda: browser.post(path, data=good, headers={"origin": "https://evil.example"}),
        "no origin": lambda: browser.post(path, data=good, headers={"origin": "null"}),
        "a sibling": lambda: browser.post(path, data=good, headers={"sec-fetch-site": "same-site"}),
        "JSON": lambda: browser.post(path, json=good),
        "another field": lambda: browser.post(path, data={**good, "version": "1"}),
        "a large one": lambda: browser.post(path, data={**good, "reason": "x" * 300_000}),
        "by GET": lambda: browser.get(path, params=good),
        "no JSON to try": lambda: browser.post("/models/m/versions/1/try", data={"request": "{}"}),
    }
    statuses = {name: answer().status_code for name, answer in tries.items()}
    assert all(status in (400, 403, 409) for status in statuses.values()), statuses
    assert catalog.get_model("m").aliases["production"] == 2
    assert browser.post(path, data=good, headers={"origin": own, "sec-fetch-site": "same-origin"}).status_code == 303


def test_numbers_change_without_a_reload_and_the_stream_ends_with_the_registry(
    browser: httpx.Client, catalog: Catalog
) -> None:
    with browser.stream("GET", "/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event: loop"))
        catalog.observed.report(Report("i", "ingest", "", 5.0, numbers={"accepted_events_per_second": 4321.0}))
        assert next(line for line in lines if "4,321" in line).startswith("data: ")
        catalog.end_watches()
        assert not [line for line in lines if line.startswith("event: troubles")]


def test_live_pages_are_bounded_and_the_oldest_gives_way_to_a_new_one(browser: httpx.Client, catalog: Catalog) -> None:
    limits = httpx.Limits(max_connections=None)
    with plain_http.client(base_url=browser.base_url, limits=limits, timeout=60) as many:
        reading: list[Iterator[str]] = []
        for _ in range(MAX_LIVE + 1):
            answer = many.send(many.build_request("GET", "/live/history"), stream=True)
            reading.append(answer.iter_lines())
            assert next(reading[-1]), "it is open before the next one is"
        assert list(reading[0]) is not None, "it came to its end"
        assert all(next(line for line in lines if line) for lines in reading[1:])
        catalog.end_watches()


def test_history_is_exported_and_no_cell_is_a_formula(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    catalog.change_model("m", "pause", by="=cmd()", reason="x")
    lines = browser.get("/history.csv", params={"action": "pause"}).text.splitlines()
    assert lines[0] == "at,by,action,model,stream,version,detail,reason"
    assert ",'=cmd(),pause,m," in lines[1]
    entries = browser.get("/history.json").json()["entries"]
    assert [entry["action"] for entry in entries] == ["pause", "apply", "promote"]


def test_a_long_history_is_read_page_by_page_and_an_older_page_stays_as_it_is(
    browser: httpx.Client, catalog: Catalog, clock: Clock
) -> None:
    def rows(link: str) -> tuple[list[str], str]:
        page = seen(browser.get(f"/history{link}"))
        found = [str(one["id"]) for one in page.all("tr") if "id" in one]
        links = [str(one["href"]) for one in page.all("a") if "before=" in str(one["href"])]
        return found, next((link for link in links if link.startswith("?")), "")

    for _ in range(3):
        publish(catalog)
        catalog.note("train", by="ada", reason="now", model="m")
        clock.pass_seconds(1.0)
    clock.now -= 100.0  # a clock that is set back loses no entry
    publish(catalog)
    every, none = rows("")
    pages, link = [], "?limit=2"
    while link:
        found, link = rows(link)
        pages.append((found, link))
    assert [one for found, _ in pages for one in found] == every
    assert (len(every), len(set(every)), none) == (8, 8, "")
    catalog.note("train", by="ada", reason="more", model="m")
    assert rows(pages[0][1]) == pages[1]
    assert [entry["reason"] for entry in browser.get(f"/v1/history{pages[0][1]}").json()["entries"]] == ["now", ""]
    assert browser.get("/history?before=x").status_code == 400
    assert browser.get("/history.csv?limit=1&before=1.2").text.count("\n") == 2


def test_rounds_and_schemas_are_read_page_by_page(browser: httpx.Client, catalog: Catalog, tmp_path: Path) -> None:
    publish(catalog)
    multiply(tmp_path, versions=100, models=1)
    assert walked(browser, "/rounds", "before")[1] == [f"m-{number:06d}" for number in range(100, 0, -1)]
    assert "The newest" in seen(browser.get("/rounds?before=m-000050")).text
    assert browser.get("/rounds?before=nobody").status_code == 404
    features: list[dict[str, object]] = [{"name": "x", "dtype": "float32"}]
    for number in range(25):
        features.append({"name": f"x{number}", "dtype": "float32", "required": False, "default": 0.0})
        catalog.register_stream("s", json.dumps({"features": features, "labels": SCHEMA["labels"]}))
    text, _ = walked(browser, "/streams/s", "schema")
    assert re.findall("<h3>Version ([0-9]+)</h3>", text) == [str(number) for number in range(26, 0, -1)]
    assert "new: x5<" in text
    assert browser.get("/streams/s?schema=all").status_code == 400


def test_dead_letters_are_read_page_by_page(catalog: Catalog) -> None:
    class Ingest(ServiceLinks):
        def dead_letters(self, stream: str, limit: int, before: str = "") -> dict[str, list[dict[str, int]]]:
            end = int(before.split(".")[0]) if before else 120
            return {"dead_letters": [{"offset": at, "index": 3} for at in range(end - 1, -1, -1)][:limit]}

    class Few(ServiceLinks):
        def dead_letters(self, stream: str, limit: int, before: str = "") -> dict[str, list[dict[str, int]]]:
            return {"dead_letters": [{"offset": 0, "index": at} for at in (2, 1, 0)]}

        def stream_statistics(self, stream: str, last: int) -> dict[str, Any]:
            return {"events": 0, "fields": {}}

    def told(query: dict[str, str]) -> dict[str, Any]:
        return streams.page(Reading(catalog, Ingest()), Place("/streams/s", {"stream": "s"}, query, "", "", "", ""))

    pages = [told(query) for query in ({}, {"letters": "70.3"}, {"letters": "20.3"})]
    assert [len(page["letters"]) for page in pages] == [50, 50, 20]
    assert [page["letter_count"] for page in pages] == ["over 50"] * 3
    few = streams.page(Reading(catalog, Few()), Place("/streams/s", {"stream": "s"}, {}, "", "", "", ""))
    assert few["letter_count"] == "3", "letters, not records of the log"
    assert [page["older_letters"] for page in pages] == ["?letters=70.3#letters", "?letters=20.3#letters", ""]


def test_a_versions_page_lists_its_signatures_and_offers_a_picture_to_one_that_takes_pictures(catalog: Catalog) -> None:
    image = {"format": "png", "height": 8, "width": 8, "channels": 1}
    picture = {"name": "picture", "dtype": "bytes", "image": image}
    raw = {"name": "raw", "dtype": "bytes", "tensor": {"dtype": "float32", "shape": [2]}}
    features = [{"name": "x", "dtype": "float32"}, picture, raw, {"name": "grid", "dtype": "int64", "shape": [2, 3]}]
    catalog.register_stream("pictures", json.dumps({"features": features, "labels": SCHEMA["labels"]}))
    takes = saved_model(inputs={"picture": ("DT_STRING", (-1, 3))}, outputs={"y": ("DT_STRING", (-1, 3))})
    contents = {"saved_model/saved_model.pb": takes}
    publish(catalog, contents=contents, environment={"warnings": {"values of x": "x is <b>odd</b>"}})
    place = Place("/models/m/versions/1", {"model": "m", "version": "1"}, {}, "", "", "", "")
    told = version_page.page(Reading(catalog, ServiceLinks()), place)
    assert [(one["side"], one["name"], one["dtype"], one["shape"]) for one in told["signatures"]] == [
        ("inputs", "picture", "string", "[?, 3]"), ("outputs", "y", "string", "[?, 3]"),
    ]  # fmt: skip
    assert told["warnings"] == ["x is <b>odd</b>"]
    schema = Schema.from_json(catalog.get_stream("pictures").schema_json)
    offered = {feature.name: example_of(feature) for feature in schema.features}
    assert (offered["x"], offered["grid"]) == (0.0, [[0, 0, 0], [0, 0, 0]])
    assert base64.b64decode(cast("dict[str, str]", offered["picture"])["b64"]).startswith(b"\x89PNG")
    assert offered["raw"] == {"b64": base64.b64encode(bytes(8)).decode()}


@pytest.mark.covers("eco-tfdv")
def test_a_versions_page_says_what_has_drifted_in_what_comes_in_and_what_is_asked(catalog: Catalog) -> None:
    random = np.random.default_rng(1)

    def document(mean: float, **more: int) -> dict[str, Any]:
        arrays = {"distance": random.normal(mean, 1.0, 800), "<b>": random.choice(["AA", "BB"], 800)}
        return {**to_document(of_arrays(arrays)), **more}

    class Ingest(ServiceLinks):
        def stream_statistics(self, stream: str, last: int) -> dict[str, Any]:
            return document(4.0, events=last)

        def request_statistics(self, stream: str, model: str, last: int) -> dict[str, Any]:
            if model == "m":
                return document(0.0, predictions=800)
            raise NotFound("nothing is sampled")

    publish(catalog, contents={"statistics/round.json": json.dumps(document(0.0)).encode()})
    with browsing(catalog, service_links=Ingest(), secret=b"s" * 32) as browser:
        (part,) = [found["hx-get"] for _, found in seen(browser.get("/models/m/versions/1")).tags if "hx-get" in found]
        told = html.unescape(seen(browser.get(str(part))).text)
    assert "Against the newest events (2,000 events): distance has drifted largely: PSI" in told
    assert "Against serving's requests (800 predictions): no field has drifted: of 2 the furthest is" in told
    assert "<b>" in told
    place = Place("", {"model": "m", "version": "1"}, {}, "", "", "", "")
    others = statistics.since(Reading(catalog, ServiceLinks()), place)["others"]
    assert all("REGISTRY_INGEST_URL is empty" in one["sentences"][0] for one in others)


def test_pages_of_500_versions_and_50_models_are_bounded(
    browser: httpx.Client, catalog: Catalog, asked: list[str], tmp_path: Path
) -> None:
    curves = {"candidate": {"late": {"roc": [[place / 100, place / 100] for place in range(101)]}}}
    slices = [
        {"by": ["x"], "where": {"x": f"{place}"}, "count": 9, "metrics": {"candidate": {"auc": 0.5}}}
        for place in range(30)
    ]
    publish(catalog, evaluation={"curves": curves, "slices": slices})
    multiply(tmp_path, versions=500, models=50)
    cost, rows = {}, {}
    for path, most_bytes in MOST_BYTES.items():
        asked.clear()
        answer = browser.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < most_bytes, path
        cost[path], rows[path] = len(asked), answer.text.count("<tr")
    assert max(cost.values()) <= 42, cost
    assert rows["/"] >= 50
    assert "model-49" in browser.get("/").text
    assert 100 < rows["/models/m"] < 120, "a page of the newest"
    assert "The newest 100 of 500." in seen(browser.get("/models/m")).text
    shown = [row for row in walked(browser, "/models/m", "before")[1] if row.startswith("v")]
    assert shown == [f"v{number}" for number in range(500, 0, -1)]


def test_the_first_page_is_small_and_its_files_are_kept(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    answer = browser.get("/")
    page = seen(answer)
    loaded = [str(found["src"]) for found in page.all("script")] + [str(found["href"]) for found in page.all("link")]
    sizes = [len(answer.content)]
    for path in loaded:
        with browser.stream("GET", path) as file:
            assert file.status_code == 200
            sizes.append(sum(len(part) for part in file.iter_raw()))
    assert sum(sizes) < 100_000
    assert browser.get("/static/README.md").status_code == 404
    assert browser.get("/static/..%2f..%2fdoor.py").status_code == 404


@each_row(
    ("path", "status", "words"),
    [
        ("/models/nobody", 404, "model nobody is not registered"),
        ("/models/m/versions/9", 404, "no version 9"),
        ("/models/m/versions/x", 404, "there is no version"),
        ("/models/m/versions/9999999999999999999999", 404, "there is no version"),
        ("/streams/nobody", 404, "nobody"),
        ("/history?limit=x", 400, "limit is &#39;x&#39;, expected a positive number"),
        ("/history?color=red", 400, "unknown query parameter color"),
    ],
)
def test_a_missing_model_or_version_has_a_page_that_names_it(
    browser: httpx.Client, path: str, status: int, words: str
) -> None:
    answer = browser.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert words in answer.text
