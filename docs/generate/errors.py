"""docs/reference/errors.md: the errors and their codes, from the tables that translate them."""

import inspect

from common.errors import KINDS
from docs.generate.markdown import cell, page, table

_WHAT_TO_DO = {
    "InvalidInput": "fix the request",
    "NotFound": "look elsewhere",
    "Conflict": "read again, decide again",
    "Overloaded": "slow down; `Retry-After` says how long",
    "Unavailable": "send again, with growing pauses; `Retry-After` says how long",
    "DataLoss": "stop and call a human",
    "Unauthenticated": "send a token ([Access](../guide/access.md))",
    "PermissionDenied": "ask an operator for the role",
}
_INTRODUCTION = """\
Every failure is one of six, named after what the caller should do; where identity is on, the door has two more. The
message is one sentence: what, which, and what was expected. The exit status is that of the command line."""
_FORM = """\
Over HTTP every error has one form. `refused` is there where items of a list are at fault.

```json
{"error": {"kind": "InvalidInput", "message": "…", "refused": [{"index": 3, "reason": "…"}]}}
```

- What a route would not read is an InvalidInput: unknown query parameters, a body where none is taken, a body that is
  not `application/json`.
- A path that is not there is a NotFound. A method that a path does not take is an InvalidInput with HTTP's own 405.
- A fault of ours is 500 over HTTP with the kind `Internal`, and INTERNAL over gRPC.
- Messages are cut after 4,000 characters, over gRPC after 6,000 bytes on the wire.
- Below `/v1/models` of serving, words and codes are TensorFlow Serving's:
  [Differences from TensorFlow Serving](tensorflow-serving.md).
- The command line prints the sentence on standard error; with `--json` it prints the JSON object."""


def document() -> str:
    rows = [
        (
            f"**{kind.__name__}**", str(kind.http), kind.grpc, str(kind.exit),
            cell((inspect.getdoc(kind) or "").split("\n")[0]), _WHAT_TO_DO[kind.__name__],
        )
        for kind in KINDS
    ]  # fmt: skip
    head = ("error", "HTTP", "gRPC", "exit status", "meaning", "what to do")
    return page("Errors", __name__, _INTRODUCTION, table(head, rows), _FORM)
