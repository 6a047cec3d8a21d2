"""The command line: each flag sets what it says or is refused by its name."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import InvalidInput
from docs.generate import flags
from services.serving.options.flags import SUPPORTED, UNSUPPORTED, read_flags, usage
from services.serving.options.model_options import ModelOptions
from services.serving.options.runner_spec import RunnerSpec
from services.serving.options.settings import ServingSettings
from services.serving.queue.client import Queue
from services.serving.start import read_start
from testing.rows import each_row

SET: list[tuple[str, dict[str, Any]]] = [
    ("--port=1234", {"grpc_port": 1234}),
    ("--grpc_socket_path=/tmp/s", {"grpc_socket_path": "/tmp/s"}),
    ("--rest_api_port=4321", {"http_port": 4321, "enable_rest": True}),
    ("--rest_api_port=0", {"enable_rest": False}),
    ("--rest_api_timeout_in_ms=1500", {"rest_timeout_seconds": 1.5}),
    ("--rest_api_enable_cors_support", {"enable_cors": True}),
    ("--model_name=m --model_base_path=/models/m", {"model_name": "m", "model_base_path": "/models/m"}),
    ("--model_base_path=/models/m", {"model_name": "default"}),
    ("--model_config_file=/c --model_config_file_poll_wait_seconds=5", {"model_config_file_poll_wait_seconds": 5.0}),
    ("--model_config_file=/c", {"model_config_file": "/c", "model_config_file_poll_wait_seconds": 0.0}),
    ("--file_system_poll_wait_seconds=-1", {"file_system_poll_wait_seconds": -1.0}),
    ("--allow_version_labels_for_unavailable_models", {"allow_version_labels_for_unavailable_models": True}),
    ("--num_load_threads=3", {"parallel_loads": 3}),
    ("--num_load_threads=0", {"parallel_loads": 1}),
    ("--num_unload_threads=0", {"parallel_unloads": 1}),
    ("--max_num_load_retries=0", {"load_attempts": 1}),
    ("--max_num_load_retries=5", {"load_attempts": 6}),
    ("--load_retry_interval_micros=250000", {"load_retry_seconds": 0.25}),
    ("--enable_batching", {"enable_batching": True}),
    ("--noenable_batching", {"enable_batching": False}),
    ("", {"enable_batching": None}),
    ("--enable_batching --batching_parameters_file=/b", {"batching_parameters_file": "/b"}),
    ("--enable_batching --enable_per_model_batching_parameters", {"enable_per_model_batching_parameters": True}),
    ("--enable_model_warmup=false", {"enable_model_warmup": False}),
    ("--num_request_iterations_for_warmup=4", {"num_request_iterations_for_warmup": 4}),
    ("--num_request_iterations_for_warmup=0", {"num_request_iterations_for_warmup": 1}),
    ("--tensorflow_intra_op_parallelism=2", {"intra_op_threads": 2, "inter_op_threads": 1}),
    ("--tensorflow_inter_op_parallelism 3", {"inter_op_threads": 3}),
    ("--tensorflow_session_parallelism=4", {"intra_op_threads": 4, "inter_op_threads": 4}),
    ("--xla_cpu_compilation_enabled=true", {"enable_xla": True}),
    ("--ssl_config_file /s", {"ssl_config_file": "/s"}),
    ("--monitoring_config_file=/m", {"monitoring_config_file": "/m"}),
    ("--grpc_channel_arguments=grpc.a=1,grpc.b=c", {"grpc_channel_arguments": "grpc.a=1,grpc.b=c"}),
    ("--redis_url=redis://r:1/2", {"redis_url": "redis://r:1/2"}),
    ("--host=0.0.0.0", {"host": "0.0.0.0"}),
    ("--norest_tls", {"rest_tls": False}),
    ("--queue_namespace=blue", {"queue_namespace": "blue"}),
    ("--allow_operations=listed", {"allow_operations": "listed"}),
    # Whatever way it is written; the last one counts.
    ("-port 7 --port=8", {"grpc_port": 8}),
    ("--rest_api_enable_cors_support=True", {"enable_cors": True}),
    ("--rest_api_enable_cors_support=0", {"enable_cors": False}),
    # What says what happens anyway changes nothing.
    ("--flush_filesystem_caches=false --enable_profiler=false", {}),
    ("--saved_model_tags=serve,gpu", {"saved_model_tags": "serve,gpu"}),
]


def settings_of(line: str, monkeypatch: pytest.MonkeyPatch) -> ServingSettings:
    for name, value in read_flags(line.split()).variables.items():
        monkeypatch.setenv(f"SERVING_{name.upper()}", value)
    return ServingSettings.from_environment()


@pytest.mark.covers("srv-flags")
@each_row(("line", "expected"), SET)
def test_a_flag_sets_what_it_says(line: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(line, monkeypatch)
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.covers("srv-flags")
def test_every_supported_flag_is_among_these_and_in_the_documentation() -> None:
    tried = {word.lstrip("-").split("=")[0] for line, _ in SET for word in line.split()}
    page = flags.document()
    for flag in SUPPORTED:
        assert flag.name in tried or f"no{flag.name}" in tried
        assert f"`--{flag.name}`" in page
    for flag in UNSUPPORTED:
        assert flag.set is None
        assert flag.refusal
        assert f"`--{flag.name}`" in page
    assert all(flag.name in usage() for flag in (*SUPPORTED, *UNSUPPORTED))


def test_a_flag_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_GRPC_PORT", "1")
    monkeypatch.setenv("SERVING_QUEUE_LIMIT", "7")
    settings = settings_of("--port=2", monkeypatch)
    assert (settings.grpc_port, settings.queue_limit) == (2, 7)


@pytest.mark.covers("srv-flags")
@each_row(
    "line",
    [
        "--rest_api_num_threads=4", "--grpc_max_threads=4", "--flush_filesystem_caches", "--platform_config_file=/p",
        "--tensorflow_session_config_file=/t", "--use_alts_credentials", "--per_process_gpu_memory_fraction=0.5",
        "--noremove_unused_fields_from_bundle_metagraph", "--prefer_tflite_model",
        "--num_tflite_pools=2", "--num_tflite_interpreters_per_pool=2", "--enable_signature_method_name_check",
        "--xla_gpu_compilation_enabled", "--enable_profiler", "--thread_pool_factory_config_file=/t",
        "--mixed_precision=bfloat16", "--skip_initialize_tpu", "--enable_grpc_healthcheck_service=false",
        "--enable_serialization_as_tensor_content",
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_its_name_with_the_reason(line: str) -> None:
    name = line.lstrip("-").partition("=")[0]
    known = {flag.name: flag for flag in UNSUPPORTED}
    flag = known.get(name) or known[name.removeprefix("no")]
    with pytest.raises(InvalidInput) as refused:
        read_flags([line])
    assert refused.value.message.startswith(f"--{flag.name}=")
    assert "is not supported: " in refused.value.message
    assert flag.refusal in refused.value.message


@pytest.mark.covers("srv-flags")
@each_row(
    ("line", "message"),
    [
        ("--modle_name=m", "unknown flag --modle_name"),
        ("--nomodel_name", "unknown flag --nomodel_name"),
        ("model", "unexpected argument 'model'"),
        ("--port=many", "--port is a whole number, not 'many'"),
        ("--port", "--port needs a value"),
        ("--enable_batching=perhaps", "--enable_batching is true or false, not 'perhaps'"),
        ("--noenable_batching=true", "--noenable_batching takes no value"),
        (
            "--tensorflow_session_parallelism=2 --tensorflow_inter_op_parallelism=2",
            "--tensorflow_session_parallelism sets the same as --tensorflow_inter_op_parallelism",
        ),
        ("--port=9 --rest_api_port=9", "must differ"),
        ("--batching_parameters_file=/b", "batching_parameters_file needs enable_batching"),
        ("--enable_per_model_batching_parameters", "enable_per_model_batching_parameters needs enable_batching"),
        ("--model_base_path=/m --model_config_file_poll_wait_seconds=1", "needs model_config_file"),
    ],
)
def test_flags_that_cannot_be_read_or_do_not_go_together(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=message):
        settings_of(line, monkeypatch)


def run_serving(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.serving", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.covers("srv-flags")
@pytest.mark.usefixtures("warm_python")
def test_a_process_with_a_wrong_command_line_or_file_ends_with_2_and_a_sentence(tmp_path: Path) -> None:
    done = run_serving("--rest_api_num_threads=4")
    assert (done.returncode, "--rest_api_num_threads=4 is not supported" in done.stderr) == (2, True)
    config = tmp_path / "models.config"
    config.write_text('model_config_list { config { name: "m" base_path: "/m" mode_platform: "tensorflow" } }')
    done = run_serving(f"--model_config_file={config}")
    assert (done.returncode, "mode_platform" in done.stderr, str(config) in done.stderr) == (2, True, True)


def test_a_queue_namespace_keeps_queues_apart() -> None:
    spec = RunnerSpec("r", "m", 1, "/m/1", "redis://r", ModelOptions(), namespace="blue")
    assert spec.queue_name == "blue/m"
    assert Queue("m", "version/1", namespace="blue").key == b"headrace:queue:{blue/m}:version/1"
    assert Queue("m", "version/1").key == b"headrace:queue:{m}:version/1"
    for port, own in (("8500", 8500), ("0", os.getpid())):
        with pytest.MonkeyPatch.context() as environment:
            for name, value in (
                ("MODEL_NAME", "m"),
                ("MODEL_BASE_PATH", "/m"),
                ("GRPC_PORT", port),
                ("QUEUE_NAMESPACE", ""),
            ):
                environment.setenv(f"SERVING_{name}", value)
            environment.delenv("SERVING_QUEUE_NAMESPACE")
            assert read_start().settings.queue_namespace == f"{socket.gethostname()}:{own}"


def test_version_and_help_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from services.serving.__main__ import main

    assert main(["--version"]) == 0
    assert "Headrace serving" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "--model_base_path" in capsys.readouterr().out
