"""`python -m e2e_tests.kubernetes`: builds and starts a Kubernetes node on this machine, runs the platform in it by the
Helm chart, and takes all of it down again. Needs root, Go, Docker and the images (`make images`). Exit status 1: a
promise was broken."""

import argparse
import io
import json
import sys
import tempfile
from pathlib import Path

import docker
from e2e_tests.kubernetes.cluster import SERVICES, Cluster, base_images
from e2e_tests.kubernetes.run import Report, run

_REPOSITORY = Path(__file__).parents[2]
_BUILD = _REPOSITORY / "build" / "kubernetes"
_NEXT = "kubernetes-next"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e_tests.kubernetes", description=__doc__)
    parser.add_argument("--tag", default="latest", help="of the services' images (latest)")
    parser.add_argument(
        "--bases", type=Path, default=_REPOSITORY / "docker" / "stand-ins.env", help="names Kafka's and Redis's images"
    )
    parser.add_argument("--keep", action="store_true", help="leaves the node running")
    arguments = parser.parse_args()
    _make_next_release(arguments.tag)
    cluster = Cluster(arguments.tag, base_images(arguments.bases))
    try:
        cluster.up()
        cluster.learn_kinds()
        cluster.take_images(arguments.tag, _NEXT)
        cluster.make_volumes()
        with tempfile.TemporaryDirectory() as folder:
            report = run(cluster, next_tag=_NEXT, folder=Path(folder) / "points")
    finally:
        if not arguments.keep:
            cluster.down()
    return _show(report)


def _make_next_release(tag: str) -> None:
    """Images that do the same: those of another release would have other files in them."""
    engine = docker.from_env(timeout=90)
    for service in SERVICES:
        recipe = f"FROM headrace/{service}:{tag}\nLABEL headrace.release=next\n"
        name = f"headrace/{service}:{_NEXT}"
        engine.images.build(fileobj=io.BytesIO(recipe.encode()), tag=name, rm=True, forcerm=True)


def _show(report: Report) -> int:
    _BUILD.mkdir(parents=True, exist_ok=True)
    path = _BUILD / "report.json"
    path.write_text(json.dumps({"figures": report.figures, "broken": report.broken}, indent=2) + "\n")
    for sentence in report.broken:
        print(f"broken: {sentence}", file=sys.stderr)
    print(f"{len(report.broken)} promises broken; figures in {path}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
