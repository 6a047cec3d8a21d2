"""What makes two versions one program."""

import pytest

from common.saved_model.program import is_state, program_digest

_FILES = {
    "saved_model.pb": "a1",
    "assets/words.txt": "b2",
    "variables/variables.index": "c3",
    "variables/variables.data-00000-of-00001": "d4",
    "fingerprint.pb": "e5",
    "assets.extra/tf_serving_warmup_requests": "f6",
}


def test_versions_that_differ_in_state_alone_are_one_program() -> None:
    changed = {path: digest + "0" if is_state(path) else digest for path, digest in _FILES.items()}
    assert changed != _FILES
    assert program_digest(changed) == program_digest(dict(reversed(_FILES.items())))


@pytest.mark.covers("fmt-assets")
def test_a_graph_an_asset_and_their_paths_make_the_program() -> None:
    known = {program_digest(_FILES)}
    for path in ("saved_model.pb", "assets/words.txt"):
        known.add(program_digest(_FILES | {path: "0"}))
        known.add(program_digest({(name + "x" if name == path else name): digest for name, digest in _FILES.items()}))
    assert len(known) == 5
