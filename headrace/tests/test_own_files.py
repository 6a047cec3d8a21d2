"""Folders and archives from somebody else: what only looks like a file of theirs is refused by name."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from common.definition.model import parse_definition
from common.errors import InvalidInput, NotFound
from common.storage import place_of
from headrace.commands.push import checked, saved_model_of
from headrace.files.definition_folder import DefinitionFolder, read_folder
from headrace.files.own_files import own_files
from testing.rows import each_row


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@each_row(
    ("make", "words"),
    [
        (link("/etc/passwd"), "x in .* is a link to /etc/passwd, outside"),
        (link("../secret"), "outside of the folder"),
        (link("/dev/zero"), "outside of the folder"),
        (link("variables"), "is a link to a folder"),
        (link("x"), "x in .* is neither a file nor a folder"),
        (os.mkfifo, "x in .* is neither a file nor a folder"),
    ],
)
def test_links_out_of_a_folder_and_pipes_are_refused(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "folder"
    (folder / "variables").mkdir(parents=True)
    (folder / "model.yaml").write_text("name: m\nstream: s\nwords: x\n")
    (folder / "near").symlink_to("model.yaml")
    assert list(own_files(folder)) == ["model.yaml", "near"]
    make(folder / "x")
    for read in (own_files, checked, read_folder):
        with pytest.raises(InvalidInput, match=words):
            read(folder)


@pytest.mark.covers("api-keras")
def test_files_and_saved_models_that_python_names_are_sent_and_taken(tmp_path: Path) -> None:
    sent = {
        "model.yaml": "name: m\nstream: s\nlabel: y\nmodule: model.py\ntask: binary\n",
        "model.py": "WORDS, ENCODER = 'words.txt', 'encoder'",
        "words.txt": "red\n", "encoder/saved_model.pb": "", "encoder/variables/variables.index": "",
    }  # fmt: skip
    for name, text in (sent | {"notes.txt": "", "decoder/saved_model.pb": "", "encoders/a.txt": ""}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = read_folder(tmp_path).files
    assert files == {name: text.encode() for name, text in sent.items()}
    parse_definition(files)


@pytest.mark.covers("mode-warm-start", "fs-remote")
def test_weights_that_a_definition_names_by_url_become_part_of_it(tmp_path: Path) -> None:
    weights = place_of(f"memory://{tmp_path.name}/words.txt")
    weights.parent.make_dirs()
    weights.write(b"red 1 2\n")
    head = "name: m\nstream: s\nlabel: y\nestimator: dnn_classifier\nfeatures: {x: {type: numeric}}\n"

    def named(url: object) -> DefinitionFolder:
        (tmp_path / "model.yaml").write_text(f"{head}warm_start: {{from: '{url}'}}\n")
        return read_folder(tmp_path)

    files = named(weights).files
    assert files is not None
    assert files["words.txt"] == b"red 1 2\n"
    said = parse_definition(files).warm_start
    assert said is not None
    assert said.file == "words.txt"
    with pytest.raises(NotFound, match="gone"):
        named(f"{weights.parent}/gone.txt")
    with pytest.raises(InvalidInput, match="is on this machine"):
        named("file:///etc/hosts.txt")
    (tmp_path / "words.txt").write_bytes(b"red 3 4\n")
    with pytest.raises(InvalidInput, match=r"is not what the folder has as words\.txt"):
        named(weights)


@each_row(
    ("name", "content", "words"),
    [
        ("../../x.json", b"x", "'../../x.json', which leads out of it"),
        ("/etc/cron.d/x", b"x", "which leads out of it"),
        ("model.weights.h5", bytes(200 << 20), "would grow to 209715200 bytes"),
    ],
)
def test_a_keras_file_that_leaves_its_place_or_blows_up_is_refused_unread(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / "theirs.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    with pytest.raises(InvalidInput, match=words), saved_model_of(path):
        pass


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    path = tmp_path / "theirs.keras"
    path.write_bytes(b"PK\x03\x04 pickle")
    with pytest.raises(InvalidInput, match="is not a Keras file"), saved_model_of(path):
        pass


@each_row("named", ["../secret.json", "{absolute}", "./../definition/../secret.json"])
def test_a_source_names_files_of_its_own_folder_alone(tmp_path: Path, named: str) -> None:
    folder, secret = tmp_path / "definition", tmp_path / "secret.json"
    folder.mkdir()
    secret.write_text('{"password": "x"}')
    named = named.format(absolute=secret)
    (folder / "stream.yaml").write_text(
        f"stream: s\nsource: {{kafka: {{topic: t, format: avro, avro_schema: {named}}}}}\n"
    )
    schema = read_folder(folder).schema
    assert schema is not None
    assert schema["source"]["kafka"]["avro_schema"] == named


def test_a_schema_that_is_nested_without_end_is_said_to_be_no_json(tmp_path: Path) -> None:
    (tmp_path / "o.avsc").write_text("[" * 100_000)
    (tmp_path / "stream.yaml").write_text(
        "stream: s\nsource: {kafka: {topic: t, format: avro, avro_schema: ./o.avsc}}\n"
    )
    with pytest.raises(InvalidInput, match="is not JSON"):
        read_folder(tmp_path)
