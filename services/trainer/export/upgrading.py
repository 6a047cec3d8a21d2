"""Scripts of TensorFlow 1 rewritten for TensorFlow 2 by the converter that TensorFlow brings, `tf_upgrade_v2`.

Question {"scripts": {name: text}}, answer {"scripts": {name: {"text", "changes", "warnings", "refused"}}}: lists of
sentences that begin with line:column. `refused` is what the converter has no equivalent for, tf.contrib first of all.
"""

from collections.abc import Mapping
from typing import Any

from tensorflow.tools.compatibility import ast_edits, tf_upgrade_v2

_SEVERITIES = {": ERROR: ": "refused", ": WARNING: ": "warnings", ": INFO: ": "changes"}
_UNPARSED = "it is no Python that can be parsed: "


def upgrade(question: Mapping[str, Any]) -> dict[str, Any]:
    return {"scripts": {name: _upgraded(str(text)) for name, text in question["scripts"].items()}}


def _upgraded(text: str) -> dict[str, Any]:
    # One upgrader keeps what it saw of a script's imports, so each script has its own.
    upgrader = ast_edits.ASTCodeUpgrader(tf_upgrade_v2.TFAPIChangeSpec())
    is_parsed, written, log, _ = upgrader.update_string_pasta(text, "")
    found: dict[str, Any] = {"text": written, "changes": [], "warnings": [], "refused": []}
    if not is_parsed:
        return found | {"refused": [_UNPARSED + " ".join(log).strip().splitlines()[-1]]}
    for line in dict.fromkeys(log):
        for severity, kind in _SEVERITIES.items():
            if severity in line:
                place, _, sentence = line.partition(severity)
                found[kind].append(f"{place}: {' '.join(sentence.split())}")
    return found
