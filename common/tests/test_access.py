"""The access file: who it names, what is refused, and how a change of it is taken."""

import os
import time
from pathlib import Path

import pytest

from common.access.access import LOOK_SECONDS, Access, read_access
from common.access.file_changes import when_changed
from common.access.principal import ANONYMOUS, Principal, act_as, author_of, check_roles
from common.access.tokens import digest_of, new_token
from common.errors import InvalidInput, Unauthenticated
from testing.rows import each_row

_TOKEN = "hr_utS7rfAcnK_ofmXVD1DL0xOZRsqqZL5lOnok0wbAsqQ"  # of no platform
_DIGEST = digest_of(_TOKEN)


def _content(name: str = "ada", roles: str = "operator", digest: str = _DIGEST) -> str:
    return f"principals: [{{name: {name}, roles: [{roles}], token_sha256: ['{digest}']}}]"


def _certified(name: str) -> str:
    return _content(name=name).replace("token_sha256", "certificates").replace(f"'{_DIGEST}'", "CN=a")[:-1]


def _access(path: Path, content: str) -> Access:
    path.write_text(content)
    return Access(path)


def test_a_token_is_256_random_bits() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token.removeprefix("hr_")) for token in tokens} == {43}


@each_row("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token_stands_for_its_principal(tmp_path: Path, scheme: str) -> None:
    access = _access(tmp_path / "access.yaml", _content())
    assert access.principal_of(f"{scheme} {_TOKEN}") == Principal("ada", frozenset({"operator"}))


@each_row(
    "header",
    ["", "Bearer", "Bearer ", f"Basic {_TOKEN}", _TOKEN, f"Bearer {_TOKEN}x", f"Bearer {_DIGEST}", f"Bearer  {_TOKEN}",
     f"Bearer {_TOKEN.upper()}", f"Bearer {_TOKEN}, Bearer {_TOKEN}", "Bearer \udcff\u00e9"],
)  # fmt: skip
def test_nothing_else_stands_for_anybody(tmp_path: Path, header: str) -> None:
    access = _access(tmp_path / "access.yaml", _content())
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            access.principal_of(header)


@each_row(
    ("content", "reason"),
    [
        ("principals: [{name: ada, roles: [], token_sha256: [x]}]", "roles"),
        (_content(roles="root"), "'root' is no role"),
        (_content(roles="predict"), "'predict' is no role"),
        (_content(roles="'predict:a b'"), "is no role"),
        (_content(digest="A" * 64), "64 lower-case hexadecimal digits"),
        (_content(digest="").replace("''", "1"), "token_sha256"),
        (_content(name="'a/b'"), "no name of a principal"),
        ("principals: [{name: ada, roles: [viewer], certificate: CN=ada}]", "certificate"),
        ("tokens: []", "tokens"),
        ("principals: {}", "principals"),
        ("- 1", "access.yaml"),
        ("principals: [", "is not YAML"),
        ("principals: []\nprincipals: []", "given twice"),
        (_content()[:-1] + ", " + _content(name="bob").partition("[")[2], "a token of ada"),
        (_content()[:-1] + ", " + _content(digest="0" * 64).partition("[")[2], "the name ada"),
        (_certified("a") + ", " + _certified("b").partition("[")[2] + "]", "the certificate CN=a"),
    ],
)
def test_a_file_that_is_wrong_is_refused_and_its_digests_are_not_quoted(
    tmp_path: Path, content: str, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        _access(tmp_path / "access.yaml", content)
    assert _DIGEST not in caught.value.message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        Access(tmp_path / "none.yaml")


def test_a_change_counts_with_the_next_request_and_a_bad_one_leaves_things_as_they_were(tmp_path: Path) -> None:
    path, other = tmp_path / "access.yaml", new_token()
    access = _access(path, _content())
    assert access.principal_of(f"Bearer {_TOKEN}").name == "ada"
    assert access.remark == ""
    path.write_text(_content(name="bob", digest=digest_of(other)))
    _eventually(access, other, "bob")
    with pytest.raises(Unauthenticated):
        access.principal_of(f"Bearer {_TOKEN}")
    path.write_text(_content(roles="root"))
    _eventually_remarks(access, "newest content is refused")
    assert access.principal_of(f"Bearer {other}").name == "bob"
    path.unlink()
    assert access.principal_of(f"Bearer {other}").name == "bob"
    path.write_text(_content())
    _eventually(access, _TOKEN, "ada")
    assert access.remark == ""


def test_a_file_that_was_away_and_is_there_again_has_no_fault(tmp_path: Path) -> None:
    access = _access(tmp_path / "file", _content())
    os.utime(tmp_path / "file", (1, 1))
    assert access.path is not None
    access.path.rename(tmp_path / "kept")
    access.path.symlink_to(tmp_path / "kept")
    assert access.remark == ""
    access.path.unlink()
    _eventually_remarks(access, "newest content is refused")
    access.path.symlink_to(tmp_path / "kept")
    assert any(access.remark == "" for _ in range(1_000_000))


def _eventually(access: Access, token: str, name: str) -> None:
    """Within the time for which an answer may be an older answer."""
    for _ in range(1_000_000):
        try:
            assert access.principal_of(f"Bearer {token}").name == name
            return
        except Unauthenticated:
            continue
    raise AssertionError("the change was not taken")


def _eventually_remarks(access: Access, words: str) -> None:
    assert any(words in access.remark for _ in range(1_000_000))


def test_without_a_file_everybody_may_do_everything() -> None:
    assert Access().principal_of("") is ANONYMOUS
    assert ANONYMOUS.may("operator")
    assert ANONYMOUS.may("service", "trainer")
    assert ANONYMOUS.may("predict", "a/b")


@each_row(
    ("role", "kind", "name", "may"),
    [
        ("predict:a*", "predict", "a", True), ("predict:a*", "predict", "ab.c", True),
        ("predict:a*", "predict", "b", False), ("predict:a*", "predict", "A", False),
        ("predict:a*", "predict", "a/../b", False), ("predict:a*", "predict", "\uff41", False),
        ("predict:a*", "predict", "", False), ("predict:a*", "ingest", "a", False),
        ("predict:a", "predict", "a\n", False), ("predict:[ab]", "predict", "b", True),
        ("predict:a*", "predict", None, True), ("viewer", "predict", None, False), ("viewer", "operator", None, False),
        ("operator", "predict", "a/b", True), ("operator", "viewer", None, True), ("operator", "author", "x", True),
        ("operator", "service", "trainer", False), ("operator", "service", None, False),
        ("service:trainer", "service", "trainer", True), ("service:trainer", "service", "serving", False),
        ("service:trainer", "operator", None, False), ("author:m", "operator", None, False),
    ],
)  # fmt: skip
def test_roles_are_for_names_and_their_patterns(role: str, kind: str, name: str | None, may: bool) -> None:
    principal = Principal("ada", check_roles([role]))
    assert (principal.may(kind, name), principal.may(kind, name)) == (may, may)


@each_row(
    ("principal", "said", "by"),
    [
        (ANONYMOUS, "bob", "bob"), (ANONYMOUS, "", ""), (Principal("ada", frozenset({"operator"})), "bob", "ada"),
        (Principal("ada", frozenset({"operator"})), "", "ada"),
        (Principal("t", frozenset({"service:trainer"})), "bob", "bob"),
        (Principal("t", frozenset({"service:trainer"})), "", "t"),
    ],
)  # fmt: skip
def test_the_history_has_the_principals_name_and_a_services_word_for_another(
    principal: Principal, said: str, by: str
) -> None:
    act_as(principal)
    try:
        assert author_of(said) == by
    finally:
        act_as(ANONYMOUS)


def test_an_empty_file_lets_nobody_in() -> None:
    assert read_access(b"", "access.yaml").principals == {}


def test_a_removed_token_is_refused_in_each_request_that_comes_later_than_a_look(tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    access = _access(path, _content())
    seldom = Access(path, look_seconds=3600.0)
    known = [(look, look.principal_of(f"Bearer {_TOKEN}"), look.generation) for look in (access, seldom)]
    assert not any(look.has_changed(generation, principal) for look, principal, generation in known)
    path.write_text(_content(name="bob", digest=digest_of(new_token())))
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() <= until:
        assert seldom.principal_of(f"Bearer {_TOKEN}").name == "ada", "a request looks at the file no more often"
    assert [look.has_changed(generation, principal) for look, principal, generation in known] == [True, False]
    with pytest.raises(Unauthenticated):
        access.principal_of(f"Bearer {_TOKEN}")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_change_that_the_kernel_reports_is_seen_before_the_next_look_is_due(
    tmp_path: Path, is_replaced: bool
) -> None:
    path = tmp_path / "access.yaml"
    path.write_text(_content())
    access = Access(path, look_seconds=3600.0, reported_look_seconds=3600.0)
    when_changed(path, access.look)
    assert access.principal_of(f"Bearer {_TOKEN}")
    for number in range(3):
        aside = tmp_path / "aside" if is_replaced else path
        aside.write_text(_content(digest=digest_of(f"hr_{number}")))
        aside.replace(path)
        _eventually(access, f"hr_{number}", "ada")


def test_where_changes_are_reported_a_request_looks_no_more_often(tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    path.write_text(_content())
    access = Access(path, look_seconds=0.0, reported_look_seconds=3600.0)
    access.look(is_reported=True)
    assert access.principal_of(f"Bearer {_TOKEN}").name == "ada"
    path.write_text(_content(digest=digest_of(new_token())))
    assert access.principal_of(f"Bearer {_TOKEN}").name == "ada", "nothing was reported"
    access.look(is_reported=False)
    with pytest.raises(Unauthenticated):
        access.principal_of(f"Bearer {_TOKEN}")


def test_a_link_may_lead_elsewhere_without_a_report(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "access.yaml").write_text(_content())
    (tmp_path / "link").symlink_to("real")
    found: list[bool] = []
    for name in ("real", "link"):
        when_changed(tmp_path / name / "access.yaml", found.append)
    assert found == [True, False]
