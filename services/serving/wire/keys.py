"""The queue between fronts and runners, as keys and constants of Redis. docs/reference/queue.md is for other languages.

    headrace:queue:{<model>}:<target>     stream; field `r` of an entry = PredictionRequest (protos/queue.proto).
                                          Entries leave when they are answered, so XLEN = waiting + running.
    headrace:serving:{<model>}:<target>   sorted set; member = runner id, score = Redis time in ms until which it counts
    headrace:replies:<front id>           list of ReplyBatch; it disappears when it is not written to for 60 s. In a
                                          cluster headrace:replies:{<model>}:<front id>

<model> is the model's name, or `<namespace>/<model>` for replicas that share with some others only.
A target is `version/<n>` or `alias/<name>`. The braces keep the keys of a model in a slot of a Redis Cluster.
"""

from common.registry.catalog import PRODUCTION

CONSUMER_GROUP = b"runners"
REQUEST_FIELD = b"r"
DEFAULT_TARGET = f"alias/{PRODUCTION}"
NEWEST_ALIAS = "(newest)"
"""In place of production where folders and no registry are served: the newest version that is available."""
DEFAULT_SIGNATURE = "serving_default"
MAX_FAILED_ATTEMPTS = 3
"""A request that was taken this often by a runner that died is answered with INTERNAL and not put back."""
REPLY_EXPIRY_MILLISECONDS = 60_000
RUNNER_RENEW_SECONDS = 1.0
RUNNER_EXPIRY_MILLISECONDS = 3_000


def queue_name(namespace: str, model: str) -> str:
    """A model's name in the keys."""
    return f"{namespace}/{model}" if namespace else model


def alias_target(alias: str) -> str:
    return f"alias/{alias}"


def alias_of_target(target: str) -> str:
    """ "" where it is no alias."""
    kind, _, name = target.partition("/")
    return name if kind == "alias" else ""


def version_target(version: int) -> str:
    return f"version/{version}"


def queue_key(model: str, target: str) -> bytes:
    return f"headrace:queue:{{{model}}}:{target}".encode()


def serving_key(model: str, target: str) -> bytes:
    return f"headrace:serving:{{{model}}}:{target}".encode()


def finishing_key(model: str, target: str) -> bytes:
    """Of the set of runners that take nothing more from the queue and still run what they took."""
    return f"headrace:finishing:{{{model}}}:{target}".encode()


def replies_key(front_id: str, model: str = "") -> bytes:
    """model: in a cluster, the model of the answers."""
    return f"headrace:replies:{tagged(model)}{front_id}".encode()


def tagged(model: str) -> str:
    """The prefix of a key that has to be where the model's keys are in a cluster; "" for all models."""
    return f"{{{model}}}:" if model else ""


def hash_tag(key: bytes) -> bytes:
    """The tag that puts keys beside each other in a cluster."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key


def runner_id(replica: str, model: str, version: int, pid: int) -> str:
    """The name of a runner as a consumer of the group and as a member of the serving sets."""
    return f"{replica}/{model}/{version}/{pid}"
