"""`make advisories FOLDER=`: which versions an advisory is about, by OSV's schema, and what pip-audit is answered."""

import json
import runpy
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from testing.rows import each_row

_TOOL = runpy.run_path(str(Path(__file__).parents[2] / "docker" / "advisories.py"))
_EVENTS = [{"introduced": "1.2"}, {"fixed": "1.10"}, {"introduced": "2.0rc1"}, {"last_affected": "2.3"}]


def advisory(name: str = "Some_Package", *, ecosystem: str = "PyPI", **affected: Any) -> dict[str, Any]:
    return {"id": "A-1", "affected": [{"package": {"name": name, "ecosystem": ecosystem}, **affected}]}


def written(folder: Path, *records: dict[str, Any]) -> Any:
    for number, record in enumerate(records):
        (folder / "deep").mkdir(exist_ok=True)
        (folder / "deep" / f"{number}.json").write_text(json.dumps(record))
    return _TOOL["read"](folder)


@each_row(
    ("version", "is_known"),
    [
        ("1.1", False), ("1.2", True), ("1.9.5", True), ("1.10", False), ("1.11", False), ("2.0b1", False),
        ("2.0rc1", True), ("2.3", True), ("2.3.post1", False), ("0.1", False), ("7.7", True),
    ],
)  # fmt: skip
def test_an_advisory_is_about_the_versions_of_its_ranges_and_its_list(
    tmp_path: Path, version: str, is_known: bool
) -> None:
    found = written(tmp_path, advisory(ranges=[{"type": "ECOSYSTEM", "events": _EVENTS}], versions=["7.7"]))
    assert bool(_TOOL["known"](found, "some.package", version)) is is_known


def test_what_is_withdrawn_or_of_others_counts_for_nothing_and_zero_is_before_all(tmp_path: Path) -> None:
    everything: dict[str, Any] = {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}
    commits: dict[str, Any] = {"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}
    found = written(
        tmp_path, advisory("a", **everything), advisory("b", ecosystem="npm", **everything), advisory("d", **commits),
        {**advisory("c", **everything), "withdrawn": "2026-01-01T00:00:00Z"},
    )  # fmt: skip
    assert [name for name in "abcd" if _TOOL["known"](found, name, "0.0.dev1")] == ["a"]


def test_a_record_may_be_yaml_as_pypas_database_has_it(tmp_path: Path) -> None:
    text = "id: A-1\nmodified: 2026-01-02\naffected:\n- package: {ecosystem: PyPI, name: some-package}\n"
    (tmp_path / "A-1.yaml").write_text(
        f"{text}  ranges:\n  - type: ECOSYSTEM\n    events: [{{introduced: 0}}, {{fixed: 1.10}}]\n"
    )
    found = _TOOL["read"](tmp_path)
    assert [bool(_TOOL["known"](found, "some-package", version)) for version in ("1.9", "1.10")] == [True, False]
    assert json.loads(json.dumps(found))["some-package"][0]["modified"] == "2026-01-02"


def test_the_server_answers_as_osvs_does(tmp_path: Path) -> None:
    record = advisory(versions=["1.0"])
    server = _TOOL["server_of"](written(tmp_path, record))
    for version, vulns in (("1.0", [record]), ("1.1", [])):
        asked = {"package": {"name": "some-package", "ecosystem": "PyPI"}, "version": version}
        url = f"http://127.0.0.1:{server.server_port}/v1/query"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode()), timeout=60) as answer:
            assert json.load(answer) == {"vulns": vulns}
    server.shutdown()


def test_a_folder_without_advisories_fails_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _TOOL["main"](str(tmp_path), "pip-audit") == 2
    assert "has no advisory of a package of PyPI" in capsys.readouterr().err
