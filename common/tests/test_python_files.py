"""What a definition's Python files are refused for before anything of them runs."""

import pytest

from common.definition.python_files import check_python
from common.errors import InvalidInput
from testing.rows import each_row

_BUILD = "def build_model(schema, parameters):\n    return 1\n"


@each_row(
    ("code", "reason"),
    [
        ("x = 1\ndef build_model(:\n", "model.py, line 2 is not Python"),
        ("x = 1\0", "model.py"),
        ("(" * 10_000, "model.py"),
        ("-" * 100_000 + "1", "model.py"),
        ("def make():\n    def build_model(schema, parameters): ...\n", "has neither build_model.* nor model_fn"),
        (f"import os, blocks\n{_BUILD}", "line 1 imports blocks as if it were installed.* from . import blocks"),
        (f"from blocks.deep import wide\n{_BUILD}", "line 1 imports blocks.deep .* from .blocks import NAME"),
    ],
)
def test_a_module_is_refused(code: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        check_python({"model.py": code.encode(), "blocks.py": b"", "notes.txt": b"def ("}, "model.py")


@each_row(
    "code",
    [
        _BUILD,
        "from .blocks import *",
        "from .blocks import make as build_model",
        "model_fn = None",
        f"if True:\n    {_BUILD.replace(chr(10) + '    ', ' ')}",
        f"try:\n    import blocks\nexcept ImportError:\n    from . import blocks\n{_BUILD}",
    ],
)
def test_a_module_that_may_build_a_model_is_taken(code: str) -> None:
    check_python({"model.py": code.encode(), "blocks.py": b"x = 1"}, "model.py")
    check_python({"blocks.py": b"x = 1"}, None)
