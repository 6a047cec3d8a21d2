"""Keys are made, versions verified with and without a platform, and whatever was altered is told by exit status."""

import hashlib
from pathlib import Path

import pytest

from common.registry.signing import make_keys, read_signer
from common.registry.statements import SIGNATURE_FILE, Statement
from headrace.tests.answering_server import MODEL, VERSION, Run, Server

CONTENTS = {"checkpoint/state": b"state", "saved_model/saved_model.pb": b"graph", "saved_model/variables/d": b"data"}
LINEAGE = (
    "round_id", "parent_version", "definition_digest", "configuration_digest", "code_digest", "weights_digest",
)  # fmt: skip
DIGESTS = {path: hashlib.sha256(content).hexdigest() for path, content in CONTENTS.items()}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_keys(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def signed_version(key: Path, *, number: int = 2) -> dict[str, object]:
    files = [{"path": path, "size_bytes": len(CONTENTS[path]), "digest": DIGESTS[path]} for path in CONTENTS]
    about = {name: VERSION[name] for name in LINEAGE} | {"signer": "trainer-1"}
    signature = read_signer(key).sign(Statement("m", number, DIGESTS, about))
    return VERSION | {"files": files, "signature": signature, "signed_by": read_signer(key).key_id}


def test_keys_are_made_and_named(run: Run, tmp_path: Path) -> None:
    made = run.json("keys", "new", str(tmp_path / "k.pem"))
    assert run.json("keys", "show", f"{tmp_path}/k.pem.pub") == {"key_ids": [made["key_id"]]}
    assert run("keys", "new", str(tmp_path / "k.pem")).exit_code == 5


def test_a_version_of_a_platform_is_verified_with_its_bytes(server: Server, run: Run, key: Path) -> None:
    server.will_answer_all(signed_version(key), *CONTENTS.values())
    result = run("verify", "m@2", "--keys", f"{key}.pub")
    assert result.output == f"m@2 is what key {read_signer(key).key_id[:16]} signed: 3 files verified\n"
    server.will_answer_all(signed_version(key), b"other")
    assert run("verify", "m@2", "--keys", f"{key}.pub").exit_code == 8


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ({"signature": ""}, 5, "version 2 of m is not signed"),
        ({"files": []}, 8, "of the signature's files is missing"),
        ({"version": 3}, 8, "is of m@2, not of m@3"),
        ({"parent_version": 77}, 8, "has parent_version 77, the signature names"),
        *(
            ({name: "altered"}, 8, f"has {name} 'altered', the signature names")
            for name in LINEAGE
            if name != "parent_version"
        ),
    ],
)
def test_what_was_not_signed_so_is_refused(
    run: Run, key: Path, answer: dict[str, object], status: int, words: str
) -> None:  # fmt: skip
    result = run("verify", "m@2", "--keys", f"{key}.pub", answers=(signed_version(key) | answer,))
    assert (result.exit_code, words in result.stderr) == (status, True)


def test_an_exported_folder_is_verified_without_a_platform(server: Server, run: Run, key: Path, tmp_path: Path) -> None:
    server.will_answer_all(
        signed_version(key), CONTENTS["saved_model/saved_model.pb"], CONTENTS["saved_model/variables/d"]
    )
    assert run("model", "export", "m@2", "--to", str(tmp_path / "out")).exit_code == 0
    folder, keys = tmp_path / "out" / "2", f"{key}.pub"
    assert run("verify", str(folder), "--keys", keys).exit_code == 0
    make_keys(tmp_path / "foreign.pem")
    assert run("verify", str(folder), "--keys", f"{tmp_path}/foreign.pem.pub").exit_code == 5
    folder.rename(tmp_path / "out" / "3")
    assert "is of m@2, not of m@3" in run.refusal("verify", str(tmp_path / "out" / "3"), "--keys", keys, status=8)
    (tmp_path / "out" / "3").rename(folder)
    (folder / "variables" / "d").write_bytes(b"DATA")
    assert run("verify", str(folder), "--keys", keys).exit_code == 8
    (folder / SIGNATURE_FILE).unlink()
    assert run("verify", str(folder), "--keys", keys).exit_code == 5


def test_a_version_says_by_whom_it_is_signed(server: Server, run: Run, key: Path) -> None:
    server.will_answer_all(MODEL, signed_version(key), {"digest": "d", "files": {}})
    assert f"key {read_signer(key).key_id[:16]}" in run("show", "m@2").output
