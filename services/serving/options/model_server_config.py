"""TensorFlow Serving's ModelServerConfig: which models from which folders. Read, checked, and shown.

The checks and their words are TensorFlow Serving's; this platform's own limits are refused in its own words.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from google.protobuf import json_format, text_format

from common.errors import InvalidInput
from common.storage import Place, is_url, place_of
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.platform_names import TENSORFLOW
from services.serving.wire.keys import NEWEST_ALIAS


@dataclass(frozen=True)
class VersionPolicy:
    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    """Of `latest`: how many of the highest numbers."""
    versions: tuple[int, ...] = ()
    """Of `specific`."""

    def select(self, found: Collection[int]) -> tuple[int, ...]:
        """The versions to serve, newest first; of versions named by number, those that are there."""
        newest_first = sorted(found, reverse=True)
        if self.kind == "latest":
            return tuple(newest_first[: self.count])
        if self.kind == "specific":
            return tuple(version for version in newest_first if version in self.versions)
        return tuple(newest_first)

    def missing(self, found: Collection[int]) -> tuple[int, ...]:
        """Versions that are named by number and are not there."""
        return tuple(sorted(set(self.versions) - set(found)))


@dataclass(frozen=True)
class ConfiguredModel:
    """A model of the configuration."""

    name: str
    base_path: Path
    """Folder of its versions; where `base` is elsewhere, the name of the folder they are copied to."""
    platform: str = TENSORFLOW
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)
    base: Place | None = None


def read_config_file(path: Path) -> config_pb2.ModelServerConfig:
    """A ModelServerConfig in text format. Raises InvalidInput: the file cannot be read, or is no ModelServerConfig."""
    config = config_pb2.ModelServerConfig()
    return read_text(path, config, "a ModelServerConfig")


def read_text(path: Path, message: Any, form: str) -> Any:
    """Fills `message` from a file in protobuf's text format and returns it. Raises InvalidInput: the file cannot be
    read, or is not `form`."""
    try:
        return text_format.Parse(path.read_text(), message)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    except text_format.ParseError as error:
        raise InvalidInput(f"{path} is not {form} in protobuf's text format: line {error}") from error


def single_model_config(name: str, base_path: str) -> config_pb2.ModelServerConfig:
    """The configuration of --model_name and --model_base_path."""
    model = config_pb2.ModelConfig(name=name, base_path=base_path, model_platform=TENSORFLOW)
    return config_pb2.ModelServerConfig(model_config_list=config_pb2.ModelConfigList(config=[model]))


def config_json(config: config_pb2.ModelServerConfig) -> dict[str, Any]:
    """With the names of the text format."""
    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def models_of(config: config_pb2.ModelServerConfig, *, platforms: Collection[str]) -> dict[str, ConfiguredModel]:
    """The models of a configuration by name.

    Args:
        platforms: the names that model_platform may be.

    Raises:
        InvalidInput: the configuration is not a list of models that this server can serve. An empty list is refused:
            it would unload everything, and a half-written file reads so.
    """
    if config.WhichOneof("config") != "model_config_list":
        raise InvalidInput(
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported"
        )
    models: dict[str, ConfiguredModel] = {}
    for item in config.model_config_list.config:
        if item.name in models:
            raise InvalidInput(f"Illegal to list model {item.name} multiple times in config list")
        models[item.name] = _model_of(item, platforms)
        _check_logging(item)
    return models


def logging_notes(config: config_pb2.ModelServerConfig) -> dict[str, str]:
    """{model: sentence} for each logging_config that a server without a request log ignores."""
    return {
        item.name: "its logging_config has no effect: the setting SERVING_REQUEST_LOG names no place"
        for item in config.model_config_list.config
        if item.HasField("logging_config")
    }


def check_platforms(new: Mapping[str, ConfiguredModel], old: Mapping[str, ConfiguredModel]) -> None:
    """Raises InvalidInput where a model would change its platform."""
    for name, model in new.items():
        before = old.get(name)
        if before is not None and before.platform != model.platform:
            raise InvalidInput(
                f"Illegal to change a model's platform. For model {name} platform was {before.platform} and new "
                f"platform requested is {model.platform}"
            )


def _model_of(item: config_pb2.ModelConfig, platforms: Collection[str]) -> ConfiguredModel:
    if not item.name:
        raise InvalidInput("a model of the config list has no name")
    try:
        base = place_of(item.base_path) if is_url(item.base_path) else None
    except InvalidInput as error:
        raise InvalidInput(f"model {item.name}: base_path {error.message}") from error
    if base is None and not item.base_path.startswith("/"):
        raise InvalidInput(
            f"Expected model {item.name} to have an absolute path or URI; got base_path()={item.base_path}"
        )
    if NEWEST_ALIAS in item.version_labels:
        raise InvalidInput(f"model {item.name} has the label {NEWEST_ALIAS}, which is reserved")
    return ConfiguredModel(
        name=item.name,
        base_path=_folder_of(base) if base else Path(item.base_path),
        platform=_platform_of(item, platforms),
        policy=_policy_of(item),
        labels=dict(item.version_labels),
        base=base if base and not base.is_local else None,
    )


def _folder_of(base: Place) -> Path:
    if base.is_local:
        return Path(base.path)
    return Path(hashlib.blake2b(str(base).encode(), digest_size=8).hexdigest())


def _check_logging(item: config_pb2.ModelConfig) -> None:
    """Of a logging_config the sampling counts; where to log is the replica's own setting."""
    rate = item.logging_config.sampling_config.sampling_rate
    if not 0 <= rate <= 1:
        raise InvalidInput(f"model {item.name} has a logging_config with sampling_rate {rate:g}, expected 0 to 1")
    if item.logging_config.HasField("log_collector_config"):
        raise InvalidInput(
            f"model {item.name} has a logging_config with a log_collector_config, which is not supported: the setting "
            "SERVING_REQUEST_LOG sets the place of the log"
        )


def _platform_of(item: config_pb2.ModelConfig, platforms: Collection[str]) -> str:
    has_type = item.model_type != config_pb2.MODEL_TYPE_UNSPECIFIED
    if item.model_platform and has_type:
        raise InvalidInput(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and ModelServerConfig::model_platform, "
            f"model name is {item.name}"
        )
    if not item.model_platform and not has_type:
        raise InvalidInput(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform, model name is {item.name}"
        )
    if item.model_type == config_pb2.OTHER:
        raise InvalidInput(f"Model {item.name} requests unsupported platform OTHER")
    platform = item.model_platform or TENSORFLOW
    if platform not in platforms:
        raise InvalidInput(f"Model {item.name} requests unsupported platform {platform}")
    return platform


def _policy_of(item: config_pb2.ModelConfig) -> VersionPolicy:
    policy = item.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy("all")
    if choice == "specific":
        versions = tuple(policy.specific.versions)
        if not versions or min(versions) < 0:
            raise InvalidInput(
                f"model {item.name} has a specific version policy that names no version, or a negative number"
            )
        return VersionPolicy("specific", versions=versions)
    return VersionPolicy("latest", count=max(policy.latest.num_versions, 1))
