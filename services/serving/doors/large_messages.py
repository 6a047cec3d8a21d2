"""Large messages, read and written beside the front: a body of 60 MiB takes seconds, in which the front answers others.

There are two places, so that a megabyte does not wait for sixty.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from common.errors import HeadraceError, InvalidInput, Overloaded
from common.process.aside import Aside
from protos import queue_pb2
from services.serving.doors.readings import Reading, read_aside, write_aside
from services.serving.front.routing import Route
from services.serving.wire.classify import Named
from services.serving.wire.codes import Code
from services.serving.wire.limits import Limits
from services.serving.wire.prediction import RequestFailed

LARGE_BYTES = 256 * 1024
"""Reading as many takes a tenth of a second at worst, and handing them over less than a millisecond."""
_LARGEST_BYTES = 2 * 1024 * 1024
_MEMORY_FACTOR, _LEAST_MEMORY_BYTES = 24, 512 * 1024 * 1024
"""A float of eight digits becomes an object of 24 bytes, a pointer, and a number in an array."""
_MOST_WAITING = 256
_POLITE = 5
_CODES = {InvalidInput: Code.INVALID_ARGUMENT, Overloaded: Code.RESOURCE_EXHAUSTED}


class LargeMessages:
    """Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        memory_bytes = max(_MEMORY_FACTOR * limits.max_bytes, _LEAST_MEMORY_BYTES)
        make = partial(Aside, memory_bytes=memory_bytes, most_waiting=_MOST_WAITING)
        self._large, self._largest = make("large-messages"), make("largest-messages", niceness=_POLITE)

    async def read(
        self, read: Callable[..., Reading], message: bytes, route: Route, *arguments: Any, timeout_seconds: float
    ) -> Reading:
        """The result of `read(message, route, limits, *arguments)`. Raises RequestFailed."""
        given = (Named(route.version.signatures), self.limits, *arguments)
        call = partial(read_aside, read=read, arguments=given)
        (signature, rows, is_rows, sharing), serialized = await self._run(call, message, timeout_seconds)
        request = queue_pb2.PredictionRequest(signature=signature)
        return Reading(request, rows, is_rows, sharing, serialized)

    async def write(
        self,
        write: Callable[[queue_pb2.PredictionReply], Any],
        reply: queue_pb2.PredictionReply,
        *,
        timeout_seconds: float,
    ) -> bytes:
        """The result of `write(reply)`; a message comes serialized. Raises RequestFailed."""
        call = partial(write_aside, write=write)
        return (await self._run(call, reply.SerializeToString(), timeout_seconds))[1]

    async def _run(self, call: Any, message: bytes, timeout_seconds: float) -> tuple[Any, bytes]:
        place = self._largest if len(message) > _LARGEST_BYTES else self._large
        try:
            return await place.run(call, message, timeout_seconds=timeout_seconds)
        except HeadraceError as error:
            raise RequestFailed(_CODES.get(type(error), Code.DEADLINE_EXCEEDED), error.message) from error
