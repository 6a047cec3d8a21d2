"""The registry keeps a version's signature, hands it out, and refuses one that is about something else."""

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from common.errors import Conflict, InvalidInput
from common.registry import wire
from common.registry.catalog import Version
from common.registry.signing import Signer, make_keys, read_signer
from common.registry.statements import Statement, digests_of
from services.registry.catalog import Catalog
from services.registry.tests.building import NEWEST_ONLY, Clock, definition, draft, lease, leased, publish, report_log

_DAY = 24 * 3600.0


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    make_keys(tmp_path / "key.pem")
    return read_signer(tmp_path / "key.pem")


def publish_signed(catalog: Catalog, signer: Signer, *, model: str = "m", version: int = 0) -> Version:
    """`version`: that the statement names; 0: the right one."""
    held, made = leased(catalog), draft(catalog)
    number = version or catalog.get_model("m").newest_version + 1
    signature = signer.sign(Statement(model, number, digests_of(made.files), {}))
    return catalog.register_version(held.round.round_id, held.token, replace(made, signature=signature))


def test_a_signature_is_kept_and_handed_out_with_its_keys_id(
    catalog: Catalog, signer: Signer, browser: httpx.Client
) -> None:
    made = publish_signed(catalog, signer)
    assert made.signed_by == signer.key_id
    assert json.loads(made.signature)["signatures"][0]["keyid"] == signer.key_id
    assert wire.version_from_wire(wire.version_to_wire(made)) == made
    assert browser.get("/v1/models/m/versions/1").json()["signature"] == made.signature
    listed = browser.get("/v1/models/m/versions").json()["versions"]
    assert [(one["signed_by"], one["signature"]) for one in listed] == [(signer.key_id, "")]
    assert signer.key_id[:16] in browser.get("/models/m/versions/1").text


def test_an_unsigned_version_says_so(catalog: Catalog, browser: httpx.Client) -> None:
    assert (publish(catalog).signed_by, publish(catalog).signature) == ("", "")
    assert "no key" in browser.get("/models/m/versions/1").text


def test_the_same_draft_again_gives_the_same_signed_version(catalog: Catalog, signer: Signer) -> None:
    held, made = leased(catalog), draft(catalog)
    signed = replace(made, signature=signer.sign(Statement("m", 1, digests_of(made.files), {})))
    first = catalog.register_version(held.round.round_id, held.token, signed)
    assert catalog.register_version(held.round.round_id, held.token, signed) == first


def test_a_signature_of_something_else_ends_no_round(catalog: Catalog, signer: Signer) -> None:
    with pytest.raises(Conflict, match="the signature is of version 7 of m, and this one becomes 1"):
        publish_signed(catalog, signer, version=7)
    held, made = lease(catalog), draft(catalog)
    for faulty, words in {
        signer.sign(Statement("other", 1, digests_of(made.files), {})): "is of other@1, not of m@1",
        signer.sign(Statement("m", 1, digests_of(made.files[:1]), {})): "is not among the signature's files",
        "{}": "no DSSE envelope",
    }.items():
        with pytest.raises(InvalidInput, match=words):
            catalog.register_version(held.round.round_id, held.token, replace(made, signature=faulty))
    assert catalog.get_model("m").newest_version == 0
    assert catalog.register_version(held.round.round_id, held.token, made).version == 1


def test_a_pushed_version_may_bring_its_signature(catalog: Catalog, signer: Signer, browser: httpx.Client) -> None:
    files = [file for file in draft(catalog).files if file.path.startswith("saved_model/")]
    body = {
        "by": "ann",
        "files": [{"path": file.path, "size_bytes": file.size_bytes, "digest": file.digest} for file in files],
        "signature": signer.sign(Statement("m", 2, digests_of(files), {})),
    }
    refused = browser.post("/v1/models/m:push", json=body)
    assert (refused.status_code, "becomes 1" in refused.text) == (409, True)
    body["signature"] = signer.sign(Statement("m", 1, digests_of(files), {}))
    assert browser.post("/v1/models/m:push", json=body).json()["signed_by"] == signer.key_id


def test_an_envelope_goes_with_the_files_that_it_names(catalog: Catalog, signer: Signer, clock: Clock) -> None:
    catalog.register_model("m", stream="s", files=definition(retention=NEWEST_ONLY), by="test")
    publish_signed(catalog, signer)
    publish_signed(catalog, signer)
    publish_signed(catalog, signer)
    clock.pass_seconds(2 * _DAY)
    report_log(catalog)
    assert catalog.collect().archived_versions
    thinned = catalog.get_version("m", 1)
    assert (thinned.signature, thinned.signed_by, thinned.files) == ("", signer.key_id, ())
