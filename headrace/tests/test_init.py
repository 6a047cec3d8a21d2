"""`headrace init`: a file becomes a folder that the platform takes, and every row of the file fits its stream."""

import bz2
import datetime
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import orjson
import pandas
import pytest
import yaml
from typer.testing import CliRunner, Result

from common.definition.model import Definition, parse_definition
from common.errors import InvalidInput
from common.examples.codec import ExampleCodec
from common.schema import Schema
from common.storage import place_of
from headrace.cli import app
from headrace.files.batches import SourceFile, batches
from headrace.files.row_files import Wanted, read_rows
from headrace.files.sources import source_of
from headrace.files.tables import rows_of
from testing.rows import each_row

MESSY = (
    'id,when,"Full name",Zip/Code,"height (cm)",Member?,visits,city,note,grade\n'
    '1,2026-01-05,"Doe, Jane",01234,170.5,yes,2.0,Köln,,good\n'
    '2,2026-01-06 10:30 UTC,"O""Brien",01239,,no,,Bonn,"line\nbreak",bad\n'
    "3,2026-01-07T08:00:00Z,Ann,01234,NA,yes,3.0,Köln,?,good\n"
    "4,2026-01-08,Bob,99999,1.6e2,no,1.0,Bonn,x,bad\n"
)


def init(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


def written(folder: Path) -> tuple[Schema, Definition]:
    """What the folder says, checked as the registry checks it."""
    stream = yaml.safe_load((folder / "stream.yaml").read_text())
    stream.pop("stream")
    schema = Schema.from_mapping(stream)
    definition = parse_definition({"model.yaml": (folder / "model.yaml").read_bytes()})
    definition.check_schema(schema)
    return schema, definition


def made(folder: Path, name: str, content: str | bytes, *options: object) -> tuple[Path, Schema, Definition]:
    """A file of this name and content in the folder, and what `headrace init` says of it, in `d` beside it."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = init(path, "--into", folder / "d", *options)
    assert result.exit_code == 0, result.output
    return path, *written(folder / "d")


def events(path: Path, schema: Schema) -> list[dict[str, Any]]:
    """What `headrace ingest` sends; each value is checked against its feature."""
    file = SourceFile(place_of(path), source_of(place_of(path)))
    sent = [orjson.loads(line) for batch in batches(file, schema) for line in batch.body.splitlines()]
    kinds = {"float32": (float, int), "int64": (int,), "string": (str,)}
    for event in sent:
        assert set(event) <= {feature.name for feature in schema.columns}
        for feature in schema.columns:
            if feature.required:
                assert feature.name in event, (feature, event)
            values = event.get(feature.name, [])
            for value in values if isinstance(values, list) else [values]:
                assert type(value) in kinds[feature.dtype], (feature, value)
                assert feature.minimum is None or value >= feature.minimum
                assert feature.maximum is None or value <= feature.maximum
                assert not feature.vocabulary or value in feature.vocabulary
    return sent


def test_a_messy_csv_becomes_a_folder_that_is_applied_and_ingested_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("\ufeff" + MESSY)
    result = init(path, "--into", tmp_path / "people")
    assert result.exit_code == 0, result.output
    assert "binary on grade" in result.stdout
    assert "numbers the rows" in result.stdout
    schema, definition = written(tmp_path / "people")
    assert (definition.task, definition.label, schema.event_time) == ("binary", "grade", "when")
    assert schema.feature("grade").vocabulary == ("bad", "good")
    assert {feature.name: feature.dtype for feature in schema.features} == {
        "id": "int64", "when": "int64", "Full_name": "string", "Zip_Code": "string", "height_cm": "float32",
        "Member": "int64", "visits": "float32", "city": "string", "note": "string",
    }  # fmt: skip
    assert [feature.name for feature in schema.features if not feature.required] == ["height_cm", "visits", "note"]
    assert events(path, schema)[1] == {
        "id": 2, "when": 1767695400, "Full_name": 'O"Brien', "Zip_Code": "01239", "Member": 0, "city": "Bonn",
        "note": "line\nbreak", "grade": "bad",
    }  # fmt: skip
    as_sent = {
        "id": 2, "when": 1767695400, "Full name": 'O"Brien', "Zip/Code": "01239", "Member?": "no", "city": "Bonn",
        "note": "line\nbreak", "grade": "bad",
    }  # fmt: skip
    assert ExampleCodec(schema).encode(as_sent) == ExampleCodec(schema).encode(events(path, schema)[1])


WORDS = ("the", "a", "my", "order", "box", "phone", "arrived", "today", "was", "please", "help", "with", "team")


def sentence(number: int, count: int = 6) -> str:
    return " ".join(WORDS[(number * (place + 3) + place) % len(WORDS)] + str(number % 7) for place in range(count))


@each_row(
    ("texts", "spec"),
    [
        ([sentence(number) for number in range(80)], {"type": "text", "max_words": 10_000}),
        ([sentence(number % 30, 8) for number in range(200)], {"type": "text"}),
        ([f"今日は荷物が届きました{chr(0x4E00 + number)}" for number in range(40)],
         {"type": "text", "split": "characters", "ngrams": 2}),
        (["red", "dark blue", "a very light kind of green"] * 30, {"type": "vocabulary"}),
        ([f"{place} County" for place in range(60)] * 3, {"type": "vocabulary"}),
        ([f"{number:08x}-{number * 7919 % 65536:04x}-4a2b" for number in range(80)], None),
        ([f"Doe{number}, Jane" for number in range(80)], None),
    ],
)  # fmt: skip
def test_texts_are_told_from_classes_names_and_ids(
    tmp_path: Path, texts: list[str], spec: dict[str, Any] | None
) -> None:
    rows = [
        {"text": text, "n": number % 5 / 2, "label": "ham" if number % 3 else "spam"}
        for number, text in enumerate(texts)
    ]
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "d.csv", index=False)
    frame.to_parquet(tmp_path / "d.parquet")
    (tmp_path / "d.ndjson").write_text("\n".join(map(json.dumps, rows)))
    for name in ("d.csv", "d.parquet", "d.ndjson"):
        folder = tmp_path / name.replace(".", "_")
        result = init(tmp_path / name, "--into", folder)
        assert result.exit_code == 0, result.output
        _, definition = written(folder)
        features = yaml.safe_load((folder / "model.yaml").read_text())["features"]
        of_text = [one for key, one in features.items() if key == "text" or one.get("of") == "text"]
        assert [one["type"] for one in of_text][:1] == ([spec["type"]] if spec else []), features
        assert spec is None or spec.items() <= of_text[0].items()
        assert (definition.task, definition.label) == ("binary", "label")


def test_a_message_and_a_label_are_enough(tmp_path: Path) -> None:
    rows = [f"{sentence(number)},{'ham' if number % 2 else 'spam'}" for number in range(60)]
    _, schema, definition = made(tmp_path, "d.csv", "\n".join(["message,label", *rows]))
    assert [feature.name for feature in schema.features] == ["message"]
    assert definition.features["message_vector"].of == "message_words"


@each_row(("unit", "said"), [(1.0, (0.0, 1.0)), (1e5, (995_000.0, 576_600.0))])
def test_a_large_label_is_said_to_be_large(tmp_path: Path, unit: float, said: tuple[float, float]) -> None:
    """Of more different values than are counted one by one, too."""
    rows = [f"{0.5 * row},{unit * (row % 2000) / 100 + row / 1e7}" for row in range(4000)]
    _, _, definition = made(tmp_path, "d.csv", "\n".join(["x,price", *rows]))
    (head,) = definition.heads
    assert (head.mean, head.deviation) == pytest.approx(said, rel=0.01)


@each_row(
    ("label", "values", "task", "expected"),
    [
        ("target", ["0", "1", "2"], "multiclass", {"dtype": "int64", "min": 0, "max": 2}),
        ("target", ["0.0", "1.0"], "binary", {"dtype": "int64", "min": 0, "max": 1}),
        ("y", ["yes", "no"], "binary", {"dtype": "int64", "min": 0, "max": 1, "yes_no": True}),
        ("y", ["👍", "👎"], "binary", {"dtype": "string", "vocabulary": ["👍", "👎"]}),
        ("y", ["-1", "1"], "binary", {"dtype": "string", "vocabulary": ["-1", "1"]}),
        ("y", ["<=50K", ">50K"], "binary", {"dtype": "string", "vocabulary": ["<=50K", ">50K"]}),
        ("price", [f"{number}.5" for number in range(40)], "regression", {"dtype": "float32"}),
        ("price", [f"{number}" for number in range(40)], "regression", {"dtype": "float32"}),
        ("price", [f'"{number},500"' for number in range(1, 41)], "regression", {"dtype": "float32"}),
    ],
)
def test_the_label_tells_the_task(
    tmp_path: Path, label: str, values: list[str], task: str, expected: dict[str, Any]
) -> None:
    rows = [f"{0.5 * number},{values[number % len(values)]}" for number in range(80)]
    path, schema, definition = made(tmp_path, "d.csv", "\n".join([f"x,{label}", *rows]))
    assert definition.task == task
    assert schema.feature(label).to_mapping() == {"name": label} | expected
    assert len(events(path, schema)) == 80


def test_a_later_file_fits_what_a_first_one_was_taken_for(tmp_path: Path) -> None:
    first = 'at,x,n,code,sum,y\n1901-05-01,5.0,7,16777217.0,"1,234",a\n1902-05-01,6.0,8,16777219.0,9,b\n'
    (tmp_path / "later.csv").write_text('at,x,n,code,sum,y\n1899-05-01,-5.5,-70,16777221,"-1,234",a\n')
    _, schema, _ = made(tmp_path, "d.csv", first)
    assert [feature.dtype for feature in schema.features] == ["int64", "float32", "int64", "int64", "int64"]
    (later,) = events(tmp_path / "later.csv", schema)
    assert (later["x"], later["n"], later["code"], later["sum"]) == (-5.5, -70, 16777221, -1234)


def test_ndjson_and_parquet_say_the_same_as_csv(tmp_path: Path) -> None:
    frame = pandas.DataFrame({
        "sepal length (cm)": [5.1, 4.9, None, 6.0] * 5, "ok": [True, False] * 10, "n": [1.0, 2.0, None, 4.0] * 5,
        "at": pandas.to_datetime(["2026-01-01", "2026-01-02"] * 10), "target": ["a", "b"] * 10,
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(at=frame["at"].astype(str)).to_json(tmp_path / "t.ndjson", orient="records", lines=True)
    frame.to_parquet(tmp_path / "t.parquet")
    found = []
    for name in ("t.csv", "t.ndjson", "t.parquet"):
        assert init(tmp_path / name, "--into", tmp_path / "t", "--force").exit_code == 0
        schema, _ = written(tmp_path / "t")
        found.append((schema, events(tmp_path / name, schema)))
    assert found[0] == found[1] == found[2]
    assert found[0][1][0] == {"sepal_length_cm": 5.1, "ok": 1, "n": 1, "at": 1767225600, "target": "a"}


@each_row(
    ("name", "text", "expected"),
    [
        ("euro.csv", 'n,price,off,y\n1,"€1,234.50",5 %,0\n2,€7,12%,1\n3,-€9.25,0 %,1\n',
         {"n": 1, "price": 1234.5, "off": 5.0, "y": 0}),
        ("comma.csv", "n;price;off;y\n1;1.234,5;0,5;0\n2;7,25;1,5;1\n3;-9;2;1\n",
         {"n": 1, "price": 1234.5, "off": 0.5, "y": 0}),
        ("france.csv", "n;price;off;y\n1;1\u202f234,5;0,5;0\n2;12 345 678,25;1,5;1\n3;-9;2;1\n",
         {"n": 1, "price": 1234.5, "off": 0.5, "y": 0}),
        ("swiss.csv", "n;price;off;y\n1;1'234.50;0.5;0\n2;CHF 12’345.25;1.5;1\n3;−9;−2;1\n",
         {"n": 1, "price": 1234.5, "off": 0.5, "y": 0}),
        ("accounts.csv", 'n,price,off,y\n1,"($1,234.50)",(5),0\n2,9.25,6,1\n3,10,7,1\n',
         {"n": 1, "price": -1234.5, "off": -5.0, "y": 0}),
        ("excel.csv", "n;price;off;y;;;\n1;1.234,5;0,5;0;;;\n2;#N/A;1,5;1;;;\n3;2;2;1;;;\n",
         {"n": 1, "price": 1234.5, "off": 0.5, "y": 0}),
        ("marks.csv", "n,price,off,y\n1,1234.5,0.5,0\n2,.,\\N,1\n3,<NA>,NaT,1\n",
         {"n": 1, "price": 1234.5, "off": 0.5, "y": 0}),
        ("blanks.csv", 'n, price, off, y\n1, "1,234.5", 0.5, 0\n2, 7, 1.5, 1\n3, 8, 2.5, 1\n',
         {"n": 1, "price": 1234.5, "off": 0.5, "y": 0}),
        ("nested.ndjson", "".join(f'{{"n": {n}, "a": {{"price": {n}.5, "in": {{"off": 0.5}}}}, "y": {n % 2}}}\n'
                                  for n in range(4)),
         {"n": 0, "a_price": 0.5, "a_in_off": 0.5, "y": 0}),
    ],
)  # fmt: skip
def test_amounts_decimal_commas_and_objects_are_numbers(
    tmp_path: Path, name: str, text: str, expected: dict[str, Any]
) -> None:
    """For `predict --file` as for `ingest`."""
    path, schema, _ = made(tmp_path, name, text)
    assert events(path, schema)[0] == expected
    types = {feature.name: "DT_FLOAT" for feature in schema.features}
    found = read_rows(path, Wanted(types, schema, "y"))
    assert {**found.rows[0], "y": found.labels[0]} == expected


def test_amounts_in_several_currencies_are_texts_and_an_id_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    rows = [f"{10**15 + 7 * n % 11},{10**15 + n // 2},{'$€'[n % 2]}{n},{n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["Customer ID,large,paid,x,y", *rows]))
    result = init(path, "--into", tmp_path / "d")
    schema, definition = written(tmp_path / "d")
    assert (schema.key, schema.feature("paid").dtype, set(definition.features)) == ("Customer_ID", "string", {"x"})
    assert "numbers too large" in " ".join(result.stdout.split())


def test_lists_keep_their_shape(tmp_path: Path) -> None:
    rows = [
        {"pixels": [0.5, 1.0, n], "tags": ["a"] * (n % 3), "ids": [n] * (n % 3), "steps": [0.5] * (n % 3), "y": n % 2}
        for n in range(20)
    ]
    path, schema, definition = made(tmp_path, "lists.ndjson", b"\n".join(map(orjson.dumps, rows)))
    assert [feature.shape for feature in schema.features] == [(3,), (None,), (None,), (None,)]
    assert set(definition.features) == {"pixels", "tags", "tags_vector", "ids", "ids_vector"}
    assert len(events(path, schema)) == 20


def test_lists_in_lists_keep_their_shape(tmp_path: Path) -> None:
    rows = [
        {"table": [[n, 1], [2, 3]], "visits": [["a"], [], ["b", "c"]], "pairs": [[n, 1]] * (n % 3), "y": n % 2}
        for n in range(20)
    ]
    rows = [row | {"singles": [[n]] * (n % 3)} for n, row in enumerate(rows)]
    _, schema, definition = made(tmp_path, "lists.ndjson", b"\n".join(map(orjson.dumps, rows)))
    shapes: dict[str, Any] = {"table": (2, 2), "visits": (None, None), "visits_row_lengths": (None,)}
    shapes |= {"pairs": (None, 2), "singles": (None, 1)}
    assert {feature.name: feature.shape for feature in schema.features} == shapes
    assert set(definition.features) == {"table", "visits", "visits_vector"}


@each_row("lists", [[[1], [[1], [2]]], [[[1], 2], [[1], [2]]], [[[[1]]], [[[2]]]], [[1, None], [1, 2]], [5, [1, 2]]])
def test_lists_that_no_feature_holds_are_refused_by_name(tmp_path: Path, lists: list[Any]) -> None:
    path = tmp_path / "d.ndjson"
    path.write_bytes(b"\n".join(orjson.dumps({"l": value, "x": n, "y": n % 2}) for n, value in enumerate(lists * 5)))
    assert "column 'l' holds objects, null in a list" in init(path, "--label", "y", "--into", tmp_path / "d").stderr


@each_row(
    ("text", "options", "sentence"),
    [
        ("", (), "is empty; a CSV file begins with a line of column names"),
        ("x,y\n", (), "the file has no rows to learn from"),
        ("x,y\n1,0\n2\n", (), "line 3: 1 value for 2 columns"),
        ("a b,a/b,y\n1,2,0\n3,4,1\n", (), "the columns 'a b' and 'a/b' would both be called a_b"),
        ("x,y\n1,0\n2,1\n", ("--label", "z"), "there is no column 'z'; there are x, y"),
        ("km,late\n1,0\n2,1\n", ("--label", "lat"), "there are km, late; did you mean late?"),
        ("x,y\n1,5\n2,5\n", (), "label 'y' has 1 different values; there is nothing to tell apart"),
        ("x,x\n1,5\n2,5\n", (), "has the column 'x' more than once"),
        ("y\n0\n1\n", (), "the file has one column, 'y'"),
        (
            "a,at,y\n3,2026-01-31,0\n3,2026-02-01,1\n",
            (),
            "learn from: 'a' is the same in every row: 3; 'at' is when it",
        ),
        ("x,y\n1,0\n", (), "the file has one row, and there is nothing to compare it with; JSON that holds columns"),
        ("x y\n1 0\n2 1\n", (), "the file has one column, 'x y', and nothing to learn it from; of CSV the cells are"),
        ("Sales\nx,y\n1,0\n", (), "line 2: 2 values for 1 column; the first line has the names of all columns"),
        ('x,w,y\n1,"a \\"b\\" c",0\n', (), "line 2: ',' expected after '\"'; quotes within a quoted cell are doubled"),
        ("x;y;;\n1;0;;\n2;1;;7\n", (), "line 3: 4 values for 2 columns"),
        ("# by R\nx,y\n1,0\n", (), "begins with the comment '# by R'; take the line out"),
        ("5.1,a,0\n4.9,a,1\n4.7,b,0\n", (), "the first line of d.csv holds values (5.1, a, 0)"),
        ("PK\x03\x04", (), "is a zip file or a spreadsheet"),
        ("x\0,y\0\n1,0\n", (), "has zero bytes in its first line, as UTF-16 has"),
    ],
)
def test_what_cannot_be_guessed_is_a_sentence(
    tmp_path: Path, text: str, options: tuple[str, ...], sentence: str
) -> None:
    path = tmp_path / "d.csv"
    path.write_text(text)
    result = init(path, "--into", tmp_path / "d", *options)
    assert result.exit_code == InvalidInput.exit
    assert sentence in result.stderr
    assert not (tmp_path / "d").exists()


@each_row(
    ("name", "content"),
    [
        ("d.csv", "x,y\n1.5,0\n2,1\n".encode("utf-16")),
        ("d.csv.gz", gzip.compress(b"x,y\n1.5,0\n2,1\n")),
        ("d.ndjson.bz2", bz2.compress(b'{"x": 1.5, "y": 0}\n{"x": 2, "y": 1}\n')),
        ("d.jsonl.xz", lzma.compress(b'{"x": 1.5, "y": 0}\n{"x": 2, "y": 1}\n')),
        ("d.json", b'[{"x": 1.5, "y": 0}, {"x": 2, "y": 1}]'),
        ("d.json", b'[\n {"x": 1.5,\n "y": 0}, {"x": 2, "y": 1}]'),
        ("d.ndjson", b'\xef\xbb\xbf{"x": 1.5, "y": 0}\n{"x": 2, "y": 1}\n'),
    ],
)
def test_packed_files_arrays_and_other_encodings_are_read(tmp_path: Path, name: str, content: bytes) -> None:
    path, schema, _ = made(tmp_path, name, content, "--stream", "s")
    assert [event["x"] for event in events(path, schema)] == [1.5, 2]
    found = read_rows(path, Wanted({"x": "DT_FLOAT"}, schema, "y"))
    assert [row["x"] for row in found.rows] == [1.5, 2]


@each_row("name", ["d.xlsx", "d.zip", "d.csv.zst", "d.arff", "d.orc", "d.txt"])
def test_a_file_of_another_kind_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    result = init(tmp_path / name, "--into", tmp_path / "d")
    assert result.exit_code == InvalidInput.exit
    assert f"{name} is not read as it is: " in result.stderr


def test_a_packed_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,0\n2,1\n" * 999)[:-9])
    assert "d.csv.gz cannot be unpacked" in init(tmp_path / "d.csv.gz", "--into", tmp_path / "d").stderr


def test_nan_in_json_is_no_value(tmp_path: Path) -> None:
    content = '{"x": 1, "y": 0}\n{"x": NaN, "y": 1}\n{"x": 3, "y": 1}\n'
    path, schema, _ = made(tmp_path, "d.ndjson", content, "--stream", "s")
    assert [event.get("x") for event in events(path, schema)] == [1, None, 3]
    path.write_text('{"x": 1, "y": 0}\n{"x": Infinity, "y": 1}\n')
    assert "line 2 is not JSON" in init(path, "--into", tmp_path / "e").stderr
    path.write_text('{\n"x": 1\n}\n')
    assert "rows are objects, each on a line or all in one JSON array" in init(path, "--into", tmp_path / "e").stderr


def test_what_parquet_and_json_hold_fits_the_schema_that_is_made_of_it(tmp_path: Path) -> None:
    from pyarrow import array, feather, int64, map_, parquet, string, table, uint64

    half = [float("inf"), 0.5, 1.0]
    columns = {
        "m": array([[("k", n)] for n in range(3)], map_(string(), int64())),
        "took": array([datetime.timedelta(seconds=n + 0.5) for n in range(3)]),
        "code": array(["a", "b", "c"]),
        "half": array(half),
        "hash": array([2**64 - 1 - n for n in range(3)], uint64()),
        "raw": array([b"a", None, b"\xff"]),
        "y": array(["a", "b", "a"]),
    }
    parquet.write_table(table(columns), path := tmp_path / "d.parquet")
    result = init(path, "--into", tmp_path / "d")
    assert result.exit_code == 0, result.output
    schema, _ = written(tmp_path / "d")
    assert [(f.name, f.dtype) for f in schema.features] == [
        ("m_k", "int64"), ("took", "float32"), ("code", "string"), ("half", "float32"), ("hash", "string"),
        ("raw", "bytes"),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="row 1: half is Infinity"):
        events(path, schema)
    columns["half"] = array([None, 0.5, 1.0])
    parquet.write_table(table(columns), path)
    as_parquet = list(rows_of(path))
    for name, packing in (("d.feather", "lz4"), ("d.arrow", "uncompressed")):
        feather.write_feather(table(columns), tmp_path / name, compression=packing, chunksize=2)
        assert init(tmp_path / name, "--into", tmp_path / packing).exit_code == 0
        assert list(rows_of(tmp_path / name)) == as_parquet
    (tmp_path / "d.ndjson").write_text('{"code": 1.5, "took": 1}\n{"code": 7.0, "took": 2}\n{"code": "x", "took": 3}\n')
    two = Schema.from_mapping({"features": [schema.feature(name).to_mapping() for name in ("code", "took")]})
    assert [event["code"] for event in events(tmp_path / "d.ndjson", two)] == ["1.5", "7", "x"]


def test_what_a_mark_between_three_digits_is_taken_for_is_said(tmp_path: Path) -> None:
    rows = "".join(f"{n}.500;{n},500;{n}.5;{'ab'[n % 2]}\n" for n in range(1, 41))
    (tmp_path / "d.csv").write_text(f"p;c;x;y\n{rows}")
    told = json.loads(
        CliRunner().invoke(app, ["--json", "init", str(tmp_path / "d.csv"), "--into", str(tmp_path / "d")]).stdout
    )["columns"]
    assert ["taken for" in column["why"] for column in told] == [True, True, False, False]
    assert told[0]["why"].endswith("; 1.500 is taken for 1.5")


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"x,y\n" + b"a,1\n" * 500 + b"Zo\xeb,2\n")
    result = init(tmp_path / "d.csv", "--into", tmp_path / "d")
    assert result.exit_code == InvalidInput.exit
    assert "is not UTF-8 in line 502 ('Zo�,2')" in result.stderr


def test_what_keeps_a_column_from_being_numbers_is_said(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    rows = [f"{number / 7},{number % 28 + 1}/12/2025,a{number % 3}\x85b\0,{number % 2}" for number in range(40)]
    path.write_text("\n".join(["x,day,word,y", *rows, "Total,,,1"]))
    result = init(path, "--into", tmp_path / "d", "--stream", "s", "--json")
    assert [one["why"] for one in json.loads(result.stdout)["columns"][:2]] == [
        "text, by Total; all else are numbers or dates",
        "a date in another form than 2026-01-31, which is the form that is read; not learned from",
    ]
    written(tmp_path / "d")


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("x;y\n1,5;0\n2;1\n")
    assert init(path, "--into", tmp_path / "d").exit_code == 0
    again = init(path, "--into", tmp_path / "d")
    assert again.exit_code == 5
    assert "has stream.yaml and model.yaml already" in again.stderr
    result = CliRunner().invoke(app, ["--json", "init", str(path), "--into", str(tmp_path / "d"), "--force"])
    told = json.loads(result.stdout)
    assert (told["task"], told["rows"], [c["column"] for c in told["columns"]]) == ("binary", 2, ["x", "y"])
