"""Predictions over TensorFlow Serving's REST API, for headrace/client/predictions.py."""

import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from common.errors import InvalidInput, Unavailable
from common.suggestions import did_you_mean, there_is_no
from headrace.client.connection import Answer, Door
from headrace.client.prediction_types import Call, PendingPrediction, Prediction, Target
from headrace.client.tensor_values import SignatureTypes, from_json, json_body, read_json

_ACCEPTED = 202
_MOST_KNOWN_SIGNATURES = 1000


class RestTransport:
    """JSON has no types, so the types of the outputs are read once per version from its metadata."""

    def __init__(self, url: str, token: str | None = None, ca_file: str = "") -> None:
        self._door = Door("serving", url, timeout_seconds=30.0, token=token, ca_file=ca_file)
        self._signatures: dict[tuple[str, int, str], SignatureTypes] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._door.close()

    def predict(self, call: Call) -> Prediction:
        answer = self._door.call(
            "POST", f"{_path(call.target)}:predict", _body(call), repeatable=True, timeout_seconds=_left(call.deadline),
            headers={
                "Content-Type": "application/json", "x-request-id": call.request_id,
                "x-request-timeout-ms": _milliseconds_left(call.deadline),
            },
        )  # fmt: skip
        prediction = self._prediction(answer, call.target, call.output_filter, call.deadline)
        if isinstance(call.inputs, Mapping):
            # The server does not look at inputs that it has no use for; over gRPC it refuses them.
            _check_names(call.inputs, self._types_of(call.target, prediction.version, call.deadline))
        return prediction

    def predict_raw(self, target: Target, body: bytes, deadline: float) -> bytes:
        answer = self._door.call(
            "POST", f"{_path(target)}:predict", body, repeatable=True, timeout_seconds=_left(deadline),
            headers={"Content-Type": "application/json", "x-request-timeout-ms": _milliseconds_left(deadline)},
        )  # fmt: skip
        return answer.content

    def submit(self, call: Call, deadline_seconds: float | None) -> PendingPrediction:
        query = "" if deadline_seconds is None else "?" + urlencode({"deadline_seconds": deadline_seconds})
        answer = self._door.call(
            "POST", f"{_path(call.target)}:predictAsync{query}", _body(call), repeatable=False,
            headers={"Content-Type": "application/json"}, timeout_seconds=_left(call.deadline),
            repeat_refused=True,
        )  # fmt: skip
        return PendingPrediction(str(answer.json()["id"]), call.target, call.output_filter)

    def poll(self, pending: PendingPrediction, wait_seconds: float, deadline: float) -> Prediction | None:
        path = f"/v1/predictions/{quote(pending.prediction_id, safe='')}?{urlencode({'wait_seconds': wait_seconds})}"
        answer = self._door.call("GET", path, repeatable=True, timeout_seconds=_left(deadline))
        if answer.status == _ACCEPTED:
            return None
        return self._prediction(answer, pending.target, pending.output_filter, deadline)

    def cancel(self, pending: PendingPrediction, deadline: float) -> bool:
        path = f"/v1/predictions/{quote(pending.prediction_id, safe='')}"
        answer = self._door.call("DELETE", path, repeatable=False, timeout_seconds=_left(deadline))
        return bool(answer.json()["was_open"])

    def signature(self, target: Target, deadline: float) -> SignatureTypes:
        return self._read_signature(_path(target), target.signature_name, deadline)

    def _read_signature(self, path: str, signature_name: str, deadline: float) -> SignatureTypes:
        answer = self._door.call("GET", f"{path}/metadata", repeatable=True, timeout_seconds=_left(deadline))
        signatures = answer.json()["metadata"]["signature_def"]["signature_def"]
        name = signature_name or "serving_default"
        if name not in signatures:
            raise InvalidInput(there_is_no(f"signature {name}", name, sorted(signatures)))
        found = signatures[name]
        return SignatureTypes(
            {key: str(spec["dtype"]) for key, spec in found["inputs"].items()},
            {key: str(spec["dtype"]) for key, spec in found["outputs"].items()},
            frozenset(found.get("defaults", ())),
            dict(found.get("aliases", {})),
            frozenset(found.get("yes_no", ())),
        )

    def _prediction(
        self, answer: Answer, target: Target, output_filter: tuple[str, ...], deadline: float
    ) -> Prediction:
        document = read_json(answer.content)
        version = int(answer.headers.get("headrace-version", 0))
        types = self._types_of(target, version, deadline).outputs
        given = document.get("outputs") if isinstance(document, dict) else None
        if given is None:
            raise Unavailable(f"the answer has no outputs: {answer.content[:80]!r}")
        named = given if isinstance(given, dict) and len(types) > 1 else {next(iter(types)): given}
        _check_filter(output_filter, types)
        outputs = {
            name: from_json(name, value, types[name])
            for name, value in named.items()
            if name in types and (not output_filter or name in output_filter)
        }
        return Prediction(outputs, version, answer.headers.get("x-request-id", ""))

    def _types_of(self, target: Target, version: int, deadline: float) -> SignatureTypes:
        """A version never changes, so what is known of one stays known."""
        if not version:
            return self.signature(target, deadline)
        key = (target.model, version, target.signature_name)
        known = self._signatures.get(key)
        if known is None:
            path = f"/v1/models/{quote(target.model, safe='')}/versions/{version}"
            known = self._read_signature(path, target.signature_name, deadline)
            with self._lock:
                if len(self._signatures) >= _MOST_KNOWN_SIGNATURES:
                    self._signatures.clear()
                self._signatures[key] = known
        return known


def _check_names(inputs: Mapping[str, Any], types: SignatureTypes) -> None:
    unknown = [name for name in inputs if name not in types.inputs and name not in types.name_of]
    if unknown and inputs.keys() != {"b64"}:
        raise InvalidInput(
            f"there is no input {', '.join(unknown)}; the signature has {', '.join(sorted(types.inputs))}"
            f"{did_you_mean(unknown, types.inputs)}"
        )


def _check_filter(output_filter: tuple[str, ...], types: Any) -> None:
    for name in output_filter:
        if name not in types:
            raise InvalidInput(there_is_no(f"output {name}", name, sorted(types)))


def _path(target: Target) -> str:
    path = f"/v1/models/{quote(target.model, safe='')}"
    if target.version is not None:
        return f"{path}/versions/{target.version:d}"
    return path if target.label is None else f"{path}/labels/{quote(target.label, safe='')}"


def _body(call: Call) -> bytes:
    document: dict[str, Any] = {"inputs": call.inputs}
    if call.target.signature_name:
        document["signature_name"] = call.target.signature_name
    return json_body(document)


def _milliseconds_left(deadline: float) -> str:
    return str(max(1, int(_left(deadline) * 1000)))


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
