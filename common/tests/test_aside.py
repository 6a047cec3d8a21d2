"""Work in a process beside this one: what it returns and raises, and what becomes of it when it goes wrong."""

import asyncio
import os
import signal
from functools import partial

import pytest

from common.errors import InvalidInput, NotFound, Overloaded, Unavailable
from common.process.aside import Aside

_SECONDS = 60.0
_MEMORY_BYTES = 256 << 20


def reversed_message(message: bytearray, *, word: str) -> tuple[str, bytes]:
    return f"{word} {len(message)}", bytes(message[::-1])


def refused(message: bytearray) -> tuple[None, bytes]:
    raise NotFound(f"nobody has {message.decode()}")


def grown(message: bytearray) -> tuple[int, bytes]:
    return len(bytearray(int(message))), b""


def ended(message: bytearray) -> tuple[None, bytes]:
    os.kill(os.getpid(), signal.SIGKILL)
    return None, b""


def own_pid(message: bytearray) -> tuple[int, bytes]:
    return os.getpid(), b""


def stopped(message: bytearray) -> tuple[None, bytes]:
    os.kill(os.getpid(), signal.SIGSTOP)
    return None, b""


def place(most_waiting: int = 8) -> Aside:
    return Aside("test", memory_bytes=_MEMORY_BYTES, most_waiting=most_waiting)


def test_a_function_is_called_with_the_message_and_its_result_comes_back() -> None:
    async def ask() -> list[tuple[str, bytes]]:
        aside = place()
        calls = [aside.run(partial(reversed_message, word="bytes"), b"x" * size + b"y", timeout_seconds=_SECONDS)
                 for size in (0, 5_000_000)]  # fmt: skip
        return list(await asyncio.gather(*calls))

    small, large = asyncio.run(ask())
    assert small == ("bytes 1", b"y")
    assert large == ("bytes 5000001", b"y" + b"x" * 5_000_000)


def test_it_works_in_another_process_that_is_kept() -> None:
    async def ask() -> list[int]:
        aside = place()
        return [(await aside.run(own_pid, b"", timeout_seconds=_SECONDS))[0] for _ in range(2)]

    first, second = asyncio.run(ask())
    assert first == second != os.getpid()


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(NotFound, match="nobody has m"):
        asyncio.run(place().run(refused, b"m", timeout_seconds=_SECONDS))


def test_work_that_takes_more_memory_than_it_may_is_refused_and_the_next_is_done() -> None:
    async def ask() -> int:
        aside = place()
        with pytest.raises(InvalidInput, match="takes more than the 256 MiB of memory"):
            await aside.run(grown, b"%d" % (2 * _MEMORY_BYTES), timeout_seconds=_SECONDS)
        return int((await aside.run(grown, b"1000", timeout_seconds=_SECONDS))[0])

    assert asyncio.run(ask()) == 1000


def test_a_process_that_dies_or_takes_too_long_is_replaced() -> None:
    async def ask() -> int:
        aside = place()
        with pytest.raises(InvalidInput):
            await aside.run(ended, b"", timeout_seconds=_SECONDS)
        with pytest.raises(Unavailable, match="not read in time"):
            await aside.run(stopped, b"", timeout_seconds=2.0)
        return int((await aside.run(grown, b"7", timeout_seconds=_SECONDS))[0])

    assert asyncio.run(ask()) == 7


def test_past_its_limit_work_is_refused_at_once() -> None:
    async def ask() -> None:
        aside = place(most_waiting=1)
        calls = [aside.run(own_pid, b"", timeout_seconds=_SECONDS) for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert any(isinstance(result, Overloaded) for result in results)
        assert (await aside.run(grown, b"3", timeout_seconds=_SECONDS))[0] == 3

    asyncio.run(ask())
