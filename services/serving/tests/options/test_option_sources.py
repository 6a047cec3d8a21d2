"""How a version is run: one source over the other, and each flag's part in it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from common.definition.serving import ENGINES
from common.errors import InvalidInput
from services.serving.__main__ import make_data_dir
from services.serving.engines import litert_engine, onnx_engine
from services.serving.options.model_options import BatchingOptions, ModelOptions
from services.serving.options.option_sources import replica_options, version_options
from services.serving.options.settings import ServingSettings
from testing.rows import each_row


def options_of(**settings: Any) -> ModelOptions:
    return replica_options(ServingSettings(**settings))


def of_version(replica: ModelOptions, directory: Path, *, per_model: bool = False, platform: str = "") -> ModelOptions:
    return version_options(replica, directory, platform=platform, is_per_model_batching=per_model)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "m/1"
    (directory / "assets.extra").mkdir(parents=True)
    return directory


def write_own(version: Path, content: object) -> None:
    (version / "assets.extra/headrace_serving.json").write_text(json.dumps(content))


@pytest.mark.covers("perf-graph-opt")
def test_settings_and_flags_are_the_defaults() -> None:
    options = options_of(max_batch_size=8, batch_timeout_micros=5, intra_op_threads=2, inter_op_threads=3,
                         enable_xla=True, engine="auto", enable_model_warmup=False,
                         num_request_iterations_for_warmup=4)  # fmt: skip
    assert options.batching == BatchingOptions(max_batch_size=8, batch_timeout_micros=5)
    engine = options.engine
    assert (engine.engine, engine.intra_op_threads, engine.inter_op_threads, engine.is_xla) == ("auto", 2, 3, True)
    assert (options.warm_up.is_enabled, options.warm_up.iterations) == (False, 4)
    assert options_of(enable_batching=False).batching.is_enabled is False
    assert options_of(rewriters_off="remapping, layout_optimizer").engine.rewriters_off == (
        "remapping", "layout_optimizer",
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="rewriters_off names 'remaping'; did you mean remapping"):
        options_of(rewriters_off="remaping")


def test_enable_batching_has_tensorflow_servings_defaults_and_the_file_says_otherwise(tmp_path: Path) -> None:
    batching = options_of(enable_batching=True).batching
    assert (batching.max_batch_size, batching.batch_timeout_micros, batching.max_enqueued_batches) == (1000, 0, 10)
    assert batching.num_batch_threads == min(os.cpu_count() or 1, 64)
    assert not batching.enable_large_batch_splitting
    file = tmp_path / "batching.config"
    file.write_text("""
        max_batch_size { value: 128 } batch_timeout_micros { value: 500 } max_enqueued_batches { value: 3 }
        num_batch_threads { value: 2 } allowed_batch_sizes: 32 allowed_batch_sizes: 64
        max_execution_batch_size { value: 64 } enable_large_batch_splitting { value: true }
        pad_variable_length_inputs: true
    """)
    batching = options_of(enable_batching=True, batching_parameters_file=str(file)).batching
    assert batching == BatchingOptions(
        max_batch_size=128, batch_timeout_micros=500, max_enqueued_batches=3, num_batch_threads=2,
        allowed_batch_sizes=(32, 64), max_execution_batch_size=64, enable_large_batch_splitting=True,
        pad_variable_length_inputs=True,
    )  # fmt: skip


@each_row(
    ("text", "message"),
    [
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", "Last entry in allowed_batch_sizes must match"),
        ('thread_pool_name { value: "p" }', "thread_pool_name is not supported"),
        ("max_bach_size { value: 8 }", "max_bach_size"),
        ("max_batch_size { value: 0 }", "max_batch_size must be at least 1"),
    ],
)
def test_a_batching_parameters_file_that_is_wrong_is_refused_by_its_name(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "batching.config"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        options_of(enable_batching=True, batching_parameters_file=str(file))
    assert message in refused.value.message
    assert str(file) in refused.value.message


def test_a_models_own_parameters_win_over_the_replicas_and_a_versions_over_the_models(version: Path) -> None:
    replica = options_of(enable_batching=True)
    assert of_version(replica, version).batching.is_enabled
    assert not of_version(replica, version, per_model=True).batching.is_enabled
    (version.parent / "batching_params.pbtxt").write_text("max_batch_size { value: 16 }")
    (version / "batching_params.pbtxt").write_text("batch_timeout_micros { value: 7 }")
    batching = of_version(replica, version, per_model=True).batching
    assert (batching.is_enabled, batching.max_batch_size, batching.batch_timeout_micros) == (True, 16, 7)
    assert of_version(replica, version).batching.max_batch_size == 1000


def test_the_configuration_names_the_platform_and_the_version_has_the_last_word(version: Path) -> None:
    replica = options_of(max_batch_size=8)
    assert of_version(replica, version, platform="lookup_table").platform == "lookup_table"
    write_own(
        version, {"engine": "auto", "slo_ms": 20, "batching": {"max_batch_size": 4, "allowed_batch_sizes": [2, 4]}}
    )
    options = of_version(replica, version)
    assert options.engine.engine == "auto"
    assert (options.batching.max_batch_size, options.batching.allowed_batch_sizes) == (4, (2, 4))
    assert options.batching.slo_ms == 20


@each_row(
    ("content", "message"),
    [({"engin": "auto"}, "engin"), ({"batching": {"max_batch": 4}}, "max_batch"), ({"engine": "torch"}, "torch")],
)
def test_what_a_version_says_wrongly_is_a_reason_not_to_load_it(version: Path, content: object, message: str) -> None:
    write_own(version, content)
    with pytest.raises(InvalidInput) as refused:
        of_version(options_of(), version)
    assert message in refused.value.message
    assert "headrace_serving.json" in refused.value.message


def test_every_engine_that_a_definition_may_name_is_one_that_is_tried() -> None:
    assert {"auto", "tensorflow"} | {onnx_engine.CANDIDATE.name, litert_engine.CANDIDATE.name} == set(ENGINES)


@each_row("bytes_per_second", [0, 20_000_000, 10**12])
def test_a_pace_for_downloads_may_be_any_that_ends_in_time(bytes_per_second: int) -> None:
    settings = ServingSettings.model_validate({"download_bytes_per_second": bytes_per_second})
    assert settings.download_bytes_per_second == bytes_per_second


def test_a_pace_at_which_a_download_would_be_given_up_is_refused() -> None:
    with pytest.raises(ValidationError, match="download_bytes_per_second must be 0 or at least 20_000_000"):
        ServingSettings.model_validate({"download_bytes_per_second": 19_999_999})


def test_a_gpu_and_an_engine_that_computes_on_cpus_are_refused_together() -> None:
    assert ServingSettings.model_validate({"device": "gpu"}).device == "gpu"
    with pytest.raises(ValidationError, match="device gpu needs engine tensorflow: auto computes on CPUs"):
        ServingSettings.model_validate({"device": "gpu", "engine": "auto"})


def test_the_data_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "a" / "serving")
    assert (tmp_path / "a" / "serving").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    make_data_dir(tmp_path / "file" / "serving")  # whoever needs it says that it cannot be
