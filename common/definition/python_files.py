"""What can be known of a definition's files without running them: what is Python, and which files it names."""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from common.errors import InvalidInput

_ENTRIES = frozenset({"build_model", "model_fn", "*"})  # import * may bind any name
_SAVED_MODEL = "/saved_model.pb"


def named_files(paths: Collection[str], texts: Iterable[bytes]) -> set[str]:
    """Those of the paths that the texts name, model.yaml's and the Python files', and all files of a SavedModel whose
    folder they name."""
    text = b"\n".join(texts)
    folders = [path.removesuffix(_SAVED_MODEL) for path in paths if path.endswith(_SAVED_MODEL)]
    within = tuple(f"{folder}/" for folder in folders if folder.encode() in text)
    return {path for path in paths if path.encode() in text or path.startswith(within)}


def check_python(files: Mapping[str, bytes], module: str | None) -> None:
    """`module`: the file that builds the model, if one does. Raises InvalidInput: a file is no Python, or imports one
    beside it as if it were installed; the module has no function that builds a model."""
    for path, content in files.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(content, path)
        except SyntaxError as error:
            raise InvalidInput(f"{path}, line {error.lineno or 0} is not Python: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise InvalidInput(f"{path} is not Python: {str(error) or 'it is nested too deeply'}") from error
        _check_imports(path, tree, files)
        if path == module and _ENTRIES.isdisjoint(_bound(tree)):
            raise InvalidInput(
                f"{path} has neither build_model(schema, parameters) nor model_fn(features, labels, mode, params); it "
                f"needs one of them"
            )


def _check_imports(path: str, tree: ast.Module, files: Mapping[str, bytes]) -> None:
    folder = PurePosixPath(path).parent
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module or ""]
        else:
            continue
        for name in names:
            first = name.partition(".")[0]
            if str(folder / f"{first}.py") in files:
                raise InvalidInput(
                    f"{path}, line {statement.lineno} imports {name} as if it were installed; files of a definition "
                    f"import each other relatively: from . import {first}, or from .{first} import NAME"
                )


def _bound(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in child.names)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        yield from _bound(child)
