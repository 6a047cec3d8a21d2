"""TF_CONFIG is read as TensorFlow means it, and every fault in it is named by its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import InvalidInput
from services.trainer.control.cluster import read_tf_config
from services.trainer.shards.cluster_spec import ClusterSpec, free_ports


def _text(cluster: Any, task: Any, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task, **more})


@pytest.mark.covers("dist-tf-config")
def test_workers_are_ranked_in_their_order_and_a_chief_comes_first() -> None:
    workers = ["a:1", "b:2"]
    assert read_tf_config(_text({"worker": workers}, {"type": "worker", "index": 1})) == ClusterSpec(("a:1", "b:2"), 1)
    named = {"chief": ["c:3"], "worker": workers}
    assert read_tf_config(_text(named, {"type": "chief", "index": 0})) == ClusterSpec(("c:3", "a:1", "b:2"), 0)
    assert read_tf_config(_text(named, {"type": "worker", "index": 1})).rank == 2
    assert read_tf_config(_text(named, {"type": "chief", "index": 0}, environment="cloud")).is_chief


def test_what_it_gives_tensorflow_reads_back_the_same() -> None:
    spec = ClusterSpec(("[::1]:1", "host-2.example:65535"), 1)
    assert read_tf_config(spec.to_json()) == spec


@pytest.mark.covers("dist-tf-config")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[]", "TF_CONFIG must be a mapping"),
        (_text({"worker": ["a:1"]}, None), "TF_CONFIG: task must be a mapping, got None"),
        (json.dumps({"cluster": {}}), "TF_CONFIG lacks task"),
        (_text({}, {"type": "worker", "index": 0}), "cluster lists no worker"),
        (_text({"worker": "a:1"}, {"type": "worker", "index": 0}), "cluster: worker must be a list of addresses"),
        (_text({"worker": ["a"]}, {"type": "worker", "index": 0}), "cluster: worker has 'a', expected host:port"),
        (_text({"worker": ["a:70000"]}, {"type": "worker", "index": 0}), "expected host:port"),
        (_text({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0}), "cluster lists a:1 twice"),
        (_text({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}), "chief lists 2 addresses, expected one"),
        (_text({"worker": ["a:1"], "ps": ["b:1"]}, {"type": "ps", "index": 0}), "cluster names ps tasks"),
        (_text({"worker": ["a:1"], "evaluator": ["b:1"]}, {"type": "worker", "index": 0}), "the chief evaluates"),
        (_text({"workers": ["a:1"]}, {"type": "worker", "index": 0}), "cluster has 'workers'; known: chief, worker"),
        (_text({"worker": ["a:1"]}, {"type": "worker"}), "task lacks index"),
        (_text({"worker": ["a:1"]}, {"type": "worker", "index": 1}), "lists 1 worker addresses; expected 0 to 0"),
        (_text({"worker": ["a:1"]}, {"type": "worker", "index": True}), "index is True"),
        (_text({"worker": ["a:1"]}, {"type": "chief", "index": 0}), "expected another type than chief"),
        (_text({"worker": ["a:1"]}, {"type": "master", "index": 0}), "type is 'master', expected chief or worker"),
        (_text({"worker": ["a:1"]}, {"type": "worker", "index": 0}, rpc_layer="mpi"), "rpc_layer is 'mpi'"),
    ],
)
def test_a_fault_is_named_by_its_key(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_tf_config(text)
    assert words in refused.value.message


def test_ports_of_a_team_are_none_that_an_outgoing_connection_can_take_before_they_are_bound() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < first_outgoing or first_outgoing < 11_000, "a system that leaves no others"
