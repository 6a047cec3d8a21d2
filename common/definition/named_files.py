"""Which files of a folder belong to a definition: those that model.yaml or its Python files name."""

from collections.abc import Collection, Iterable

_SAVED_MODEL = "/saved_model.pb"


def named_files(paths: Collection[str], texts: Iterable[bytes]) -> set[str]:
    """Files by their path, and all files of a SavedModel by its folder's."""
    text = b"\n".join(texts)
    folders = [path.removesuffix(_SAVED_MODEL) for path in paths if path.endswith(_SAVED_MODEL)]
    within = tuple(f"{folder}/" for folder in folders if folder.encode() in text)
    return {path for path in paths if path.encode() in text or path.startswith(within)}
