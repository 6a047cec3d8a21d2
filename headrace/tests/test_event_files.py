"""Files of events become request bodies: the same each time, typed by the schema, with the place of every fault."""

import base64
import gzip
import struct
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pandas
import pytest

from common.errors import InvalidInput, NotFound
from common.eventlog.tfrecord import cut, frame
from common.examples.cells import column_name, fitted
from common.schema import Schema
from common.storage import place_of
from headrace.files.batches import BATCH_EVENTS, Batch, SourceFile, batches_of_all
from headrace.files.batches import batches as batches_of
from headrace.files.sources import SourceRequest, open_source, source_of
from headrace.files.tables import rows_of
from headrace.files.upload_state import UploadState
from testing.rows import each_row

SCHEMA = Schema.from_mapping(
    {
        "features": [
            {"name": "distance", "dtype": "float32"},
            {"name": "carrier", "dtype": "string"},
            {"name": "pixels", "dtype": "float32", "shape": [2]},
            {"name": "delay", "dtype": "float32", "required": False, "default": 0.0},
        ],
        "labels": [{"name": "late", "dtype": "int64"}],
    }
)


def batches(path: Path, kind: str, schema: Schema) -> Iterator[Batch]:
    return batches_of(SourceFile(place_of(path), kind), schema)


def _events(path: Path, kind: str) -> list[object]:
    return [orjson.loads(line) for batch in batches(path, kind, SCHEMA) for line in batch.body.splitlines()]


def test_csv_cells_get_the_types_of_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text('carrier,distance,late,pixels,delay\n007,12,1,"[0.5, 1]",\n"U,A",3.5,0,"[2, 3]",4\n')
    assert _events(path, "csv") == [
        {"carrier": "007", "distance": 12.0, "late": 1, "pixels": [0.5, 1]},
        {"carrier": "U,A", "distance": 3.5, "late": 0, "pixels": [2, 3], "delay": 4.0},
    ]


@each_row(
    ("text", "fault"),
    [
        ("", "is empty; a CSV file begins with a line of column names"),
        ("distance,colour\n1,red\n", "columns that the schema does not know: colour; it knows distance, carrier"),
        ("sep=;\ndistance;carrier\n1;UA\n", "begins with sep=;, which is for Excel alone"),
        ("distance,carrier\n1\n", "line 2: 1 value for 2 columns"),
        ("distance,carrier\n1,UA\nfar,UA\n", "line 3: distance 'far' is not a float32"),
        ("late\n1.5\n", "line 2: late '1.5' is not a int64"),
        (
            'carrier,late\nAA,1\nBB,"0\nCC,1\nDD,1\n',
            "line 3: a quote opens a cell that goes on over 3 lines and is not closed",
        ),
        ("carrier,late\nAA,1\ncarrier,late\n", "line 3 has the names of the columns once more"),
        ('carrier,late\n"A,1\n"B,1\n', "line 2: a quote opens a cell that goes on over 2 lines"),
        ("pixels\n1 2\n", "line 2: pixels '1 2' is not a JSON list of float32"),
    ],
)
def test_a_fault_in_a_csv_file_is_named_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=fault.replace("(", "\\(")):
        _events(path, "csv")


@each_row("header", [",".join(f"c{number}" for number in range(50_000)), "c" * 200_000])
def test_a_header_without_end_is_read_or_refused_in_a_sentence(tmp_path: Path, header: str) -> None:
    (tmp_path / "wide.csv").write_text(f"{header}\n{'1,' * 49_999}1\n")
    if "," in header:
        assert [len(row.values) for row in rows_of(tmp_path / "wide.csv")] == [50_000]
        return
    with pytest.raises(InvalidInput, match="line 1: field larger than field limit"):
        list(rows_of(tmp_path / "wide.csv"))


def test_a_line_of_csv_without_end_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("a,b\n" + "1," * (9 << 20))
    with pytest.raises(InvalidInput, match="line 2 is longer than 16777216 characters"):
        list(rows_of(tmp_path / "long.csv"))


@each_row(
    ("header", "name"),
    [("plain_1", "plain_1"), ("sepal length (cm)", "sepal_length_cm"), ("a/b", "a_b"), ("1st", "_1st"),
     ("", "column_3"), ("Unnamed: 0", "column_1"), ("größe", "groe"), ("日", "column_3")],
)  # fmt: skip
def test_a_header_becomes_a_name(header: str, name: str) -> None:
    assert column_name(header, 2) == name


def test_ndjson_lines_go_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"late": 1}\n\n{"late": 0}')
    (batch,) = batches(path, "ndjson", SCHEMA)
    assert batch.body == b'{"late": 1}\n{"late": 0}\n'
    assert (batch.count, batch.byte_count) == (2, path.stat().st_size)


@each_row("line", [b'{"late": true, "late": 0}', b'{"x y": 1, "x_y": 2}', b'{"x": {"y": 1}, "x.y": 2}'])
def test_a_line_that_says_a_thing_twice_goes_as_it_is_for_ingest_to_refuse(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(line + b"\n")
    schema = Schema.from_mapping(
        {"features": [{"name": "x_y", "dtype": "string"}], "labels": [{"name": "late", "dtype": "int64"}]}
    )
    assert [batch.body for batch in batches(path, "ndjson", schema)] == [line + b"\n"]


def test_an_array_that_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"late": 1},\n{"late": 1, "late": 0}]')
    with pytest.raises(InvalidInput, match="has the key 'late' twice"):
        _events(tmp_path / "a.json", "ndjson")


@each_row(
    ("values", "fault"),
    [
        ({"carrier": ["AA", b"Zo\xeb"]}, r"row 2: carrier holds bytes that are not UTF-8"),
        ({"late": [1, 2], "delay": [0.0, float("inf")]}, "row 2: delay is Infinity, expected a finite number"),
        ({"late": [1, 2], "Late": [1, 2], "late ": [1, 2]}, "row 1: more than one column is for late"),
    ],
)
def test_a_value_of_parquet_that_would_be_another_one_is_refused_or_set_aside(
    tmp_path: Path, values: dict[str, list[object]], fault: str
) -> None:
    from pyarrow import Table, array, binary, parquet

    columns = {name: array(v, binary()) if name == "carrier" else array(v) for name, v in values.items()}
    parquet.write_table(Table.from_pydict(columns), path := tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match=fault):
        list(batches(path, "parquet", SCHEMA))
    (batch,) = batches_of(SourceFile(place_of(path), "parquet"), SCHEMA, lenient=True)
    assert fault.split(": ")[1].encode() in batch.body


@each_row(
    ("text", "fault"),
    [
        ("delay\n1e999\n", "expected a finite number"),
        ("delay\n1_0\n", "expected a number without _"),
        ('late\n"9,007,199,254,740,993"\n', "expected a number of this size in digits alone"),
        (f"late\n{2**63}\n", r"expected a whole number from -2\^63 to 2\^63-1"),
    ],
)
def test_a_number_that_would_become_another_one_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InvalidInput, match=fault):
        _events(tmp_path / "a.csv", "csv")


def test_values_of_pandas_that_are_nothing_are_none_and_exact_numbers_stay_exact() -> None:
    late = SCHEMA.labels[0]
    assert [fitted(late, one) for one in (pandas.NA, pandas.NaT, Decimal("NaN"))] == [None] * 3
    assert fitted(late, Decimal(2**53 + 1)) == 2**53 + 1
    assert fitted(SCHEMA.features[0], Decimal(10**31)) == 1e31
    with pytest.raises(ValueError, match=r"expected a whole number from -2\^63"):
        fitted(late, Decimal(10**31))
    with pytest.raises(ValueError, match="is of type complex, expected a text"):
        fitted(SCHEMA.features[1], 1j)


@each_row("value", [b"[" * 1000 + b"]" * 1000, b'{"a": ' * 1000 + b"1" + b"}" * 1000])
def test_a_line_that_is_nested_too_deeply_goes_as_it_is(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"carrier": ' + value + b"}\n")
    (batch,) = batches(path, "ndjson", SCHEMA)
    assert batch.body == path.read_bytes()


def test_a_time_in_parquet_that_python_cannot_hold_is_said_in_a_sentence(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "events.parquet"
    parquet.write_table(pyarrow.table({"late": pyarrow.array([2**62], pyarrow.timestamp("us"))}), path)
    with pytest.raises(InvalidInput, match="holds what cannot be read"):
        list(batches(path, "parquet", SCHEMA))


def test_a_line_longer_than_a_request_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"{}\n" + b"x" * (16 * 1024 * 1024 + 1))
    with pytest.raises(InvalidInput, match=r"line 2 is longer than 16777216 bytes; is it NDJSON\?"):
        list(batches(path, "ndjson", SCHEMA))


def test_tfrecord_frames_go_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "events.tfrecord"
    framed = frame([b"one", b"two", b""])
    for content in (framed, gzip.compress(framed), zlib.compress(framed)):
        path.write_bytes(content)
        (batch,) = batches(path, "tfrecord", SCHEMA)
        assert cut(batch.body)[0] == [b"one", b"two", b""]
    like_zlib = frame([b"1" * 376])
    assert like_zlib[:2] == b"\x78\x01", "as what zlib writes begins"
    path.write_bytes(like_zlib)
    assert [one.body for one in batches(path, "tfrecord", SCHEMA)] == [like_zlib]
    (packed := tmp_path / "events.tfrecord.gz").write_bytes(gzip.compress(framed))
    assert [one.body for one in batches(packed, source_of(place_of(packed)), SCHEMA)] == [framed]
    assert batch.content_type == "application/x-tfrecord"


@each_row(
    ("content", "fault"),
    [
        (frame([b"one", b"two"])[:-3], "record 1 at byte 19 is cut off"),
        (frame([b"one"]) + b"\x01\x02", "record 1 at byte 19 is cut off"),
        (
            struct.pack("<QI", 1 << 40, 0) + b"text",
            "is no TFRecord file: record 0 at byte 0 claims 1099511627776 bytes",
        ),
    ],
)
def test_a_cut_or_foreign_tfrecord_file_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "events.tfrecord"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=fault):
        list(batches(path, "tfrecord", SCHEMA))


def test_a_file_is_cut_at_the_same_places_every_time(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"".join(b'{"late": %d}\n' % number for number in range(BATCH_EVENTS * 2 + 5)))
    first, second = list(batches(path, "ndjson", SCHEMA)), list(batches(path, "ndjson", SCHEMA))
    assert first == second
    assert [(batch.begins_at, batch.position) for batch in first] == [(None, 5_000), (5_000, 10_000), (10_000, 10_005)]
    assert b"".join(batch.body for batch in first) == path.read_bytes()


def test_large_events_make_smaller_batches(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"x" * 1_000_000 + b"\n" + b"y" * 1_000_000 + b"\n")
    path.write_bytes(path.read_bytes() * 5)
    assert [batch.count for batch in batches(path, "ndjson", SCHEMA)] == [5, 5]


def test_the_format_is_told_by_the_name_or_asked_for(tmp_path: Path) -> None:
    assert [source_of(place_of(name)) for name in ("a.csv", "a.jsonl", "a.TFRecord")] == ["csv", "ndjson", "tfrecord"]
    with pytest.raises(InvalidInput, match="--format"):
        source_of(place_of("events.txt"))
    with pytest.raises(NotFound, match=r"there is no .*none\.csv"):
        list(batches(tmp_path / "none.csv", "csv", SCHEMA))


KINDS = Schema.from_mapping(
    {
        "features": [
            {"name": "blob", "dtype": "bytes"},
            {"name": "steps", "dtype": "float32", "shape": [None, 2]},
            {"name": "photo", "dtype": "bytes", "required": False, "image": {"height": 2, "width": 2}},
        ]
    }
)


@pytest.mark.covers("rec-example")
def test_bytes_are_base64_in_text_files_and_steps_are_nested(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text('blob,steps,photo\n/9gA/g==,"[[1, 2], [3, 4]]",\nnull,[],AA\n')
    found = [orjson.loads(line) for batch in batches(path, "csv", KINDS) for line in batch.body.splitlines()]
    assert found == [
        {"blob": {"b64": "/9gA/g=="}, "steps": [[1, 2], [3, 4]]},
        {"blob": {"b64": "null"}, "steps": [], "photo": {"b64": "AA"}},
    ]
    path.write_text("blob,steps\n*,[]\n")
    with pytest.raises(InvalidInput, match=r"line 2: blob '\*' is not base64"):
        list(batches(path, "csv", KINDS))
    lines = tmp_path / "events.ndjson"
    lines.write_bytes(b'{"blob": {"b64": "AA=="}, "steps": [[1, 2]]}\n')
    assert [batch.body for batch in batches(lines, "ndjson", KINDS)] == [lines.read_bytes()]
    assert fitted(KINDS.features[0], b"\xff") == {"b64": "/w=="}


@pytest.mark.covers("pipe-etl", "pipe-custom-source")
@each_row("kind", ["ndjson", "tfrecord"])
def test_files_read_at_once_give_the_batches_of_one_reader(tmp_path: Path, kind: str) -> None:
    for number in range(5):
        lines = [b'{"late": %d}' % (100 * number + line) for line in range(40 * (5 - number))]
        content = frame(lines) if kind == "tfrecord" else b"\n".join(lines)
        (tmp_path / f"{number}.{kind}").write_bytes(content)
    files = [SourceFile(place, kind) for place in place_of(tmp_path).matching()]
    alone = list(batches_of_all(files, SCHEMA))
    assert sum(batch.count for batch in alone) == 600
    assert list(batches_of_all(files, SCHEMA, readers=4)) == alone
    goes_on = [SourceFile(files[0].place, kind, 190), *files[1:]]
    assert sum(batch.count for batch in batches_of_all(goes_on, SCHEMA, readers=2)) == 410


def test_a_fault_comes_where_its_batch_would_have_come(tmp_path: Path) -> None:
    for name, text in (("a", "late\n1\n"), ("b", "late\nx\n"), ("c", "late\n1\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    found = batches_of_all([SourceFile(one, "csv") for one in place_of(tmp_path).matching()], SCHEMA, readers=3)
    assert next(found).place.name == "a.csv"
    with pytest.raises(InvalidInput, match=r"b\.csv, line 2: late 'x'"):
        next(found)


@pytest.mark.covers("fs-remote")
@each_row("kind", ["csv", "parquet", "ndjson", "tfrecord"])
def test_a_file_elsewhere_is_read_as_one_of_this_machine_is(tmp_path: Path, kind: str) -> None:
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist([{"late": 1}, {"late": 0}]), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("late\n1\n0\n")
    (tmp_path / "a.ndjson").write_text('{"late": 1}\n{"late": 0}\n')
    (tmp_path / "a.tfrecord").write_bytes(frame([b"one", b"two"]))
    here, there = place_of(tmp_path / f"a.{kind}"), place_of(f"memory://{tmp_path.name}-{kind}/a.{kind}")
    there.parent.make_dirs()
    here.copy(there)
    local, remote = (list(batches_of(SourceFile(place, kind), SCHEMA)) for place in (here, there))
    assert [batch.body for batch in remote] == [batch.body for batch in local]
    assert sum(batch.count for batch in remote) == 2


_CLASSES = Schema.from_mapping(
    {
        "features": [{"name": "photo", "dtype": "bytes"}, {"name": "text", "dtype": "string"}],
        "labels": [{"name": "kind", "dtype": "string", "vocabulary": ["cat", "dog"]}],
    }
)


def _folder(root: Path) -> set[tuple[str, bytes]]:
    """20 files in the folders of two classes, beside what is none of them; pairs of class and content."""
    (root / "README").write_text("about")
    held = {(kind, f"{kind} {number}".encode()) for kind in ("cat", "dog") for number in range(10)}
    for kind, content in held:
        (root / kind).mkdir(exist_ok=True)
        (root / kind / f"{content.decode()}.png").write_bytes(content)
    (root / "cat" / ".hidden").write_bytes(b"no event")
    return held


@pytest.mark.covers("mode-bottleneck")
@each_row(("kind", "feature"), [("images", "photo"), ("texts", "text")])
def test_a_folder_of_classes_gives_an_event_for_each_file_with_the_classes_mixed(
    tmp_path: Path, kind: str, feature: str
) -> None:
    held = _folder(tmp_path)
    (file,) = UploadState("", "").files(place_of(tmp_path), kind)
    (batch,) = batches_of(file, _CLASSES)
    events = [orjson.loads(line) for line in batch.body.splitlines()]
    contents = [
        base64.b64decode(event[feature]["b64"]) if kind == "images" else event[feature].encode() for event in events
    ]
    assert {(event["kind"], content) for event, content in zip(events, contents, strict=True)} == held
    assert {event["kind"] for event in events[:8]} == {"cat", "dog"}, "not one class after the other"
    position: Any = open_source(kind, SourceRequest(file.place, _CLASSES)).position
    assert position[0] == 0
    rest = open_source(kind, SourceRequest(file.place, _CLASSES, [19, position[1]]))
    assert (rest.next(), rest.next()) == (batch.body.splitlines(keepends=True)[19], None), "it goes on after the 19th"
    (tmp_path / "dog" / "new.png").write_bytes(b"new")
    with pytest.raises(InvalidInput, match="has other files than when reading began"):
        open_source(kind, SourceRequest(file.place, _CLASSES, position))


def test_what_is_no_folder_of_classes_is_refused(tmp_path: Path) -> None:
    for schema, fault in ((_CLASSES, "has no folders with files"), (SCHEMA, "needs a stream with one bytes feature")):
        with pytest.raises(InvalidInput, match=fault):
            open_source("images", SourceRequest(place_of(tmp_path), schema))
    _folder(tmp_path)
    numbered = Schema.from_mapping(
        {"features": [{"name": "photo", "dtype": "bytes"}], "labels": [{"name": "kind", "dtype": "int64"}]}
    )
    with pytest.raises(InvalidInput, match=r"label kind '(cat|dog)' .*; give the label dtype string"):
        open_source("images", SourceRequest(place_of(tmp_path), numbered)).next()
