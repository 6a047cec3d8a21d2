"""Webhooks: signed, in order, tried again, given up openly, and not told twice by a registry that was started again."""

import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from common.errors import InvalidInput
from common.process.lifecycle import Stop
from common.process.retry import Backoff
from services.registry.catalog import Catalog
from services.registry.tests.building import leased, publish
from services.registry.webhooks.hooks import EVENTS, Webhook, read_webhooks
from services.registry.webhooks.sender import SIGNATURE, PlacesInFiles, Webhooks
from testing.rows import each_row
from testing.waiting import wait_until

SECRET = "a secret of the test"
SOON = Backoff(first_seconds=0.01, longest_seconds=0.02)


class Receiver:
    """Takes what it is told, after so many refusals."""

    def __init__(self) -> None:
        self.refusals = 0
        self.told: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                moment = dict(part.split("=", 1) for part in self.headers[SIGNATURE].split(","))
                expected = hmac.new(SECRET.encode(), moment["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
                is_taken = hmac.compare_digest(expected, moment["v1"]) and outer.refusals <= 0
                outer.refusals -= 1
                if is_taken:
                    outer.told.append(json.loads(body))
                self.send_response(204 if is_taken else 500)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def kinds(self) -> list[str]:
        return [event["type"].removeprefix("headrace.") for event in self.told]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


def started(hook: Webhook, catalog: Catalog, tmp_path: Path, *, timeout_seconds: float = 10.0) -> tuple[Webhooks, Stop]:
    stop, places = Stop(), PlacesInFiles(tmp_path / "webhooks")
    webhooks = Webhooks((hook,), catalog, places, stop=stop, backoff=SOON, timeout_seconds=timeout_seconds)
    webhooks.start()
    wait_until(lambda: (tmp_path / "webhooks" / f"{hook.name}.json").exists(), "it has a place in the log")
    return webhooks, stop


def stopped(stop: Stop, catalog: Catalog) -> None:
    stop.request()
    catalog.wake_watchers()
    wait_until(lambda: not any(one.name == "webhook-ops" for one in threading.enumerate()), "its thread has ended")


def test_events_arrive_in_order_signed_and_once(receiver: Receiver, catalog: Catalog, tmp_path: Path) -> None:
    publish(catalog)  # before anybody asked
    hook = Webhook("ops", f"http://127.0.0.1:{receiver.server.server_port}/in?x=1", SECRET)
    webhooks, stop = started(hook, catalog, tmp_path)
    receiver.refusals = 2
    publish(catalog, auc=0.72)
    catalog.rollback("m", by="ada", reason="a look")
    wait_until(lambda: len(receiver.told) == 4, "all is told")
    assert sorted(receiver.kinds[:3]) == ["promote", "verdict", "version"]
    assert receiver.kinds[3] == "rollback"
    event = next(one for one in receiver.told if one["type"] == "headrace.verdict")
    assert (event["specversion"], event["subject"], event["data"]["decision"]) == ("1.0", "m@2", "promote")
    wait_until(lambda: webhooks.listed()[0]["delivered"] == 4, "it is listed")
    first = webhooks.listed()[0]["results"][-1]
    assert (first["outcome"], first["attempts"], first["answer"]) == ("delivered", 3, "204")
    assert SECRET not in json.dumps(webhooks.listed())
    wait_until(
        lambda: json.loads((tmp_path / "webhooks" / "ops.json").read_text())["revision"] == catalog.newest_revision,
        "its place is written",
    )
    stopped(stop, catalog)
    _, stop = started(hook, catalog, tmp_path)
    held = leased(catalog)
    catalog.fail_round(held.round.round_id, held.token, reason="the loss is not a number", failure={})
    wait_until(lambda: len(receiver.told) == 5, "the failure is told, and nothing twice")
    assert receiver.told[4]["data"]["reason"] == "the loss is not a number"
    stopped(stop, catalog)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 100 Continue\r\n\r\n", b"x"])
def test_a_receiver_that_never_ends_its_answer_is_given_up(catalog: Catalog, tmp_path: Path, answer: bytes) -> None:
    over = threading.Event()

    def trickle(wire: socket.socket) -> None:
        with wire, contextlib.suppress(OSError):
            while not over.wait(0.01):
                wire.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as door:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=trickle, args=(door.accept()[0],), daemon=True).start()

        threading.Thread(target=take, daemon=True).start()
        hook = Webhook("ops", f"http://127.0.0.1:{door.getsockname()[1]}/", SECRET, ("verdict",))
        webhooks, stop = started(hook, catalog, tmp_path, timeout_seconds=0.1)
        publish(catalog)
        wait_until(lambda: webhooks.listed()[0]["given_up"] == 1, "it is given up")
        over.set()
        stopped(stop, catalog)


def test_an_event_without_a_receiver_is_given_up_openly_and_the_next_arrives(
    receiver: Receiver, catalog: Catalog, tmp_path: Path
) -> None:
    hook = Webhook("ops", f"http://127.0.0.1:{receiver.server.server_port}/", SECRET, ("verdict",), ("m",))
    webhooks, stop = started(hook, catalog, tmp_path)
    receiver.refusals = 10
    publish(catalog)
    publish(catalog, auc=0.72)
    wait_until(lambda: len(receiver.told) == 1, "the second is told")
    wait_until(lambda: webhooks.listed()[0]["delivered"] == 1, "it is listed")
    assert [one["outcome"] for one in webhooks.listed()[0]["results"]] == ["delivered", "given_up"]
    stopped(stop, catalog)


@each_row(
    ("changes", "said"),
    [
        ({"url": "ftp://x"}, "url"), ({"secret": "short"}, "16 characters"), ({"events": ["lunch"]}, "lunch"),
        ({"colour": 1}, "colour"), ({"name": "../x"}, "name"), ({"url": "http://x:99999/"}, "url"),
        ({"url": "http://[x/"}, "url"), ({"url": "http://x/a b"}, "url"), ({"url": f"http://{'x' * 64}/"}, "url"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_stops_the_start(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    good = {"name": "ops", "url": "https://example.com/in", "secret": SECRET}
    path = tmp_path / "webhooks.yaml"
    path.write_text(json.dumps({"webhooks": [good]}))
    assert read_webhooks(path) == (Webhook("ops", "https://example.com/in", SECRET, EVENTS),)
    path.write_text(json.dumps({"webhooks": [good | changes]}))
    with pytest.raises(InvalidInput, match=said):
        read_webhooks(path)
