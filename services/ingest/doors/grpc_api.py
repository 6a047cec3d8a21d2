"""gRPC: Append, AppendStream and AppendLabels. Translates only; the intake decides.

A refused request names its refused events in the trailing metadata too: `headrace-refused-bin`, an AppendResponse.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from common.counted import counted, is_or_are
from common.errors import HeadraceError, InvalidInput
from common.eventlog import tfrecord
from common.process.rpc_aio import traced_call
from common.process.tracing import Span
from protos import ingest_pb2 as pb
from protos import ingest_pb2_grpc
from services.ingest.intake.accept import AppendRequest, Intake, OnInvalid
from services.ingest.once.keys import Answer, Refusal

SERVICE_NAME = "headrace.IngestService"
REFUSED_METADATA_KEY = "headrace-refused-bin"
_MEMORY_FACTOR = 4
_METADATA_REFUSALS = 50
_OPEN_MESSAGES = 8
_ON_INVALID: dict[int, OnInvalid] = {
    pb.ON_INVALID_UNSPECIFIED: "reject",
    pb.ON_INVALID_REJECT: "reject",
    pb.ON_INVALID_DEADLETTER: "deadletter",
}


class IngestServicer(ingest_pb2_grpc.IngestServiceServicer):
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def Append(self, request: pb.AppendRequest, context: Any) -> pb.AppendResponse:  # noqa: N802
        with traced_call(self._intake.tracing, "IngestService/Append", context) as span:
            try:
                return _response(await self._take(request, span))
            except InvalidInput as error:
                _name_refused(context, error, 0)
                raise

    async def AppendLabels(self, request: pb.AppendRequest, context: Any) -> pb.AppendResponse:  # noqa: N802
        with traced_call(self._intake.tracing, "IngestService/AppendLabels", context) as span:
            if request.on_invalid == pb.ON_INVALID_DEADLETTER:
                raise InvalidInput("on_invalid is DEADLETTER, expected REJECT (1): labels have no dead letters")
            try:
                return _response(await self._take(request, span, labels=True))
            except InvalidInput as error:
                _name_refused(context, error, 0)
                raise

    async def AppendStream(  # noqa: N802
        self, requests: AsyncIterator[pb.AppendRequest], context: Any
    ) -> pb.AppendResponse:
        """A few messages are under way at a time, each behind its predecessor; the first error ends the call."""
        with traced_call(self._intake.tracing, "IngestService/AppendStream", context) as span:
            return await self._append_all(requests, context, span)

    async def _append_all(
        self, requests: AsyncIterator[pb.AppendRequest], context: Any, span: Span | None
    ) -> pb.AppendResponse:
        total = Answer(accepted=0, refused=(), position={}, duplicate=True)
        first_index = 0
        message_count = 0
        open_messages: deque[tuple[int, asyncio.Task[Answer]]] = deque()
        try:
            async for request in requests:
                message_count += 1
                open_messages.append((first_index, await self._queued(request, span)))
                first_index += len(request.examples)
                if len(open_messages) >= _OPEN_MESSAGES:
                    total = await _added(total, *open_messages.popleft())
            while open_messages:
                total = await _added(total, *open_messages.popleft())
        except HeadraceError as error:
            # Messages under way come to their end; their outcome is not reported.
            await asyncio.gather(*(task for _, task in open_messages), return_exceptions=True)
            if isinstance(error, InvalidInput):
                _name_refused(context, error, 0)
            raise
        return _response(total if message_count else Answer(0, (), {}))

    async def _take(self, request: pb.AppendRequest, span: Span | None, *, labels: bool = False) -> Answer:
        """Goes on to its end also when the caller has gone away, and holds its share of memory until then."""
        return await asyncio.shield(asyncio.create_task(self._append(request, lambda: None, span, labels=labels)))

    async def _queued(self, request: pb.AppendRequest, span: Span | None) -> asyncio.Task[Answer]:
        """The request under way, as soon as its events have their place in line."""
        queued = asyncio.Event()
        task = asyncio.create_task(self._append(request, queued.set, span))
        task.add_done_callback(lambda _: queued.set())
        await queued.wait()
        return task

    async def _append(
        self, request: pb.AppendRequest, on_queued: Callable[[], None], span: Span | None, *, labels: bool = False
    ) -> Answer:
        with self._intake.budget.open() as share:
            size = request.ByteSize()
            if size > self._intake.settings.max_body_bytes:
                raise InvalidInput(
                    f"the request has {size} bytes, expected at most {self._intake.settings.max_body_bytes}; "
                    "send smaller requests"
                )
            share.resize(size * _MEMORY_FACTOR)
            on_invalid = _ON_INVALID.get(request.on_invalid)
            if on_invalid is None:
                raise InvalidInput(f"on_invalid is {request.on_invalid}, expected REJECT (1) or DEADLETTER (2)")
            return await self._intake.append(
                AppendRequest(
                    stream=request.stream,
                    body=tfrecord.frame(request.examples),
                    body_format="tfrecord",
                    on_invalid=on_invalid,
                    idempotency_key=request.idempotency_key,
                    span=span,
                    is_of_labels=labels,
                ),
                on_queued=on_queued,
            )


async def _added(total: Answer, first_index: int, task: asyncio.Task[Answer]) -> Answer:
    try:
        answer = await task
    except InvalidInput as error:
        refused = tuple((first_index + index, reason) for index, reason in error.refused)
        raise InvalidInput(
            f"the message with events from {first_index} on is refused ({counted(total.accepted, 'event')} before it "
            f"{is_or_are(total.accepted)} taken): {error.message}",
            refused=refused,
        ) from error
    position = dict(total.position)
    for partition, offset in answer.position.items():
        position[partition] = max(position.get(partition, 0), offset)
    return Answer(
        accepted=total.accepted + answer.accepted,
        refused=total.refused + tuple(Refusal(first_index + item.index, item.reason) for item in answer.refused),
        position=position,
        duplicate=total.duplicate and answer.duplicate,
    )


def _response(answer: Answer) -> pb.AppendResponse:
    return pb.AppendResponse(
        accepted=answer.accepted,
        refused=[pb.Refusal(index=item.index, reason=item.reason) for item in answer.refused],
        position=answer.position,
        duplicate=answer.duplicate,
    )


def _name_refused(context: Any, error: InvalidInput, accepted: int) -> None:
    if error.refused:
        refused = [pb.Refusal(index=index, reason=reason) for index, reason in error.refused[:_METADATA_REFUSALS]]
        answer = pb.AppendResponse(accepted=accepted, refused=refused)
        context.set_trailing_metadata(((REFUSED_METADATA_KEY, answer.SerializeToString()),))
