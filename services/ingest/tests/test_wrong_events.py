"""An event with a value of a wrong type at any of its keys: refused with the place, and every other one is taken."""

import asyncio
import json
from typing import Any

import httpx

from common.process.health import Health
from services.ingest.doors.http_api import create_ingest_app
from services.ingest.tests.conftest import World
from testing.rows import each_row
from testing.wrong_values import JSON_VALUES, wrong

SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "number", "dtype": "float32", "aliases": ["num ber"]},
        {"name": "word", "dtype": "string", "vocabulary": ["AA", "UA"]},
        {"name": "yes", "dtype": "int64", "min": 0, "max": 1, "yes_no": True},
        {"name": "pair", "dtype": "float32", "shape": [2]},
        {"name": "tags", "dtype": "string", "shape": [None]},
        {"name": "counts", "dtype": "int64", "shape": [None], "weights_of": "tags"},
        {"name": "steps", "dtype": "float32", "shape": [None, 2]},
        {"name": "rows", "dtype": "string", "shape": [None, None]},
        {"name": "blob", "dtype": "bytes"},
        {"name": "scan", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape": [2]}},
        {"name": "photo", "dtype": "bytes", "required": False, "image": {"height": 1, "width": 1}},
        {"name": "hour", "dtype": "int64"},
        {"name": "who", "dtype": "string"},
    ],
    "labels": [{"name": "late", "dtype": "int64", "required": False}],
    "event_time": "hour",
    "key": "who",
}
EVENT: dict[str, Any] = {
    "number": 1.5, "word": "AA", "yes": "no", "pair": [1, 2], "tags": ["a"], "counts": [3], "steps": [[1, 2]],
    "rows": [["a"], []], "blob": {"b64": "AA=="}, "scan": {"b64": "AAA="}, "photo": {"b64": "AA=="}, "hour": 5,
    "who": "ada", "late": 1,
}  # fmt: skip


@each_row("on_invalid", ["reject", "deadletter"])
@each_row("form", ["json", "ndjson"])
def test_bodies_with_a_value_of_a_wrong_type(world: World, on_invalid: str, form: str) -> None:
    world.registry.register("every", SCHEMA)
    app = create_ingest_app(world.intake(), Health())
    whole = {"events": [EVENT | {"photo": None}]} if form == "json" else EVENT
    headers = {"content-type": "application/json" if form == "json" else "application/x-ndjson"}
    url = f"/v1/streams/every/events?on_invalid={on_invalid}"

    async def send_all() -> set[int]:
        statuses = set()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ingest") as client:
            for place, given in wrong(whole, JSON_VALUES, every=2):
                answer = await client.post(url, content=json.dumps(given), headers=headers)
                statuses.add(answer.status_code)
                assert answer.status_code in (200, 400), f"{place}: {answer.text}"
                assert answer.status_code == 200 or answer.json()["error"]["message"], place
        return statuses

    is_all_dead = (form, on_invalid) == ("ndjson", "deadletter")  # a line is an event by itself
    assert asyncio.run(send_all()) == ({200} if is_all_dead else {200, 400})
