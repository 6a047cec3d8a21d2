"""What a runner is told when it is started. A file of its own: the manager makes it and must not import TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunnerSpec:
    """What a runner needs to know; travels as JSON from the manager through the zygote."""

    replica: str
    model: str
    version: int
    directory: str
    """The SavedModel: the folder that holds saved_model.pb."""
    redis_url: str
    max_batch_size: int
    batch_timeout_micros: int
    intra_op_threads: int
    is_cautious: bool = False
    """Use TensorFlow's default executor: the last runner of this version crashed."""
