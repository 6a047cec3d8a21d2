"""A runner's specification at its start. A file of its own: the manager makes it and must not import TensorFlow."""

from dataclasses import dataclass

from services.serving.options.model_options import ModelOptions
from services.serving.wire.keys import queue_name


@dataclass(frozen=True)
class RunnerSpec:
    """A runner's specification; travels as JSON from the manager through the zygote."""

    replica: str
    model: str
    version: int
    directory: str
    """The SavedModel: the folder that holds saved_model.pb."""
    redis_url: str
    options: ModelOptions
    is_cautious: bool = False
    """Use TensorFlow's default executor: the last runner of this version crashed."""
    namespace: str = ""
    """The prefix that keeps its queues apart from those of other replicas; "" where all share."""
    is_awaited: bool = False
    """Its load disturbs no answer: it has a share of the machine, not idle time alone."""
    is_low: bool = False
    """Gives way to the models of other priorities."""
    engines_dir: str = ""
    """Where converted models are kept; empty: nowhere."""

    @property
    def queue_name(self) -> str:
        """The model's name in its queues."""
        return queue_name(self.namespace, self.model)

    @property
    def log_name(self) -> str:
        """The subject of its lines in the log."""
        return f"serving-runner {self.model}/{self.version}"
