"""`python -m examples.compare NAME... [--events COUNT]`: models of one stream, each in one real round, in one table.

No platform is needed: every model learns from the same first events of its stream and is judged on the same held-out
slice, as a round does (headrace check), with the passes that its definition names unless --once is given.
"""

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from common.schema import Schema
from headrace.local import check

_EXAMPLES = Path(__file__).parent
_LIMIT_SECONDS = 600.0


def results(names: Sequence[str], count: int, *, whole: bool) -> dict[str, Mapping[str, Any]]:
    """By name of the example, what services/trainer/rounds/check.py says of it."""
    return {name: _checked(name, count, whole=whole) for name in names}


def _checked(name: str, count: int, *, whole: bool) -> Mapping[str, Any]:
    folder = _EXAMPLES / name
    stream = str(yaml.safe_load((folder / "model.yaml").read_text())["stream"])
    described = yaml.safe_load((_EXAMPLES / stream / "stream.yaml").read_text())
    described.pop("stream")
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.iterdir()
        if path.suffix == ".py" or path.name == "model.yaml"
    }
    files.pop("replay.py", None)
    events = importlib.import_module(f"examples.{stream}.replay").events(count)
    with check.work_folder() as work_dir:
        (work_dir / "events.ndjson").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        check.check_events(work_dir, Schema.from_mapping(described).to_json())
        return check.check_round(work_dir, files, on_step=lambda step: None, limit_seconds=_LIMIT_SECONDS, whole=whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="folders of examples/, all of one stream")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--once", action="store_true", help="one pass over the events, whatever the definition says")
    arguments = parser.parse_args()
    found = results(arguments.names, arguments.events, whole=not arguments.once)
    metrics = sorted({metric for result in found.values() for metric in result["metrics"]})
    width = max(16, 2 + max(map(len, found)))
    print("".join(f"{title:>{width}}" for title in ("", *metrics, "version, kB")))
    for name, result in found.items():
        numbers = [f"{result['metrics'][metric]:.4f}" if metric in result["metrics"] else "" for metric in metrics]
        print("".join(f"{cell:>{width}}" for cell in (name, *numbers, str(result["size_bytes"] // 1000))))


if __name__ == "__main__":
    main()
