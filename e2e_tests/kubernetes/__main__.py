"""`python -m e2e_tests.kubernetes`: builds and starts a Kubernetes node on this machine, runs the platform in it by the
Helm chart, and takes all of it down again. Needs root, Go, Docker and the images (`make images`). Exit status 1: a
promise was broken."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from e2e_tests.kubernetes.chart import CHART
from e2e_tests.kubernetes.cluster import Cluster, base_images
from e2e_tests.kubernetes.operators import KEDA, KUEUE
from e2e_tests.kubernetes.outside import earlier_release, make_release, servers
from e2e_tests.kubernetes.report import Report
from e2e_tests.kubernetes.run import run

_REPOSITORY = Path(__file__).parents[2]
_BUILD = _REPOSITORY / "build" / "kubernetes"
_FIRST, _NEXT = "kubernetes-first", "kubernetes-next"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e_tests.kubernetes", description=__doc__)
    parser.add_argument("--tag", default="latest", help="of the services' images (latest)")
    parser.add_argument(
        "--bases", type=Path, default=_REPOSITORY / "docker" / "stand-ins.env", help="names Kafka's and Redis's images"
    )
    parser.add_argument("--registries", type=int, default=1, help="2 and 3: over one PostgreSQL and an object store")
    parser.add_argument("--upgrade-from", metavar="COMMIT", help="installs that chart and images of that tree first")
    parser.add_argument(
        "--operators", nargs="+", choices=(KEDA, KUEUE), default=(), help="with them, too; builds them first"
    )
    parser.add_argument("--keep", action="store_true", help="leaves the node running")
    arguments = parser.parse_args()
    first_tag, first_chart = arguments.tag, CHART
    if arguments.upgrade_from:
        first_tag, first_chart = earlier_release(arguments.upgrade_from, _BUILD, arguments.bases)
    for tag, name in ((first_tag, _FIRST), (arguments.tag, _NEXT)):
        make_release(tag, name, has_store=arguments.registries > 1)
    cluster = Cluster(_FIRST, base_images(arguments.bases))
    try:
        cluster.up(operators=arguments.operators)
        cluster.learn_kinds()
        cluster.take_images(_FIRST, _NEXT)
        cluster.make_volumes()
        with tempfile.TemporaryDirectory() as folder, servers(arguments.registries) as (cluster.values, secrets):
            if secrets:
                cluster.apply(*secrets)
            report = run(
                cluster, next_tag=_NEXT, folder=Path(folder) / "points", first_chart=first_chart,
                with_operators=arguments.operators,
            )  # fmt: skip
    finally:
        if not arguments.keep:
            cluster.down()
    return _show(report)


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
