"""What images are built from: requirements/*.txt against pyproject.toml and constraints.txt, and other images."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml
from docker.utils.build import exclude_paths
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from testing.rows import each_row

_ROOT = Path(__file__).parents[2]
_IMAGES = ("ingest", "registry", "trainer", "serving", "trainer-gpu", "serving-gpu")
_OPEN = {"async-timeout", "setuptools", "wheel"}
"""Of an older Python 3.11 than contributors have, and of building."""
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
_NAMED = re.compile(r"^\s*(?:ARG BASE=|FROM |image: |x-base: )(?:&[\w-]+ )?(.+?)(?: AS \w+)?$", re.MULTILINE)
_IMAGE = re.compile(r"(?:\$\{(\w+):-)?([\w./-]+:[\w.-]+)@sha256:([0-9a-f]{64})}?")
_BUILDS_WITH = {"SERVICE", "HTTP_PORT", "BASE", "DEVICES"}
_SECRETS = (
    ".env", "access.yaml", "tls/ca.pem", "build/platform/access/tokens/operator", "build/wheelhouse/.env",
    "services/serving/.env", "services/trainer/trainer.pem", "common/access/server.key", "docs/.env.production",
    "keys/signing.key", ".git/config",
)  # fmt: skip
"""Where secrets lie in a checkout that is used."""
_ELSEWHERE = re.compile(r"\$\{BASE}|\*[\w-]+|\$\{HEADRACE_IMAGES:-headrace}/\S+")
"""The base that an argument names, an image that stands further up, an image of this project."""


def _locked(name: str) -> dict[str, str]:
    text = (_ROOT / "requirements" / f"{name}.txt").read_text()
    return {canonicalize_name(package): version for package, version in _PINNED.findall(text)}


def _constraints(*, on_gpu: bool) -> dict[str, str]:
    text = (_ROOT / "constraints.txt").read_text()
    found: dict[str, str] = {canonicalize_name(package): version for package, version in _PINNED.findall(text)}
    if on_gpu:
        found["tensorflow"] = found.pop("tensorflow-cpu")
    return found


def _asked(extra: str) -> Iterator[Requirement]:
    """What the extra asks for, with the extras that it names and what the project needs always."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"][extra]):
        requirement = Requirement(text)
        if requirement.name != "headrace":
            yield requirement
        for inner in requirement.extras if requirement.name == "headrace" else ():
            yield from _asked(inner)


@each_row("name", _IMAGES)
def test_an_image_installs_what_is_asked_for_in_the_versions_of_the_constraints(name: str) -> None:
    service, on_gpu = name.removesuffix("-gpu"), name.endswith("-gpu")
    locked, constraints = _locked(name), _constraints(on_gpu=on_gpu)
    differing = {package for package in locked.keys() & constraints.keys() if locked[package] != constraints[package]}
    assert not differing, "make requirements"
    for requirement in _asked(service):
        package: str = canonicalize_name(requirement.name)
        package = "tensorflow" if on_gpu and package == "tensorflow-cpu" else package
        assert requirement.specifier.contains(locked.get(package, "")), f"{requirement}: make requirements"
    others = {package for package in locked.keys() - constraints.keys() if not package.startswith("nvidia-")}
    assert others <= _OPEN, "packages without a version in constraints.txt"


@each_row("name", [*_IMAGES, "sbom"])
def test_each_package_has_hashes_and_is_named_once(name: str) -> None:
    entries = re.split(r"\n(?=\S)", (_ROOT / "requirements" / f"{name}.txt").read_text().strip())
    packages = [entry for entry in entries if not entry.startswith("#")]
    assert all(_PINNED.match(entry) and _HASH.search(entry) for entry in packages)
    assert len(packages) == len(_locked(name)) > 5


def test_each_image_of_others_is_named_by_one_digest_and_has_a_variable_for_another() -> None:
    files = [_ROOT / "Dockerfile", *_ROOT.glob("docker-compose*.yml"), _ROOT / "deploy/helm/headrace/values.yaml"]
    named = [(path.name, image) for path in files for image in _NAMED.findall(path.read_text())]
    others = {(name, image): _IMAGE.fullmatch(image) for name, image in named if not _ELSEWHERE.fullmatch(image)}
    assert not [place for place, found in others.items() if found is None]
    images = [(name, *found.groups()) for (name, _), found in others.items() if found]
    digests = {image: {other[3] for other in images if other[2] == image} for _, _, image, _ in images}
    assert len(digests) == 7
    assert not {image for image, found in digests.items() if len(found) != 1}
    variables = {variable for name, variable, _, _ in images if name.startswith("docker-compose")}
    stand_ins = set(re.findall(r"^(\w+)=", (_ROOT / "docker" / "stand-ins.env").read_text(), re.MULTILINE))
    assert stand_ins < variables
    assert None not in variables


def test_no_file_with_secrets_and_no_secret_argument_gets_into_an_image(tmp_path: Path) -> None:
    for name in (*_SECRETS, "services/serving/__main__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    lines = (_ROOT / ".dockerignore").read_text().splitlines()
    sent = exclude_paths(str(tmp_path), [line for line in lines if line and not line.startswith("#")])
    assert {name for name in sent if (tmp_path / name).is_file()} <= {"services/serving/__main__.py", "Dockerfile"}
    assert "services/serving/__main__.py" in sent
    assert set(re.findall(r"^ARG (\w+)", (_ROOT / "Dockerfile").read_text(), re.MULTILINE)) <= _BUILDS_WITH
    assert not re.search(r"^(ADD|RUN --mount=type=secret)", (_ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for path in _ROOT.glob("docker-compose*.yml"):
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            build = service.get("build", {})
            arguments = build.get("args", {}) if isinstance(build, dict) else {}
            assert set(arguments) <= _BUILDS_WITH, f"{path.name}: {name}"
