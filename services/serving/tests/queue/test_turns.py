"""Whose request is next. Shares are counted here, row by row; a runner takes what lies in the queue in turn."""

from collections import Counter, deque

from services.serving.queue.turns import Turns
from services.serving.wire.limits import LONG_ROWS
from testing.rows import each_row


class Line:
    """A queue and its front, without either: `answer` ends the oldest request in the queue."""

    def __init__(self, runners: int = 1) -> None:
        self.turns = Turns()
        self.turns.follow(at_once=16, runners=runners)
        self.counted: dict[bytes, int] = {}
        self.queue: deque[bytes] = deque()
        self.requests: dict[bytes, tuple[str, int]] = {}

    def send(self, principal: str, rows: int = 1) -> bytes:
        request_id = b"%d" % len(self.requests)
        self.requests[request_id] = principal, rows
        self.counted[request_id] = self.turns.begin(principal, request_id, rows)
        if self.counted[request_id]:
            self.queue.append(request_id)
        return request_id

    def answer(self) -> tuple[str, int]:
        return self.end(self.queue.popleft())

    def end(self, request_id: bytes) -> tuple[str, int]:
        principal, rows = self.requests[request_id]
        for following, counted in self.turns.end(principal, request_id, self.counted[request_id]):
            self.counted[following] = counted
            self.queue.append(following)
        return principal, rows


@each_row(
    "rows", [{"flood": 1, "other": 1}, {"flood": 40, "other": 3}, {"flood": 1000, "other": 1}, {"a": 7, "b": 5, "c": 1}]
)
def test_principals_that_wait_have_equal_shares_of_rows(rows: dict[str, int]) -> None:
    line, served = Line(), Counter[str]()
    for principal, count in rows.items():  # the first one's line is there before the others come
        for _ in range(20_000 // count):
            line.send(principal, count)
    already_sent = 2 * 16 + 1000
    while all(principal in line.turns.waiting() for principal in rows):
        principal, count = line.answer()
        served[principal] += count
    spread = max(served.values()) - min(served.values())
    assert spread <= already_sent + 2 * (16 + max(rows.values()))
    assert min(served.values()) > 10_000


def test_one_alone_fills_the_queue_and_waits_for_nobody() -> None:
    line = Line(runners=3)
    sent = [line.send("alone") for _ in range(200)]
    assert len(line.queue) == 2 * 16 * 3
    assert [line.answer()[0] for _ in range(200)] == ["alone"] * 200
    assert len(sent) == 200
    assert not line.turns.waiting()


def test_a_request_of_millions_of_rows_takes_no_room_from_others_and_the_next_one_waits() -> None:
    line = Line()
    line.send("flood", LONG_ROWS + 1)
    assert not line.counted[line.send("flood", 100 * LONG_ROWS)]
    for _ in range(40):
        line.send("other")
    assert Counter(line.requests[request_id][0] for request_id in line.queue) == {"flood": 1, "other": 32}
    assert line.turns.waiting() == {"flood": 1, "other": 8}
    line.answer()
    assert line.requests[line.queue[-1]] == ("flood", 100 * LONG_ROWS)


def test_who_leaves_the_line_is_not_sent() -> None:
    line = Line()
    for _ in range(32):
        line.send("flood")
    gone, stays = line.send("other"), line.send("other")
    line.end(gone)
    assert line.turns.waiting() == {"other": 1}
    line.answer()
    assert line.queue[-1] == stays
    assert not line.turns.waiting()
