"""Which versions are loaded, and who reads which queue."""

from services.serving.replica.versions_wanted import answers_for_aliases, queue_owners, wanted_versions

_MODELS = {"a": {"production": 3, "canary": 4, "stable": 3}, "b": {"production": 1}, "c": {}}


def test_every_version_behind_an_alias_is_wanted_once() -> None:
    assert wanted_versions(_MODELS) == {("a", 3), ("a", 4), ("b", 1)}


def test_only_the_named_models_are_wanted_when_some_are_named() -> None:
    assert wanted_versions(_MODELS, served_models=("b", "unknown")) == {("b", 1)}


def test_each_queue_belongs_to_the_version_its_alias_names() -> None:
    owners = queue_owners({"production": 2, "canary": 3}, available={2, 3}, readers={})
    assert owners == {"alias/production": 2, "alias/canary": 3, "version/2": 2, "version/3": 3}


def test_an_alias_stays_with_its_reader_until_the_version_it_names_is_available() -> None:
    readers = {"alias/production": 1, "version/1": 1}
    assert queue_owners({"production": 2}, available={1}, readers=readers)["alias/production"] == 1
    assert queue_owners({"production": 2}, available={1, 2}, readers=readers)["alias/production"] == 2


def test_an_alias_whose_version_and_reader_are_both_gone_belongs_to_nobody() -> None:
    assert queue_owners({"production": 2}, available=set(), readers={"alias/production": 1}) == {}


def test_a_removed_alias_is_nobodys_even_while_somebody_reads_its_queue() -> None:
    assert queue_owners({}, available={1}, readers={"alias/production": 1}) == {"version/1": 1}


def test_a_version_that_owns_only_its_own_queue_answers_for_no_alias() -> None:
    assert not answers_for_aliases(1, {"version/1": 1, "alias/production": 2})
    assert answers_for_aliases(2, {"version/1": 1, "alias/production": 2})
