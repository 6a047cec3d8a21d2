"""ModelServerConfig: what is read, and what is refused in whose words."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from common.errors import InvalidInput
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.model_server_config import (
    VersionPolicy,
    check_platforms,
    logging_notes,
    models_of,
    read_config_file,
    single_model_config,
)
from testing.rows import each_row

_PLATFORMS = ("tensorflow", "lookup_table")


def parsed(text: str) -> config_pb2.ModelServerConfig:
    return text_format.Parse(text, config_pb2.ModelServerConfig())


def one(fields: str) -> config_pb2.ModelServerConfig:
    return parsed(f"model_config_list {{ config {{ {fields} }} }}")


@pytest.mark.covers("srv-multi-model")
def test_a_whole_configuration_is_read() -> None:
    models = models_of(
        parsed("""
        model_config_list {
          config { name: "a" base_path: "/a" model_platform: "tensorflow" }
          config { name: "b" base_path: "/b" model_type: TENSORFLOW model_version_policy { all {} } }
          config {
            name: "c" base_path: "/c" model_platform: "lookup_table"
            model_version_policy { specific { versions: 0 versions: 5 } }
            version_labels { key: "stable" value: 0 }
            version_labels { key: "canary" value: 5 }
          }
          config { name: "d" base_path: "/d" model_type: TENSORFLOW model_version_policy { latest {num_versions: 2} } }
          config { name: "e" base_path: "/e" model_type: TENSORFLOW model_version_policy { latest {num_versions: 0} } }
        }
        """),
        platforms=_PLATFORMS,
    )  # fmt: skip
    assert list(models) == ["a", "b", "c", "d", "e"]
    assert (models["a"].base_path, models["a"].policy) == (Path("/a"), VersionPolicy())
    assert (models["b"].platform, models["b"].policy.kind) == ("tensorflow", "all")
    assert models["c"].labels == {"stable": 0, "canary": 5}
    assert (models["c"].platform, models["c"].policy.versions) == ("lookup_table", (0, 5))
    assert [models[name].policy.count for name in "de"] == [2, 1]


@each_row(
    ("fields", "message"),
    [
        ('name: "m" base_path: "m" model_platform: "tensorflow"',
         "Expected model m to have an absolute path or URI; got base_path()=m"),
        ('name: "m" base_path: "hdfs://b/m" model_platform: "tensorflow"',
         "unknown scheme 'hdfs'; known are file, memory, s3, gs, az"),
        ('name: "m" base_path: "/m"',
         "Illegal setting neither ModelServerConfig::model_type (deprecated) nor ModelServerConfig::model_platform"),
        ('name: "m" base_path: "/m" model_type: TENSORFLOW model_platform: "tensorflow"', "Illegal setting both"),
        ('name: "m" base_path: "/m" model_platform: "caffe"', "Model m requests unsupported platform caffe"),
        ('name: "m" base_path: "/m" model_type: OTHER', "Model m requests unsupported platform OTHER"),
        ('base_path: "/m" model_platform: "tensorflow"', "has no name"),
        ('name: "m" base_path: "/m" model_platform: "tensorflow" model_version_policy { specific { } }',
         "names no version"),
        ('name: "m" base_path: "/m" model_platform: "tensorflow" version_labels { key: "(newest)" value: 1 }',
         "is reserved"),
        ('name: "m" base_path: "/m" model_type: TENSORFLOW logging_config { sampling_config { sampling_rate: 2 } }',
         "sampling_rate 2, expected 0 to 1"),
        ('name: "m" base_path: "/m" model_type: TENSORFLOW logging_config { log_collector_config { type: "a" } }',
         "SERVING_REQUEST_LOG sets the place"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(fields: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        models_of(one(fields), platforms=_PLATFORMS)
    assert message in refused.value.message


def test_a_model_twice_another_kind_of_configuration_and_another_platform_are_refused() -> None:
    model = 'config { name: "m" base_path: "/m" model_platform: "tensorflow" }'
    with pytest.raises(InvalidInput, match="Illegal to list model m multiple times in config list"):
        models_of(parsed(f"model_config_list {{ {model} {model} }}"), platforms=_PLATFORMS)
    for other in ("custom_model_config { }", ""):
        with pytest.raises(InvalidInput, match="Only ModelConfigList is currently supported"):
            models_of(parsed(other), platforms=_PLATFORMS)
    assert models_of(parsed("model_config_list { }"), platforms=_PLATFORMS) == {}
    before = models_of(single_model_config("m", "/m"), platforms=_PLATFORMS)
    after = models_of(one('name: "m" base_path: "/m" model_platform: "lookup_table"'), platforms=_PLATFORMS)
    with pytest.raises(InvalidInput) as refused:
        check_platforms(after, before)
    assert refused.value.message == (
        "Illegal to change a model's platform. For model m platform was tensorflow and new platform requested is "
        "lookup_table"
    )


def test_a_logging_config_is_taken_with_a_note_for_servers_without_a_request_log() -> None:
    sampled = one('name: "m" base_path: "/m" model_type: TENSORFLOW logging_config { sampling_config { } }')
    assert set(models_of(sampled, platforms=_PLATFORMS)) == {"m"}
    assert "SERVING_REQUEST_LOG names no place" in logging_notes(sampled)["m"]
    assert logging_notes(single_model_config("m", "/m")) == {}


def test_a_file_that_cannot_be_read_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        read_config_file(tmp_path / "nothing")
    broken = tmp_path / "broken"
    broken.write_text("model_config_list {\n  config { name: }\n}")
    with pytest.raises(InvalidInput, match="line 2"):
        read_config_file(broken)
