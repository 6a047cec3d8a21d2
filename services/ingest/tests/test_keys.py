"""The window of idempotency keys: bounded by count and age, and unmoved by hearing of a record twice."""

from common.eventlog.base import RecordHeaders, RecordInfo, RequestMark
from services.ingest.once.keys import Answer, KeyWindow, Refusal, RequestKey


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _record(offset: int, *marks: tuple[RequestKey, int], at: float = 1000.0) -> RecordInfo:
    requests = tuple(RequestMark(key.key_digest, key.body_digest, count) for key, count in marks)
    return RecordInfo(0, offset, 100, RecordHeaders(1, 10, at, b"c" * 16, requests))


def _window(count: int = 100) -> tuple[KeyWindow, _Clock]:
    clock = _Clock()
    return KeyWindow(window_seconds=60.0, window_count=count, clock=clock), clock


KEY, OTHER = RequestKey.of("k", b"body"), RequestKey.of("l", b"body")


def test_the_events_of_a_request_are_counted_over_its_records_once() -> None:
    window, _ = _window()
    for record in (_record(4, (KEY, 7)), _record(5, (KEY, 3), (OTHER, 1)), _record(4, (KEY, 7))):
        window.learn("flights", "examples.flights", record)
    assert window.in_log("flights", KEY.key_digest, ("examples.flights", 0)) == (10, 6)
    assert window.in_log("flights", OTHER.key_digest, ("examples.flights", 0)) == (1, 6)
    assert window.in_log("flights", KEY.key_digest, ("examples.flights", 1)) == (0, 0)
    assert window.in_log("trains", KEY.key_digest, ("examples.flights", 0)) == (0, 0)


def test_the_oldest_keys_are_forgotten_past_the_count() -> None:
    window, _ = _window(count=3)
    keys = [RequestKey.of(str(number), b"") for number in range(5)]
    for offset, key in enumerate(keys):
        window.learn("flights", "examples.flights", _record(offset, (key, 1)))
    assert [window.find("flights", key.key_digest) is not None for key in keys] == [False, False, True, True, True]
    window.keep_answer("flights", keys[2], Answer(1, (), {0: 1}), schema_version=1)
    window.learn("flights", "examples.flights", _record(5, (KEY, 1)))
    assert [window.find("flights", key.key_digest) is not None for key in keys[2:]] == [True, False, True]


def test_keys_are_forgotten_past_the_age() -> None:
    window, clock = _window()
    window.learn("flights", "examples.flights", _record(0, (KEY, 1), at=1000.0))
    window.learn("flights", "examples.flights", _record(1, (OTHER, 1), at=1050.0))
    clock.now = 1061.0
    assert window.find("flights", KEY.key_digest) is None
    assert window.find("flights", OTHER.key_digest) is not None
    clock.now = 1111.0
    assert window.find("flights", OTHER.key_digest) is None
    assert len(window) == 0


def test_an_answer_is_kept_as_a_duplicate_unless_it_is_very_long() -> None:
    window, _ = _window()
    window.keep_answer("flights", KEY, Answer(1, (), {0: 1}), schema_version=1)
    known = window.find("flights", KEY.key_digest)
    assert known is not None
    assert known.answer == Answer(1, (), {0: 1}, duplicate=True)
    refused = tuple(Refusal(index, "bad") for index in range(2000))
    window.keep_answer("flights", OTHER, Answer(1, refused, {0: 1}), schema_version=1)
    assert window.find("flights", OTHER.key_digest) is None


def test_keys_and_bodies_have_digests_of_their_own() -> None:
    assert RequestKey.of("k", b"a").key_digest == RequestKey.of("k", b"b").key_digest
    assert RequestKey.of("k", b"a").body_digest != RequestKey.of("k", b"b").body_digest
    assert (len(KEY.key_digest), len(KEY.body_digest)) == (16, 8)
