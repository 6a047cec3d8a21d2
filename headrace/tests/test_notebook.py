"""`headrace.connect` and `headrace.run`, and the notebook that needs no platform, cell by cell."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas
import pytest

import headrace
from common.errors import InvalidInput, NotFound
from headrace.tests.answering_server import MODEL, STREAM, VERSION, Server, at

pytestmark = pytest.mark.usefixtures("warm_python")
NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def executed(path: Path) -> dict[str, Any]:
    """The names that the code cells leave."""
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(path), "exec"), names)  # our own
    return names


def test_a_dataframe_becomes_a_model_that_answers() -> None:
    names = executed(NOTEBOOKS / "from_a_dataframe.ipynb")
    assert names["trained"].metrics["auc"] > 0.6
    assert (names["trained"].events_held_out > 0, names["trained"].warnings) == (True, ())
    low, high = names["answer"]["probability"].numpy().tolist()
    assert low < high, "AA is late beyond 1,500 miles"
    broken = names["frame"].assign(late=7)
    with pytest.raises(InvalidInput, match=r"600 of the 600 rows are refused; row 0: .*late"):
        headrace.run(names["schema"], names["definition"], broken)
    twice = broken.set_axis([*broken.columns[:-1], broken.columns[0]], axis="columns")
    with pytest.raises(InvalidInput, match=r"the frame has the column '.*' more than once"):
        headrace.run(names["schema"], names["definition"], twice)
    with pytest.raises(InvalidInput, match="the frame has no rows"):
        headrace.run(names["schema"], names["definition"], broken.head(0))
    binary = {**names["definition"], "warm_start": {"from": "w.npz"}}
    with pytest.raises(InvalidInput, match=r"w\.npz cannot be read"):
        headrace.run(names["schema"], binary, names["frame"], files={"w.npz": b"\xff\xfe"})
    with pytest.raises(InvalidInput, match="other@1 is a version of a platform"):
        headrace.run(names["schema"], {**names["definition"], "warm_start": {"from": "other@1"}}, names["frame"])


def test_versions_and_events_are_frames(server: Server) -> None:
    with pytest.raises(NotFound, match="/no/such/folder"):
        headrace.connect("/no/such/folder")
    hr = headrace.connect(addresses=at(server.url))
    server.will_answer(200, MODEL)
    model = hr.model("m")
    versions = [
        VERSION | {"version": number, "metrics": {"candidate": {"auc": 0.6 + number / 10}}} for number in (1, 2)
    ]
    server.will_answer(200, {"versions": versions})
    frame = model.versions
    assert isinstance(frame, pandas.DataFrame)
    assert frame["auc"].round(2).tolist() == [0.7, 0.8]
    server.will_answer(200, STREAM)
    stream = hr.stream("s")
    server.will_answer(200, {"events": [{"distance": 1.0}, {"distance": 2.0}]})
    assert stream.tail(2)["distance"].tolist() == [1.0, 2.0]
    assert urlsplit(server.requests[-1].path).query == "last=2"
    hr.client.close()
