# ruff: noqa: E501, ISC004  (a table of words that are not to be broken)
"""Faulty REST calls and what they are answered: (path, body, status, message).

The words are TensorFlow Serving's, but for those of the JSON parser.
"""

import json
from typing import Any

ROW = "Failed to process element: {} of 'instances' list. Error: "
KEYED = "Failed to process element: {} key: {} of 'instances' list. Error: "


def body(signature: str, **fields: Any) -> str:
    return json.dumps({"signature_name": signature, **fields})


FAULTS: list[tuple[str, str, int, str]] = [
    ("m:predict", "", 400, "JSON Parse error: The document is empty"),
    ("m:predict", "{", 400, "JSON Parse error: Expecting property name enclosed in double quotes at offset: 1"),
    ("m:predict", '{"inputs" 1}', 400, "JSON Parse error: Expecting ':' delimiter at offset: 10"),
    ("m:predict", '{"a": 1 "b"}', 400, "JSON Parse error: Expecting ',' delimiter at offset: 8"),
    ("m:predict", '{"a": [1 2]}', 400, "JSON Parse error: Expecting ',' delimiter at offset: 9"),
    ("m:predict", '{"a": [1,]}', 400, "JSON Parse error: Expecting value at offset: 9"),
    ("m:predict", '{"a": nan}', 400, "JSON Parse error: Expecting value at offset: 6"),
    ("m:predict", '{"a": +1}', 400, "JSON Parse error: Expecting value at offset: 6"),
    ("m:predict", '{"a": 1e400}', 400, "JSON Parse error: Number too big to be stored in double: 1e400"),
    ("m:predict", r'{"a": "\x"}', 400, "JSON Parse error: Invalid \\escape at offset: 7"),
    ("m:predict", '{"a": "', 400, "JSON Parse error: Unterminated string starting at offset: 6"),
    ("m:predict", "{'a': 1}", 400, "JSON Parse error: Expecting property name enclosed in double quotes at offset: 1"),
    ("m:predict", "[1, 2]", 400, "JSON Value: [1, 2] Is not object"),
    ("n:predict", "{", 400, "JSON Parse error: Expecting property name enclosed in double quotes at offset: 1"),
    ("n:predict", '{"signature_name": 1}', 400,
     'JSON Value: {\n    "signature_name": 1\n} not formatted correctly. \'signature_name\' key must be a string value.'),
    ("m:predict", '{"signature_name": null}', 400,
     'JSON Value: {\n    "signature_name": null\n} not formatted correctly. \'signature_name\' key must be a string value.'),
    ("n:predict", "{}", 404, "Servable not found for request: Latest(n)"),
    ("m/versions/8:predict", "{}", 404, "Servable not found for request: Specific(m, 8)"),
    ("m/labels/none:predict", "{}", 400, "Unrecognized servable version label: none"),
    ("n/labels/none:predict", "{}", 400, "Unrecognized servable version label: none"),
    ("m:predict", '{"signature_name": "no"}', 400, 'Serving signature name: "no" not found in signature def'),
    ("m:predict", "{}", 400, "Missing 'inputs' or 'instances' key"),
    ("m:predict", '{"instances": 1, "inputs": 1}', 400,
     'JSON Value: {\n    "instances": 1,\n    "inputs": 1\n} Not formatted correctly expecting only one of '
     "'inputs' or 'instances' keys to exist "),
    ("m:predict", body("several", instances=[1]), 400,
     "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map"),
    ("m:predict", body("several", inputs={"a": [1]}), 400, "Missing named input: b in 'inputs' object."),
    ("m:predict", body("several", instances=[{"a": 1, "b": "u"}]), 400,
     "Failed to process element: 0 of 'instances' list. JSON object: {\n    \"a\": 1,\n    \"b\": \"u\"\n} "
     "keys must be equal to: a,b,c"),
    ("m:predict", body("several", instances=[{"a": 1, "b": "u", "z": 1}]), 400,
     KEYED.format(0, "z") + "INVALID_ARGUMENT: JSON object: does not have named input: z"),
    ("m:predict", body("several", instances=[{"a": 1, "b": 5, "c": [1, 2]}, {"a": "x", "b": "u", "c": [1, 2]}]), 400,
     KEYED.format(0, "b") + "INVALID_ARGUMENT: JSON Value: 5 Type: Number is not of expected type: string"),
    ("m:predict", '{"instances": [{"b64": 5}]}', 400,
     KEYED.format(0, "b64") + "INVALID_ARGUMENT: JSON object: does not have named input: b64"),
    ("m:predict", body("echo_string", inputs=[{"b64": "a"}]), 400, "Unable to base64 decode"),
    ("m:classify", "{}", 400,
     "JSON Value: {} When method is classify, key 'examples' is expected and was not found"),
    ("m:regress", "{}", 400,
     "JSON Value: {} When method is classify, key 'examples' is expected and was not found"),
    ("m:classify", '{"examples": []}', 400, 'JSON Value: {\n    "examples": []\n} \'examples\' value is an empty array'),
    ("m:classify", '{"examples": 1}', 400,
     'JSON Value: {\n    "examples": 1\n} Expecting \'examples\' value to be an list/array'),
    ("n:classify", '{"examples": [1]}', 400, "Example must be JSON object but got JSON Number"),
    ("n:classify", '{"context": [], "examples": [{}]}', 400, "Example must be JSON object but got JSON Array"),
    ("n:classify", '{"examples": [{"f": null}]}', 400, "Feature: f has element with unexpected JSON type: Null"),
    ("n:classify", '{"examples": [{"f": [[1]]}]}', 400, "Feature: f has element with unexpected JSON type: Array"),
    ("n:classify", '{"examples": [{"f": {"a": 1}}]}', 400, "Feature: f has element with unexpected JSON type: Object"),
    ("n:classify", '{"examples": [{"f": [1, 2.5]}]}', 400, "Unexpected element type in feature: f expecting type: int64"),
    ("n:classify", '{"examples": [{"f": [2.5, true]}]}', 400,
     "Unexpected element type in feature: f expecting type: float"),
    ("n:classify", '{"examples": [{"f": ["a", 1]}]}', 400, "Unexpected element type in feature: f expecting type: bytes"),
    ("n:classify", '{"examples": [{"f": 18446744073709551615}]}', 400,
     "Feature: f has uint64_t element. Only int64_t is supported."),
    ("n:classify", '{"examples": [{"f": 1}]}', 404, "Servable not found for request: Latest(n)"),
    ("m:regress", '{"signature_name": "no", "examples": [{}]}', 400, "No signature was found with the name: no"),
]  # fmt: skip
