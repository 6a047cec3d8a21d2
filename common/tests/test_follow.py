"""The registry is followed across breaks: each connection begins anew, and nothing ends the follower but its stop."""

from collections.abc import Callable, Iterator

from common.errors import NotFound, Overloaded, Unavailable
from common.process.lifecycle import Stop
from common.registry.catalog import Change, ChangeKind
from common.registry.follow import follow


def _change(kind: ChangeKind, name: str = "") -> Change:
    return Change(7, kind, name, 0, "", 0.0)


class _Registry:
    """Each connection gives what its script says, the last one for ever."""

    def __init__(self, *connections: Callable[[], Iterator[Change]]) -> None:
        self._connections = list(connections)
        self.revisions: list[int] = []

    def watch(self, since_revision: int = 0) -> Iterator[Change]:
        self.revisions.append(since_revision)
        yield _change(ChangeKind.RESET)
        yield from self._connections.pop(0)()


class _Unwaiting(Stop):
    """Its waits are over at once; it keeps how long they would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_seconds: float) -> bool:
        self.waits.append(timeout_seconds)
        return self.is_requested()


def test_every_connection_begins_with_everything_and_every_break_is_told() -> None:
    stop, heard, reasons = _Unwaiting(), list[str](), list[str]()

    def breaks() -> Iterator[Change]:
        yield _change(ChangeKind.MODEL, "m")
        yield _change(ChangeKind.HEARTBEAT)
        raise Unavailable("the connection broke")

    def is_full() -> Iterator[Change]:
        raise Overloaded("too many watchers")
        yield

    def has_a_fault() -> Iterator[Change]:
        raise ZeroDivisionError
        yield

    def ends() -> Iterator[Change]:
        yield from ()

    def last() -> Iterator[Change]:
        yield _change(ChangeKind.STREAM, "s")
        stop.request()
        yield _change(ChangeKind.STREAM, "not told")

    registry = _Registry(breaks, is_full, has_a_fault, ends, last)
    follow(registry, lambda change: heard.append(change.kind + change.name), stop=stop, on_away=reasons.append)
    assert heard == ["reset", "modelm", "reset", "reset", "reset", "reset", "streams"]
    assert reasons == [
        "the connection broke", "too many watchers", "following the registry failed unexpectedly",
        "the registry ended the watch",
    ]  # fmt: skip
    assert len(set(registry.revisions)) == 1
    assert max(stop.waits) <= 0.1, "each connection achieved something"


def test_waits_grow_while_nothing_is_heard_and_a_failing_listener_is_a_break() -> None:
    stop, tries = _Unwaiting(), list[Change]()

    def listen(change: Change) -> None:
        tries.append(change)
        if len(tries) == 9:
            stop.request()
        raise NotFound("no such model")

    follow(_Registry(*[lambda: iter(())] * 9), listen, stop=stop)
    assert len(tries) == 9
    assert all(0.5 <= wait / min(0.1 * 2**n, 3.0) <= 1.0 for n, wait in enumerate(stop.waits))
    assert stop.waits[-1] >= 1.5
