"""The chart without a cluster: its values' schema, and the manifests that Helm has rendered."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from docs.generate import settings
from e2e_tests.kubernetes.chart import (
    CHART,
    EXAMPLES,
    Manifest,
    digest_of_sources,
    manifests,
    pods,
    rendered_path,
)
from e2e_tests.kubernetes.chart import values_path as path_of
from testing.rows import each_row

pytestmark = pytest.mark.local_only
_SCHEMA = json.loads((CHART / "values.schema.json").read_text())
_DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
_SERVICES = ("registry", "ingest", "trainer", "serving")
_ANONYMOUS = {**_DEFAULTS["access"], "anonymous": True}
_SETTINGS = settings.document()
_ADDRESS = re.compile(r"demo-headrace-([a-z0-9-]+):(\d+)")


def _values(example: str) -> dict[str, Any]:
    def merge(into: Any, changes: Any) -> Any:
        if not isinstance(into, dict) or not isinstance(changes, dict):
            return changes
        return {**into, **{key: merge(into.get(key), value) for key, value in changes.items()}}

    merged = merge(_DEFAULTS, yaml.safe_load(path_of(example).read_text()))
    assert isinstance(merged, dict)
    return merged


def _is_refused(values: object) -> bool:
    return not jsonschema.Draft7Validator(_SCHEMA).is_valid(values)


def _places(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _places(value, (*path, key))


def _changed(values: Mapping[str, Any], path: tuple[str, ...], value: object) -> Mapping[str, Any]:
    changed = copy.deepcopy(dict(values))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def _value_at(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = values
    for key in path:
        found = found[key]
    return found


@each_row("example", EXAMPLES)
def test_the_rendered_files_are_those_of_this_chart(example: str) -> None:
    first_line = rendered_path(example).read_text().partition("\n")[0]
    assert first_line == f"# sha256 {digest_of_sources(example)}", "run python -m e2e_tests.kubernetes.chart"


@each_row("example", EXAMPLES)
def test_the_schema_takes_the_examples(example: str) -> None:
    jsonschema.validate(_values(example), _SCHEMA, cls=jsonschema.Draft7Validator)


@each_row("path", _places(_DEFAULTS))
def test_the_schema_refuses_unknown_keys_and_other_types(path: tuple[str, ...]) -> None:
    values, found = _values("try"), _value_at(_DEFAULTS, path)
    another = "text" if isinstance(found, dict | list | bool | int) else {}
    assert _is_refused(_changed(values, path, another))
    if found and isinstance(found, dict):
        assert _is_refused(_changed(values, (*path, "unknown"), {}))


@each_row(
    ("path", "value"),
    [
        (("ingest", "replicas"), 0),
        (("serving", "autoscaling", "targetCPUUtilizationPercentage"), 101),
        (("registry", "persistence", "size"), "20 GB"),
        (("registry", "replicas"), 2),
        (("registry", "database", "url"), "postgresql://user:password@host/headrace"),
        (("image", "tag"), "a tag"),
        (("redis", "url"), "redis://user:password@host:6379"),
        (("redis", "url"), "redis://host:6379"),
        (("kafka", "bootstrapServers"), ["host:9092"]),
        (("kafka", "bundled"), False),
        (("redis", "bundled"), False),
        (("trainer", "settings"), {"NICE": 5}),
        (("access", "principals"), [{"name": "shop", "roles": ["operator"], "token_sha256": ["hr_a-token"]}]),
        (("access", "oidc"), {"issuer": "https://id.example.org"}),
        (("access",), {**_ANONYMOUS, "principals": [{"name": "a", "roles": ["viewer"], "token_sha256": ["0" * 64]}]}),
        (("access",), {**_ANONYMOUS, "oidc": {"issuer": "https://id.example.org", "audience": "a"}}),
        (("access",), {**_ANONYMOUS, "existingSecret": "a"}),
        (("serving", "settings"), {"TLS_CERTIFICATE_FILE": "/tls/certificate.pem"}),
        (("keda", "enabled"), True),
        (("trainer", "helpers", "schedule"), "daily"),
        (("trainer", "helpers", "idleSeconds"), 0),
        (("replicaCount",), 3),
    ],
)
def test_the_schema_refuses_wrong_values(path: tuple[str, ...], value: object) -> None:
    assert _is_refused(_changed(_values("try"), path, value))


def test_the_schema_takes_doors_without_credentials_and_a_secret_that_is_there() -> None:
    for access in (_ANONYMOUS, {**_DEFAULTS["access"], "existingSecret": "a"}):
        assert not _is_refused(_changed(_values("try"), ("access",), access))


def test_the_schema_refuses_settings_that_the_chart_makes() -> None:
    for service in _SERVICES:
        prefix = f"{service.upper()}_"
        for name in (name for _, pod in pods(manifests("try")) for name in _variables(pod) if name.startswith(prefix)):
            assert _is_refused(_changed(_values("try"), (service, "settings"), {name.removeprefix(prefix): "x"})), name
        assert _is_refused(_changed(_values("try"), (service, "settings"), {"HTTP_PORT": "1"}))


@each_row("example", EXAMPLES)
def test_every_pod_runs_without_privileges_on_a_root_that_cannot_be_written(example: str) -> None:
    for name, pod in pods(manifests(example)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in _containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"]["drop"] == ["ALL"], name
            is_idle = example == "production" and container["name"] == "serving"
            assert security["capabilities"].get("add", []) == (["SYS_NICE", "SETUID", "SETGID"] if is_idle else [])
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


@each_row("example", EXAMPLES)
def test_every_container_is_probed_at_its_own_port(example: str) -> None:
    for name, pod in pods(manifests(example)):
        for container in pod["spec"]["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe].get("httpGet") or container[probe].get("tcpSocket")
                assert asked is None or asked["port"] in ports, name
    probes = {name: pod["spec"]["containers"][0]["readinessProbe"] for name, pod in _kinds_of_pods(manifests(example))}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items() if "httpGet" in probe}
    helpers = {"demo-headrace-trainer-helpers": "/readyz"} if example == "production" else {}
    assert paths == helpers | {
        "demo-headrace-registry": "/readyz",
        "demo-headrace-ingest": "/readyz?exclude=registry",
        "demo-headrace-trainer": "/readyz",
        "demo-headrace-serving": "/readyz?exclude=queue",
    }


@each_row("example", EXAMPLES)
def test_replicas_are_replaced_one_by_one_and_drained(example: str) -> None:
    objects = manifests(example)
    for item in objects:
        if item["kind"] == "Deployment":
            assert item["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    budgets = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "PodDisruptionBudget"}
    budgeted = _SERVICES if example == "try" else _SERVICES[1:]  # Of two registries one is not ready.
    assert set(budgets) == {f"demo-headrace-{service}" for service in budgeted}
    for name, pod in pods(objects):
        if name in budgets:
            drain = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert pod["spec"]["terminationGracePeriodSeconds"] > drain
            assert _selects(budgets[name]["selector"]["matchLabels"], pod)


@each_row("example", EXAMPLES)
def test_whom_a_pod_is_told_of_it_may_reach_and_nobody_else(example: str) -> None:
    objects = manifests(example)
    services = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Service"}
    policies = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "NetworkPolicy"}
    templates = dict(_kinds_of_pods(objects))
    assert set(policies) == set(templates)
    asked: set[tuple[str, str, int]] = set()
    for name, pod in templates.items():
        assert _selects(policies[name]["podSelector"]["matchLabels"], pod)
        for target, port in _ADDRESS.findall(json.dumps(_variables(pod))):
            service = services[f"demo-headrace-{target}"]
            (door,) = (door for door in service["ports"] if door["port"] == int(port))
            reached = [other for other, template in templates.items() if _selects(service["selector"], template)]
            assert len(reached) == 1
            assert door["targetPort"] in {at["name"] for at in templates[reached[0]]["spec"]["containers"][0]["ports"]}
            if reached[0] != name:
                asked.add((name, reached[0], int(port)))
    assert {(asker, target) for asker, target, _ in asked} <= _allowed(policies, templates, "egress", "to")
    assert _allowed(policies, templates, "egress", "to") == _allowed(policies, templates, "ingress", "from")
    for asker, target, port in asked:
        assert _opens(policies[asker]["egress"], "to", templates[target], port)
        assert _opens(policies[target]["ingress"], "from", templates[asker], port)


@each_row("example", EXAMPLES)
def test_the_services_know_their_settings_and_hold_no_secret_in_one(example: str) -> None:
    for name, pod in pods(manifests(example)):
        service = name.removeprefix("demo-headrace-")
        if service not in _SERVICES:
            continue
        variables = _variables(pod)
        for variable in variables:
            if variable.startswith(f"{service.upper()}_"):
                assert f"`{variable}`" in _SETTINGS
        assert "hr_" not in json.dumps(variables)
        (access,) = (volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "access")
        assert {item["key"] for item in access["items"]} == {"access.yaml", service}


def test_others_wait_for_the_registry_of_their_release() -> None:
    objects = manifests("try")
    registry = dict(pods(objects))["demo-headrace-registry"]
    (waited_for,) = (
        item for item in objects if "headrace/release" in json.dumps(item.get("spec", {}).get("selector", {}))
    )
    assert _selects(waited_for["spec"]["selector"], registry)
    for name, pod in pods(objects):
        if name.removeprefix("demo-headrace-") in ("ingest", "trainer", "serving"):
            assert waited_for["metadata"]["name"] in json.dumps(pod["spec"]["initContainers"])


def test_what_autoscaling_counts_has_no_fixed_number_of_replicas() -> None:
    objects = manifests("production")
    by_kind = {
        kind: {item["spec"]["scaleTargetRef"]["name"] for item in objects if item["kind"] == kind}
        for kind in ("HorizontalPodAutoscaler", "ScaledObject")
    }
    assert by_kind == {
        "HorizontalPodAutoscaler": {"demo-headrace-ingest"},
        "ScaledObject": {"demo-headrace-serving", "demo-headrace-trainer"},
    }
    scaled = set[str]().union(*by_kind.values())
    assert {
        item["metadata"]["name"] for item in objects if "replicas" not in item.get("spec", {"replicas": 1})
    } >= scaled


def test_kafka_redis_and_tokens_may_be_elsewhere() -> None:
    objects = manifests("production")
    names = {item["metadata"]["name"] for item in objects}
    assert not names & {"demo-headrace-kafka", "demo-headrace-redis", "demo-headrace-access"}
    variables = _variables(dict(pods(objects))["demo-headrace-ingest"])
    assert variables["INGEST_EVENT_LOG"]["value"].count(":9092") == 3
    assert variables["INGEST_REDIS_URL"]["valueFrom"] == {"secretKeyRef": {"name": "redis", "key": "url"}}
    (monitor,) = (item for item in objects if item["kind"] == "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"]["key"] == "prometheus"


def test_registries_over_one_database_differ_in_their_claims_alone_and_the_one_that_leads_is_asked() -> None:
    objects = manifests("production")
    sets = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "StatefulSet"}
    first, second = sets["demo-headrace-registry"], sets["demo-headrace-registry-2"]
    assert (first["replicas"], second["replicas"]) == (1, 1)
    assert first["template"]["spec"] == second["template"]["spec"]
    assert [claim["metadata"]["name"] for claim in second["volumeClaimTemplates"]] == ["data"]
    services = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Service"}
    for one in (first, second):
        assert _selects(services["demo-headrace-registry"]["selector"], one["template"])
        assert _selects(one["selector"]["matchLabels"], one["template"])
    assert not _selects(second["selector"]["matchLabels"], first["template"])
    (container,) = second["template"]["spec"]["containers"]
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert paths == ["/healthz", "/readyz", "/healthz"], "to stand by is no failed start, and is not asked"
    variables, volumes = _variables(second["template"]), second["template"]["spec"]["volumes"]
    assert variables["REGISTRY_DATABASE"]["value"].startswith("postgresql://headrace@postgres.data/")
    assert variables["REGISTRY_BLOBS"]["value"] == "s3://artifacts/headrace"
    (mount,) = (found["mountPath"] for found in container["volumeMounts"] if found["name"] == "database")
    (secret,) = (volume["secret"] for volume in volumes if volume["name"] == "database")
    assert (secret["secretName"], secret["items"]) == ("postgres", [{"key": "password", "path": "password"}])
    assert variables["REGISTRY_DATABASE_PASSWORD_FILE"]["value"] == f"{mount}/password"


def test_a_job_of_helpers_is_trainers_that_end_by_themselves_when_kueue_has_let_them_begin() -> None:
    objects = manifests("production")
    (cron,) = (item["spec"] for item in objects if item["kind"] == "CronJob")
    assert (cron["schedule"], cron["suspend"], cron["concurrencyPolicy"]) == ("0 22 * * *", False, "Forbid")
    job = cron["jobTemplate"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    assert (job["spec"]["suspend"], job["spec"]["parallelism"]) == (True, 4)
    templates = dict(pods(objects))
    helper, trainer = templates["demo-headrace-trainer-helpers"], templates["demo-headrace-trainer"]
    assert helper["spec"].pop("restartPolicy") == "OnFailure"
    assert {**_variables(trainer), **_variables(helper)} == _variables(helper)
    (own,) = _variables(helper).keys() - _variables(trainer).keys()
    assert (own, _variables(helper)[own]["value"]) == ("TRAINER_HELPER_IDLE_SECONDS", "300")
    assert {"name": "data", "emptyDir": {}} in helper["spec"]["volumes"]
    (door,) = (
        item["spec"] for item in objects if item["kind"] == "Service" and _selects(item["spec"]["selector"], trainer)
    )
    assert not _selects(door["selector"], helper)


@each_row(
    ("path", "value"),
    [
        (("registry", "database", "url"), ""), (("registry", "settings"), {"LOG_LEVEL": "DEBUG"}),
        (("registry", "persistence", "existingClaim"), "a"), (("registry", "replicas"), 4),
    ],
)  # fmt: skip
def test_several_registries_without_what_they_share_are_refused(path: tuple[str, ...], value: object) -> None:
    assert _is_refused(_changed(_values("production"), path, value))
    assert not _is_refused(_values("production"))


def _kinds_of_pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Each with its name; a second registry is as the first."""
    return ((name, pod) for name, pod in pods(objects) if name != "demo-headrace-registry-2")


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def _variables(pod: Manifest) -> dict[str, Any]:
    """{name: entry} of a pod's one container; no name is there twice."""
    (container,) = pod["spec"]["containers"]
    entries = container.get("env", [])
    found = {entry["name"]: entry for entry in entries}
    assert len(found) == len(entries)
    return found


def _selects(labels: Mapping[str, str], pod: Manifest) -> bool:
    return all(pod["metadata"]["labels"].get(name) == value for name, value in labels.items())


def _opens(rules: list[Manifest], side: str, pod: Manifest, port: int) -> bool:
    return any(
        _selects(peer["podSelector"]["matchLabels"], pod) and {"port": port} in rule.get("ports", [{"port": port}])
        for rule in rules
        for peer in rule.get(side, [])
        if "matchLabels" in peer.get("podSelector", {})
    )


def _allowed(
    policies: Mapping[str, Manifest], templates: Mapping[str, Manifest], direction: str, side: str
) -> set[tuple[str, str]]:
    """(asker, asked) of the platform's own pods, by one direction's rules."""
    found = set()
    for name, policy in policies.items():
        for rule in policy[direction]:
            for peer in rule.get(side, []):
                labels = peer.get("podSelector", {}).get("matchLabels")
                others = [other for other, pod in templates.items() if labels and _selects(labels, pod)]
                found |= {(name, other) if direction == "egress" else (other, name) for other in others}
    return found


def test_with_a_secret_of_certificates_every_door_and_every_call_is_tls_and_each_pod_has_its_own_key() -> None:
    plain, tls = (dict(pods(manifests(example))) for example in ("try", "production"))
    for service in _SERVICES:
        name = f"demo-headrace-{service}"
        pod = tls[name]
        (volume,) = (volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "tls")
        keys = {item["key"]: item["path"] for item in volume["items"]}
        assert keys == {"ca.pem": "ca.pem", f"{service}.pem": "certificate.pem", f"{service}.key": "key.pem"}
        (container,) = pod["spec"]["containers"]
        (mount,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "tls")
        named = {entry["value"] for key, entry in _variables(pod).items() if key.startswith("TLS_")}
        assert named == {f"{mount}/{path}" for path in keys.values()}
        assert "TLS_" not in str(_variables(plain[name]))
        for scheme, one in (("HTTPS", container), ("HTTP", plain[name]["spec"]["containers"][0])):
            probes = [one[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
            assert set(probes) == {scheme}, name
    entries = _variables(tls["demo-headrace-registry"]).items()
    asked = [entry["value"].partition("://")[0] for key, entry in entries if key.endswith("_URL")]
    assert asked == ["https"] * 3
    monitors = [item for item in manifests("production") if item["kind"] == "ServiceMonitor"]
    assert [endpoint["scheme"] for item in monitors for endpoint in item["spec"]["endpoints"]] == ["https"]
