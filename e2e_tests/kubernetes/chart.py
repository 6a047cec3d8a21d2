"""The chart as files, and what Helm renders of it: `python -m e2e_tests.kubernetes.chart` writes deploy/helm/rendered.

The rendered files are kept, so that tests read them where there is no Helm; each begins with the digest of what it was
rendered from.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HELM = Path(__file__).parents[2] / "deploy" / "helm"
CHART = HELM / "headrace"
EXAMPLES = ("try", "production")
"""Files of deploy/helm/values."""
_KUBERNETES = "1.34"
_TOKEN = re.compile(r"hr_[\w-]{43}")
_DIGEST = re.compile(r"(?<!@sha256:)\b[0-9a-f]{64}\b")

Manifest = Mapping[str, Any]


def values_path(example: str) -> Path:
    return HELM / "values" / f"{example}.yaml"


def rendered_path(example: str) -> Path:
    return HELM / "rendered" / f"{example}.yaml"


def digest_of_sources(example: str) -> str:
    """SHA-256 of the chart's files and the example's values, names included."""
    digest = hashlib.sha256()
    for path in [*sorted(path for path in CHART.rglob("*") if path.is_file()), values_path(example)]:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(HELM)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def render(example: str) -> str:
    """What Helm makes of the example's values, with the same text for every token and its digest, which are random."""
    command = ["helm", "template", "demo", str(CHART), "--namespace", "data", "--kube-version", _KUBERNETES]
    text = subprocess.run(
        [*command, "--values", str(values_path(example))], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    return f"# sha256 {digest_of_sources(example)}\n" + _DIGEST.sub("0" * 64, _TOKEN.sub("hr_random", text))


def manifests(example: str) -> list[Manifest]:
    """The objects of a rendered file."""
    return [item for item in yaml.safe_load_all(rendered_path(example).read_text()) if item]


def pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Each workload's name with its pod template."""
    for item in objects:
        spec = item.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield item["metadata"]["name"], spec["template"]


def main() -> None:
    for example in EXAMPLES:
        rendered_path(example).write_text(render(example))


if __name__ == "__main__":
    main()
