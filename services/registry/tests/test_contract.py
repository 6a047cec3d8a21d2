"""What a version's SavedModel promises: its parts are checked at registration, its signatures against those before."""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from common.definition.inputs import INPUTS_PATH
from common.errors import InvalidInput
from common.registry.catalog import Decision, Version
from common.registry.plan_notes import ALLOW_SIGNATURE_CHANGE
from common.saved_model import graph as graphs
from common.saved_model.layout import KnownGraphs, look_at
from common.saved_model.operations import faults_of
from protos import saved_model_pb2
from services.registry.catalog import Catalog
from services.registry.tests.building import definition, draft, lease, next_plan
from testing.rows import each_row
from testing.saved_models import saved_model

X, Y = {"x": ("DT_FLOAT", (-1,))}, {"y": ("DT_FLOAT", (-1,))}


def publish(catalog: Catalog, files: Mapping[str, bytes], *, requested: Mapping[str, Any] | None = None) -> Version:
    """A version that is better than the one before it, with these files below saved_model/."""
    plan = next_plan(catalog)
    configuration = {**plan.configuration, **({"requested": requested} if requested else {})}
    catalog.plan_round(type(plan)(**{**vars(plan), "configuration": configuration}))
    held = lease(catalog)
    contents = {"checkpoint/state": b"weights", **{f"saved_model/{path}": content for path, content in files.items()}}
    try:
        return catalog.register_version(held.round.round_id, held.token, draft(catalog, contents=contents))
    except InvalidInput:
        catalog.fail_round(held.round.round_id, held.token, reason="refused")
        raise


def index(*, shards: int, names: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """variables.index with the names, of each how many bytes it shares with the one before, and what is its own."""

    def numbers(*values: int) -> bytes:
        return b"".join(bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14]) for value in values)

    def block(content: bytes) -> bytes:
        return content + struct.pack("<II", 0, 1)

    header = saved_model_pb2.BundleHeaderProto(num_shards=shards).SerializeToString()
    entries = [numbers(shared, len(own), 0) + own for shared, own in names]
    data = block(numbers(0, 0, len(header)) + header + b"".join(entries))
    handle = numbers(0, len(data))
    of_blocks = block(numbers(0, 1, len(handle)) + b"z" + handle)
    footer = numbers(0, 0, len(data) + 5, len(of_blocks)).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    return data + bytes(5) + of_blocks + bytes(5) + footer


def crowded() -> bytes:
    """2 MB of a graph with a million nodes that say nothing, and one more."""
    found = saved_model_pb2.SavedModel.FromString(saved_model(operations=()))
    found.meta_graphs[0].graph_def.MergeFromString(b"\x0a\x00" * 1_000_001)
    return found.SerializeToString()


LONG_NAMES = [(0, b"x" * 4096), *((4092, f"{number:04}".encode()) for number in range(1000))]


@pytest.mark.covers("fmt-savedmodel", "fmt-op-list")
@each_row(
    ("files", "words"),
    [
        ({"model.keras": b"k"}, "there is no saved_model.pb; the files are: model.keras"),
        ({"saved_model.pb": b"no graph"}, "saved_model.pb (8 bytes) is not a SavedModel"),
        ({"saved_model.pb": b""}, "holds no graph"),
        ({"saved_model.pb": saved_model(tags=("train", "gpu"))}, "is tagged serve; its graphs are tagged: train,gpu"),
        ({"saved_model.pb": saved_model(signature="")}, "has no signature"),
        ({"saved_model.pb": saved_model(operations=("VarHandleOp",))}, "variables/variables.index is not there"),
        ({"saved_model.pb": saved_model(), "variables/variables.index": b"cut"}, "is not an index of variables"),
        ({"saved_model.pb": saved_model(), "variables/variables.index": index(shards=2**31 - 1)},
         "names 2147483647 data files, at most 10000 are read"),
        ({"saved_model.pb": saved_model(), "variables/variables.index": index(shards=1, names=LONG_NAMES)},
         "its names would become more than 16 times its bytes"),
        ({"saved_model.pb": crowded()}, "has a graph of 1000001 nodes, at most 1000000 are looked at"),
        ({"saved_model.pb": saved_model(operations=("MatMul", "ReadFile"))}, "(ReadFile) reads or writes files"),
        ({"saved_model.pb": saved_model(operations=("PyFunc",))}, "(PyFunc) calls Python"),
        ({"saved_model.pb": saved_model(operations=("NobodysOp",))}, "(NobodysOp) is none of TensorFlow's"),
        ({"saved_model.pb": saved_model(), "saved_model.pbtxt": b"x"}, "saved_model.pbtxt stands beside"),
        ({"saved_model.pb": saved_model(), "saved_model.cpb": b"x"}, "saved_model.cpb stands beside"),
        ({"saved_model.pb": saved_model(), "assets.extra/custom_ops.txt": b"/tmp/x.so"}, "/tmp/x.so, which is none of"),
        ({"saved_model.pb": b"\x12\x80\x01" * 3 + b"\x0a\x7f" * 4000}, "is not a SavedModel"),
        ({"saved_model.pb": saved_model(), "a": b"x", "a/b": b"y"}, "as a file, and saved_model/a/b below"),
        ({"saved_model.pb": saved_model(), "n" * 256: b"x"}, "has a part of more than 255 bytes"),
        ({"saved_model.pb": saved_model(), INPUTS_PATH: b"[" * 100_000}, "headrace_inputs.json is not JSON"),
        ({"saved_model.pb": saved_model(), INPUTS_PATH: b'{"a": {"features": 1}}'}, "features must be a list"),
        ({"saved_model.pb": saved_model(), INPUTS_PATH: b'{"a": {"features": [], "padding": 1}}'}, "padding a mapping"),
        ({"saved_model.pb": saved_model(), INPUTS_PATH: b'{"a": {"features": [1]}}'}, "feature"),
    ],
)  # fmt: skip
def test_a_wrong_saved_model_is_refused_by_name(catalog: Catalog, files: dict[str, bytes], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        publish(catalog, files)
    assert words in refused.value.message
    assert catalog.list_versions("m") == []


def test_a_file_that_would_take_all_memory_is_tried_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_TRIED_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(graphs, "_MOST_READ_BYTES", 256 << 20)
    large = saved_model_pb2.SavedModel.FromString(saved_model())
    large.meta_graphs[0].graph_def.node.add(name="c", op="Const").attr["value"].s = bytes(16 << 20)
    assert graphs.read(large.SerializeToString()) == large
    large.meta_graphs[0].graph_def.library.MergeFromString(b"\x0a\x00" * (8 << 20))
    with pytest.raises(InvalidInput, match="or takes more than 256 MiB beside its bytes to be read"):
        graphs.read(large.SerializeToString())


def test_a_graph_that_leads_back_to_itself_is_walked_through_once() -> None:
    graph = saved_model_pb2.MetaGraphDef()
    graph.asset_file_def.add(filename="words").tensor_info.name = "path:0"
    nodes = {"variable": ("VarHandleOp", ()), "path": ("Const", ()), "read": ("ReadVariableOp", ("variable",)),
             "set": ("AssignVariableOp", ("variable", "path")), "again": ("AssignVariableOp", ("variable", "read")),
             "table": ("InitializeTableFromTextFileV2", ("handle", "read"))}  # fmt: skip
    for name, (operation, inputs) in nodes.items():
        graph.graph_def.node.add(name=name, op=operation).input.extend(inputs)
    assert list(faults_of(graph, has_own_operations=False)) == []
    graph.graph_def.node.add(name="other", op="AssignVariableOp").input.extend(["variable", "elsewhere"])
    (fault,) = faults_of(graph, has_own_operations=False)
    assert "a file that is none of its assets" in fault


@pytest.mark.covers("fmt-op-list")
def test_operations_tags_and_producer_are_on_record(catalog: Catalog) -> None:
    own = {"saved_model.pb": saved_model(operations=("MatMul", "MatMul", "NobodysOp"))}
    version = publish(catalog, own | {"assets.extra/custom_ops.txt": b"nobodys.so\n", "nobodys.so": b"library"})
    assert version.contract["operations"] == {"MatMul": 2, "NobodysOp": 1}
    assert (version.contract["tags"], version.contract["producer"]) == (["serve"], "2.21.0")
    assert catalog.list_versions("m")[0].contract == version.contract


@pytest.mark.covers("fmt-signatures")
@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"inputs": {"z": X["x"]}}, "input x (float32 [n]) is gone"),
        ({"inputs": {"x": ("DT_INT64", (-1,))}}, "input x is int64 [n], it was float32 [n]"),
        ({"inputs": {"x": ("DT_FLOAT", (-1, 3))}}, "input x is float32 [n, 3], it was float32 [n]"),
        ({"inputs": X | {"z": X["x"]}}, "input z (float32 [n]) is new, and a request cannot leave it out"),
        ({"outputs": {"other": Y["y"]}}, "output y (float32 [n]) is gone"),
        ({"signature": "other name"}, "signature serving_default is gone"),
    ],
)
def test_a_changed_signature_keeps_a_version_from_production(
    catalog: Catalog, after: dict[str, Any], words: str
) -> None:
    assert publish(catalog, {"saved_model.pb": saved_model()}).verdict.decision is Decision.PROMOTE
    refused = publish(catalog, {"saved_model.pb": saved_model(**after)})
    assert refused.verdict.decision is Decision.REJECT
    assert words in refused.verdict.reasons[-1]
    assert "--allow-signature-change" in refused.verdict.reasons[-1]
    assert catalog.get_model("m").aliases == {"production": 1}
    allowed = publish(
        catalog, {"saved_model.pb": saved_model(**after)}, requested={"by": "ada", ALLOW_SIGNATURE_CHANGE: True}
    )
    assert allowed.verdict.decision is Decision.PROMOTE
    assert words in allowed.verdict.reasons[-1]


def test_a_graph_that_was_looked_at_is_known_by_its_bytes_tags_and_operations() -> None:
    known, content = KnownGraphs(), saved_model()
    found = known.look_at(content, ("serve",), False)
    assert known.look_at(bytes(bytearray(content)), ("serve",), False) is found == look_at(content, ("serve",), False)
    assert known.look_at(content, ("serve",), True) is not found
    for _ in range(2):
        with pytest.raises(InvalidInput, match="no graph of the SavedModel is tagged gpu"):
            known.look_at(content, ("gpu",), False)
    for number in range(64):
        known.look_at(saved_model(mark=str(number)), ("serve",), False)
    assert known.look_at(content, ("serve",), False) is not found, "the oldest are forgotten"


@pytest.mark.covers("fmt-signatures")
def test_a_compatible_signature_is_no_change(catalog: Catalog) -> None:
    publish(catalog, {"saved_model.pb": saved_model(inputs={"x": ("DT_FLOAT", (4,))})})
    more = {"saved_model.pb": saved_model(outputs=Y | {"more": Y["y"]}, inputs=X | {"z": X["x"]})}
    x, z = ({"name": name, "dtype": "float32"} for name in "xz")
    optional = {"features": [x, z | {"required": False, "default": 0.5}], "padding": {}}
    said = json.dumps({"serving_default": optional}).encode()
    version = publish(catalog, more | {"assets.extra/headrace_inputs.json": said})
    assert version.verdict.decision is Decision.PROMOTE, version.verdict.reasons


def test_a_definition_may_say_that_signatures_change(catalog: Catalog) -> None:
    publish(catalog, {"saved_model.pb": saved_model()})
    files = definition() | {"signatures.yaml": b"may_change: true\n"}
    catalog.register_model("m", stream="s", files=files, by="ada")
    version = publish(catalog, {"saved_model.pb": saved_model(inputs={"z": X["x"]})})
    assert version.verdict.decision is Decision.PROMOTE
    with pytest.raises(InvalidInput, match="says `may_change"):
        catalog.register_model("m", stream="s", files=definition() | {"signatures.yaml": b"yes"}, by="ada")
