"""The command line: TensorFlow Serving's flags, as settings (settings.py) under another name.

    --name=value    --name value    --name, --noname (booleans); a single dash does as well

A flag becomes the SERVING_* variable of its setting and wins over it. A flag for something that this server does not
do is refused by its name, with the reason; so is an unknown flag.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import InvalidInput

_MICROS = 1_000_000
Variables = Mapping[str, str]
"""{setting: value}."""


@dataclass(frozen=True)
class Flag:
    """A flag. Either it sets settings, or it takes only the values that change nothing."""

    name: str
    meaning: str
    kind: type = str
    """str, int, float or bool."""
    set: Callable[[str], Variables] | None = None
    """From a checked value (a boolean is "true" or "false")."""
    taken: tuple[str, ...] = ()
    """Without `set`: the values that change nothing here; any other is refused."""
    refusal: str = ""
    """Why the others are."""


def _as(setting: str) -> Callable[[str], Variables]:
    return lambda value: {setting: value}


def _own(setting: str, meaning: str, kind: type = str) -> Flag:
    """Sets the setting of its name."""
    return Flag(setting, meaning, kind, _as(setting))


def _or_default(setting: str) -> Callable[[str], Variables]:
    """0 leaves the choice to the server."""
    return lambda value: {} if int(value) == 0 else {setting: value}


def _positive(setting: str) -> Callable[[str], Variables]:
    """0 means on the manager's own thread."""
    return lambda value: {setting: str(max(int(value), 1))}


def _rest_port(value: str) -> Variables:
    return {"enable_rest": "false"} if int(value) == 0 else {"http_port": value}


def _session_threads(value: str) -> Variables:
    return {} if int(value) == 0 else {"intra_op_threads": value, "inter_op_threads": value}


_NO_POOL = "requests are answered by one event loop, which has no pool of threads"
_NO_TFLITE_POOL = "the engine litert needs none: set SERVING_ENGINE or the model's own `serving:` section"
SUPPORTED: tuple[Flag, ...] = (
    Flag("port", "Port of gRPC (8500)", int, _as("grpc_port")),
    _own("grpc_socket_path", "Unix socket on which gRPC listens as well"),
    Flag("rest_api_port", "Port of REST (8501); 0: no REST", int, _rest_port),
    Flag(
        "rest_api_timeout_in_ms", "Deadline of a REST request (30000)", int,
        lambda value: {"rest_timeout_seconds": str(int(value) / 1000)},
    ),
    Flag("rest_api_enable_cors_support", "Answers pages of any origin", bool, _as("enable_cors")),
    _own("model_name", "The model's name for --model_base_path (default)"),
    _own("model_base_path", "Folder <base>/<version>/ of SavedModels"),
    _own("model_config_file", "ModelServerConfig; wins over the two above"),
    _own("model_config_file_poll_wait_seconds", "How often that file is read again (0: never)", float),
    _own("file_system_poll_wait_seconds", "How often folders are searched (1); 0: once; negative: never", float),
    _own("allow_version_labels_for_unavailable_models", "New labels may be of versions that are not available", bool),
    Flag("num_load_threads", "Versions loaded at once; 0 counts as 1", int, _positive("parallel_loads")),
    Flag("num_unload_threads", "Versions unloaded at once; 0 counts as 1", int, _positive("parallel_unloads")),
    Flag(
        "max_num_load_retries", "How often a failed load is tried again (2)", int,
        lambda value: {"load_attempts": str(int(value) + 1)},
    ),
    Flag(
        "load_retry_interval_micros", "Time between two attempts (0.5 s, doubled up to 10 s)", int,
        lambda value: {"load_retry_seconds": str(int(value) / _MICROS)},
    ),
    _own("enable_batching", "TensorFlow Serving's batching; false: no batching at all", bool),
    _own("batching_parameters_file", "BatchingParameters for --enable_batching"),
    _own("enable_per_model_batching_parameters", "batching_params.pbtxt beside a model or version counts", bool),
    _own("enable_model_warmup", "Runs a version before it is available (true)", bool),
    Flag(
        "num_request_iterations_for_warmup", "How often each warm-up request is run (1)", int,
        _or_default("num_request_iterations_for_warmup"),
    ),
    Flag("tensorflow_intra_op_parallelism", "Threads of one operation (1)", int, _or_default("intra_op_threads")),
    Flag("tensorflow_inter_op_parallelism", "Operations at a time (1)", int, _or_default("inter_op_threads")),
    Flag("tensorflow_session_parallelism", "Both of these; 0: as they are", int, _session_threads),
    Flag("xla_cpu_compilation_enabled", "Compiles signatures with XLA", bool, _as("enable_xla")),
    _own("saved_model_tags", "Tags of the graph to load (serve), by commas"),
    _own("ssl_config_file", "SSLConfig: TLS for gRPC, REST and metrics"),
    _own("monitoring_config_file", "MonitoringConfig: metrics at its path too"),
    _own("grpc_channel_arguments", "Options of the gRPC server, name=value,..."),
    # Headrace's own, for needs of a command line beyond TensorFlow Serving.
    _own("redis_url", "The Redis beside it (SERVING_REDIS_URL)"),
    _own("host", "Address that both doors listen on (SERVING_HOST)"),
    _own("rest_tls", "Whether --ssl_config_file counts for REST (true)", bool),
    _own("allow_operations", "listed: versions that could read others' files fail (all)"),
    _own("queue_namespace", "Servers with the same namespace share queues"),
)  # fmt: skip
UNSUPPORTED: tuple[Flag, ...] = (
    Flag("rest_api_num_threads", "", int, refusal=_NO_POOL),
    Flag("grpc_max_threads", "", int, refusal=_NO_POOL),
    Flag(
        "flush_filesystem_caches", "", bool, taken=("false",),
        refusal="runners share the cached files, and the kernel gives them up when memory is needed",
    ),
    Flag(
        "tensorflow_session_config_file", "", str, taken=("",),
        refusal="a version runs on its own engine, not on one session; set threads and XLA by their flags",
    ),
    Flag("use_alts_credentials", "", bool, taken=("false",), refusal="use --ssl_config_file"),
    Flag("platform_config_file", "", str, taken=("",), refusal="platforms are plugins, named by model_platform"),
    Flag(
        "per_process_gpu_memory_fraction", "", float, taken=("0", "0.0"),
        refusal="each program is a separate process",
    ),
    Flag(
        "remove_unused_fields_from_bundle_metagraph", "", bool, taken=("true",),
        refusal="the front keeps signatures only, and a graph's debug information never leaves the runner",
    ),
    Flag("prefer_tflite_model", "", bool, taken=("false",), refusal=_NO_TFLITE_POOL),
    Flag("num_tflite_pools", "", int, refusal=_NO_TFLITE_POOL),
    Flag("num_tflite_interpreters_per_pool", "", int, taken=("1",), refusal=_NO_TFLITE_POOL),
    Flag(
        "enable_signature_method_name_check", "", bool, taken=("false",),
        refusal="a signature is judged by its inputs and outputs, not by the name of its method",
    ),
    Flag("xla_gpu_compilation_enabled", "", bool, taken=("false",), refusal="use --xla_cpu_compilation_enabled"),
    Flag("enable_profiler", "", bool, taken=("false",), refusal="there is no profiler service; use py-spy or perf"),
    Flag("thread_pool_factory_config_file", "", str, taken=("",), refusal="there is no pool to make"),
    Flag("mixed_precision", "", str, taken=("",), refusal="a graph is run in the precision it was exported with"),
    Flag("skip_initialize_tpu", "", bool, taken=("false",), refusal="there is no TPU support"),
    Flag(
        "enable_grpc_healthcheck_service", "", bool, taken=("true",),
        refusal="the health service is always there, and shows whether the server is ready",
    ),
    Flag(
        "enable_serialization_as_tensor_content", "", bool, taken=("false",),
        refusal="answers use typed fields, as TensorFlow Serving's do by default",
    ),
)  # fmt: skip
_FLAGS = {flag.name: flag for flag in (*SUPPORTED, *UNSUPPORTED)}
_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")


@dataclass(frozen=True)
class CommandLine:
    variables: Variables
    """Settings, as strings."""
    prints_version: bool = False
    prints_help: bool = False


def read_flags(arguments: Sequence[str]) -> CommandLine:
    """Reads the arguments after the program's name; of a flag given twice the last one counts. Raises InvalidInput: a
    flag that is unknown, that is refused here, or whose value is not of its kind."""
    given: dict[str, str] = {}
    left = list(arguments)
    while left:
        name, value = _take(left)
        if name in ("version", "help"):
            if value in _TRUE:
                return CommandLine({}, prints_version=name == "version", prints_help=name == "help")
            continue
        given[name] = value
    if given.get("tensorflow_session_parallelism", "0") != "0":
        others = {"tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism"} & set(given)
        if others:
            raise InvalidInput(f"--tensorflow_session_parallelism sets the same as --{min(others)}; give either")
    variables: dict[str, str] = {}
    for name, value in given.items():
        setter = _FLAGS[name].set
        if setter is not None:
            variables |= setter(value)
    return CommandLine(variables)


def usage() -> str:
    """The text of --help."""
    width = max(len(flag.name) for flag in SUPPORTED)
    lines = [f"  --{flag.name:<{width}}  {flag.meaning}" for flag in SUPPORTED]
    refused = ", ".join(f"--{flag.name}" for flag in UNSUPPORTED)
    return "\n".join(
        [
            "python -m services.serving [flags]      others: SERVING_*, docs/reference/settings.md",
            "Serves the versions that a registry names, or with --model_base_path or --model_config_file folders.",
            *lines,
            f"Refused, unless they change nothing: {refused}",
        ]
    )


def _take(left: list[str]) -> tuple[str, str]:
    """Takes a flag and its value off the arguments."""
    argument = left.pop(0)
    if not argument.startswith("-") or not argument.strip("-"):
        raise InvalidInput(f"unexpected argument {argument!r}; flags look like --name=value")
    name, has_value, value = argument.lstrip("-").partition("=")
    flag = _FLAGS.get(name)
    if name in ("version", "help"):
        return name, value.lower() if has_value else "true"
    if flag is None and name.startswith("no") and (negated := _FLAGS.get(name[2:])) and negated.kind is bool:
        if has_value:
            raise InvalidInput(f"--{name} takes no value")
        flag, value, has_value = negated, "false", "="
    if flag is None:
        raise InvalidInput(f"unknown flag --{name}; --help lists the known flags")
    if not has_value:
        if flag.kind is bool:
            value = "true"
        elif left:
            value = left.pop(0)
        else:
            raise InvalidInput(f"--{flag.name} needs a value")
    value = _checked(flag, value)
    if flag.set is None and value not in flag.taken:
        raise InvalidInput(f"--{flag.name}={value} is not supported: {flag.refusal}")
    return flag.name, value


def _checked(flag: Flag, value: str) -> str:
    if flag.kind is bool:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise InvalidInput(f"--{flag.name} is true or false, not {value!r}")
        return "true" if value.lower() in _TRUE else "false"
    if flag.kind is str:
        return value
    try:
        flag.kind(value)
    except ValueError as error:
        kind = "a whole number" if flag.kind is int else "a number"
        raise InvalidInput(f"--{flag.name} is {kind}, not {value!r}") from error
    return value
