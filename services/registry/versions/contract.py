"""A version's SavedModel as a contract: read at registration and compared with the version before it.

The registry reads the files itself (common/saved_model/): parts, tags and operations that cannot be
served are refused before there is a version. A changed promise makes a version that no request is sent to by itself.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from common.definition.inputs import INPUTS_PATH, parse_inputs
from common.definition.model import SIGNATURES_FILE
from common.errors import InvalidInput
from common.registry.catalog import Decision, FileEntry, JsonMap, RoundPlan, Verdict
from common.registry.plan_notes import ALLOW_SIGNATURE_CHANGE
from common.saved_model import contract, layout

_FOLDER = PurePosixPath("saved_model")
_SHOWN_CHANGES = 5
_MAX_INPUTS_BYTES = 16 * 1024 * 1024
ReadBlob = Callable[[str], bytes]


def contract_of(files: Sequence[FileEntry], read_blob: ReadBlob, look: layout.Look = layout.look_at) -> JsonMap:
    """{"signatures", "may_be_left_out", "operations", "tags", "producer"} of the files below saved_model/.

    Args:
        read_blob: a file's content by its digest.

    Raises:
        InvalidInput: they are no SavedModel that can be served; the sentence says why.
    """
    entries = {
        PurePosixPath(file.path).relative_to(_FOLDER).as_posix(): file
        for file in files
        if _FOLDER in PurePosixPath(file.path).parents
    }
    found = layout.check_layout(
        {path: file.size_bytes for path, file in entries.items()},
        lambda path: read_blob(entries[path].digest),
        look=look,
    )
    return {
        "signatures": contract.to_mapping(found.signatures),
        "may_be_left_out": _may_be_left_out(entries, read_blob),
        "operations": dict(found.operations),
        "tags": sorted(found.tags),
        "producer": found.producer,
    }


def refuse_changed(verdict: Verdict, *, before: JsonMap, after: JsonMap, allowed: bool) -> Verdict:
    """The same verdict, or a rejection that names what a caller of the version before would miss.

    Args:
        before: {} where there is no version before, or one of a registry that kept no contracts.
    """
    changes = signature_changes(before, after)
    if not changes:
        return verdict
    shown = "; ".join(changes[:_SHOWN_CHANGES]) + ("; ..." if len(changes) > _SHOWN_CHANGES else "")
    if allowed:
        return replace(verdict, reasons=(*verdict.reasons, f"signatures changed, as allowed: {shown}"))
    refusal = f"signatures changed, which --allow-signature-change of apply or train allows: {shown}"
    return replace(verdict, decision=Decision.REJECT, reasons=(*verdict.reasons, refusal))


def signature_changes(before: JsonMap, after: JsonMap) -> list[str]:
    """A sentence for each promise of before that is not kept; [] where there is no `before`."""
    if not before:
        return []
    return contract.changes(
        contract.from_mapping(before["signatures"]),
        contract.from_mapping(after["signatures"]),
        may_be_left_out=after["may_be_left_out"],
    )


def is_change_allowed(plan: RoundPlan, definition: Collection[str]) -> bool:
    """Whether the round's request, or its definition, allows the change.

    Args:
        definition: the names of its files.
    """
    requested = plan.configuration.get("requested")
    is_requested = isinstance(requested, Mapping) and bool(requested.get(ALLOW_SIGNATURE_CHANGE))
    return is_requested or SIGNATURES_FILE in definition


def _may_be_left_out(entries: Mapping[str, FileEntry], read_blob: ReadBlob) -> dict[str, Any]:
    if INPUTS_PATH not in entries:
        return {}
    if entries[INPUTS_PATH].size_bytes > _MAX_INPUTS_BYTES:
        raise InvalidInput(f"{INPUTS_PATH} is larger than {_MAX_INPUTS_BYTES} bytes")
    try:
        known = parse_inputs(json.loads(read_blob(entries[INPUTS_PATH].digest)))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{INPUTS_PATH} is not JSON: {error}") from error
    return {
        name: [feature.name for feature in inputs.features if not feature.required] for name, inputs in known.items()
    }
