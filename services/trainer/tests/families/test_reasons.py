"""The sentence that is left of what a definition's code raises."""

import urllib.error

import pytest

from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.families.reasons import DefinitionFailedError, blame_definition

_FILE = f"/work/{PACKAGE_PREFIX}1/model.py"


_KERAS = "Exception encountered when calling A.call().\n\n\x1b[1mThis. Error encountered:\n\nno\x1b[0m\n\nArguments"
_IN_GRAPH = "in user code:\n\n    ValueError: A.\n    \n    \x1b[1mno\x1b[0m\n    \n    Arguments received by A:\n  * 1"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            SyntaxError("expected ':'", (_FILE, 4, 1, "def f()", 4, 2)),
            r"SyntaxError: expected ':' \(model.py, line 4\)",
        ),
        (ModuleNotFoundError("No module named 'a.b'", name="a.b"), r"no a\.b; .* relatively: from \. import b$"),
        (
            FileNotFoundError(2, "No such file", "x.json"),
            r"x\.json'\. A data file .* when model\.yaml or a Python file",
        ),
        (
            PermissionError(13, "Permission denied", "/data/w"),
            r"/data/w'\. .* TRAINER_SANDBOX_READ names further files",
        ),
        (urllib.error.URLError(PermissionError(13, "no")), r"TRAINER_SANDBOX_PORTS further ports$"),
        (ValueError("shapes must match. Target variable: <Variable path=a/mean, shape=(), ..."), r"numpy\.concatenate"),
        (ValueError("Shapes must be fully-defined"), r"fully-defined\. Give preprocessing layers .* a fixed size"),
        (
            ValueError("You need to adapt on the FeatureSpace"),
            r"FeatureSpace\. The network is made before there are events",
        ),
        (TypeError("<tf.Tensor> is out of scope."), r"scope\. A layer keeps a tensor of an earlier call"),
        (TypeError("its learning rate is not settable."), r"settable\. The rate of model\.yaml is a schedule"),
        (TypeError(_KERAS), r"calling A\.call\(\)\. This\. Error encountered: no$"),
        (KeyError(_KERAS), r"KeyError: Exception encountered when calling A\.call\(\)\. This\. Error encountered: no$"),
        (ValueError(_IN_GRAPH), r"model\.py: no$"),
        (SystemExit(3), r"model.py: it calls sys\.exit\(3\)"),
    ],
)
def test_it_says_what_happened_and_what_to_do(error: BaseException, sentence: str) -> None:
    with pytest.raises(DefinitionFailedError, match=sentence), blame_definition("model.py"):
        raise error
