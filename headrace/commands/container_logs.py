"""logs of a platform in containers."""

import queue
import subprocess
import threading
from collections.abc import Iterator

from common.errors import InvalidInput
from common.suggestions import there_is_no
from headrace.commands.terminal import echo
from headrace.compose.docker_cli import read_logs
from headrace.compose.state import ComposeState
from headrace.places import PlatformState

_WAITING_LINES = 10_000


def show(state: PlatformState, name: str | None, *, lines: int, follow: bool) -> None:
    """Prints the last lines of each container, or of the one named; with follow, then all that come until Ctrl-C.
    Raises InvalidInput: there is no such container."""
    assert isinstance(state, ComposeState)
    if name is not None and name not in state.ids:
        raise InvalidInput(there_is_no(f"container {name} in {state.place}", name, state.ids))
    names = [name] if name is not None else list(state.ids)
    width = max(len(each) for each in names) if name is None else 0
    readers = {each: read_logs(state.ids[each], lines=lines, follow=follow) for each in names}
    try:
        for each, line in _together(readers) if follow else _in_turn(readers):
            echo((f"{each:<{width}} | " if width else "") + line)
    finally:
        for reader in readers.values():
            reader.kill()
            reader.wait(timeout=10)


def _lines(reader: "subprocess.Popen[str]") -> Iterator[str]:
    assert reader.stdout is not None
    for line in reader.stdout:
        yield line.rstrip("\n")


def _in_turn(readers: dict[str, "subprocess.Popen[str]"]) -> Iterator[tuple[str, str]]:
    for name, reader in readers.items():
        for line in _lines(reader):
            yield name, line


def _together(readers: dict[str, "subprocess.Popen[str]"]) -> Iterator[tuple[str, str]]:
    """As they come, until every container has ended."""
    arrived: queue.Queue[tuple[str, str | None]] = queue.Queue(_WAITING_LINES)

    def pump(name: str, reader: "subprocess.Popen[str]") -> None:
        for line in _lines(reader):
            arrived.put((name, line))
        arrived.put((name, None))

    for name, reader in readers.items():
        threading.Thread(target=pump, args=(name, reader), daemon=True).start()
    open_count = len(readers)
    while open_count:
        name, line = arrived.get()
        if line is None:
            open_count -= 1
        else:
            yield name, line
