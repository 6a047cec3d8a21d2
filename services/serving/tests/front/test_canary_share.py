"""A canary answers its share of the requests, by a hash of the key that keeps each key on its side."""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protos import queue_pb2
from services.serving.front.split import Caller, is_canarys
from services.serving.tests.support.fake_runner import FakeRunner, row_sums
from services.serving.tests.support.front_process import LoggedFront
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import ReplicaState, Split, decode, encode
from testing.redis_server import RedisServer
from testing.waiting import wait_until

_KEYS = [f"user-{number}".encode() for number in range(20_000)]
_ROW = {"instances": [[1, 2]]}


def _of_canary(share: float, *, version: int = 4, by: str = "key") -> set[bytes]:
    split = Split(version, share, by)
    asked = (Caller(key, b"tag") if by == "key" else Caller(b"", key) for key in _KEYS)
    return {key for key, asks in zip(_KEYS, asked, strict=True) if is_canarys(split, "m", asks)}


def _is_likely(count: int, share: float) -> bool:
    """Within four standard deviations of the binomial distribution."""
    return abs(count - len(_KEYS) * share) <= 4 * math.sqrt(len(_KEYS) * share * (1 - share))


@pytest.mark.parametrize("by", ["key", "request"])
def test_each_stage_has_its_share_of_the_keys_and_keeps_those_of_the_stage_before(by: str) -> None:
    shares = (1.0, 10.0, 50.0, 100.0)
    stages = [_of_canary(share, by=by) for share in shares]
    for share, stage in zip(shares, stages, strict=True):
        assert _is_likely(len(stage), share / 100)
    assert all(smaller < larger for smaller, larger in itertools.pairwise(stages))
    assert stages[-1] == set(_KEYS)
    first = int.from_bytes(hashlib.blake2b(b"m/4/user-0", digest_size=8).digest(), "big") / 2**64
    assert [b"user-0" in stage for stage in stages] == [first < share / 100 for share in shares]


def test_the_next_canary_has_other_keys_and_a_request_without_a_key_is_productions() -> None:
    both = _of_canary(10.0) & _of_canary(10.0, version=5)
    assert _is_likely(len(both), 0.1 * 0.1)
    assert not is_canarys(Split(4, 100.0, "key"), "m", Caller(b"", b"tag"))
    assert is_canarys(Split(4, 100.0, "key"), "m", Caller(b" a%20b ,c", b"tag"))


@pytest.fixture(scope="module")
def redis_url(redis_beside: RedisServer) -> Iterator[str]:
    with (
        FakeRunner(redis_beside.url, row_sums, targets=("alias/production", "version/3")),
        FakeRunner(redis_beside.url, row_sums, version=4, targets=("alias/canary",)),
    ):
        yield redis_beside.url


def _state(share: float, *, logs_inputs: bool = False) -> ReplicaState:
    state = replica_state(version(), version(4, aliases=("canary",)), aliases={"production": 3, "canary": 4})
    state = replace(state, splits={"m": Split(4, share, "key", logs_inputs)})
    return decode(encode(state))


def _answered(redis_url: str, share: float, tmp_path: Path) -> tuple[list[str], list[tuple[str, str, bool]]]:
    """The versions that answered a request with a key, without it, and for the label production; and what was logged:
    (key, alias, is_shadow)."""
    with LoggedFront(redis_url, tmp_path, _state(share)) as front:
        asked = [(":predict", {"x-prediction-key": "a"}), (":predict", {}), ("/labels/production:predict", {})]
        answers = [front.post(_ROW, f"/v1/models/m{path}", headers=headers) for path, headers in asked]
        shadow = front.shadow
        assert shadow is not None
        wait_until(lambda: any(list(metric.samples) for metric in shadow.collect()), "the shadow has answered")
    records = front.records()
    return (
        [answer.headers["headrace-version"] for answer in answers],
        [(one.prediction_keys[0], one.alias, one.is_shadow) for one in records],
    )


def test_a_canary_answers_keyed_requests_and_production_is_scored_on_them_too(redis_url: str, tmp_path: Path) -> None:
    versions, logged = _answered(redis_url, 100.0, tmp_path)
    assert versions == ["4", "3", "3"]
    assert logged == [("a", "canary", False), ("a", "production", True)]


def test_a_canary_of_share_0_answers_nobody_and_is_scored_on_what_production_answers(
    redis_url: str, tmp_path: Path
) -> None:
    versions, logged = _answered(redis_url, 0.0, tmp_path)
    assert versions == ["3", "3", "3"]
    assert logged == [("a", "production", False), ("a", "canary", True)]


def test_an_error_of_a_canary_is_logged_by_key_and_inputs_are_where_slices_are_judged(
    redis_url: str, tmp_path: Path
) -> None:
    def failing(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
        raise RequestFailed(Code.INTERNAL, "a table is gone")

    with (
        FakeRunner(redis_url, failing, version=4, targets=("alias/failing",)),
        LoggedFront(redis_url, tmp_path, _failing_state()) as front,
    ):
        headers = {"x-prediction-key": "a"}
        answer = front.post(_ROW, "/v1/models/m/labels/failing:predict", headers=headers)
        assert answer.status_code == 500
        front.post(_ROW, headers=headers)
    failed, answered, *_ = front.records()
    assert (list(failed.prediction_keys), failed.error_code, failed.alias) == (["a"], int(Code.INTERNAL), "failing")
    assert list(answered.predict_log.request.inputs) == ["x"]


def _failing_state() -> ReplicaState:
    state = _state(0.0, logs_inputs=True)
    versions = (version(), version(4, aliases=("failing",)))
    return replace(state, versions=versions, models={"m": {"production": 3, "failing": 4}})
