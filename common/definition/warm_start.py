"""What a model knows before its first round, as its definition says it (section `warm_start`).

{from: flights-late@3}                                      the weights of a version, by path and by the meaning of rows
{from: flights-late@3, variables: [hidden_*], rename: {tower: hidden_0}, freeze: [hidden_0]}
{from: weights.npz}                                         arrays by path, a file of the definition
{from: theirs.keras, rename: {dense: hidden_0}}             layers by name, of a model that was saved elsewhere
{from: words.txt, variables: [word_vector_table]}           a word and its numbers a line: rows of a table, by word
{from: s3://bucket/words.txt}                               such a file; `headrace apply` reads it into the definition
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.definition.fields import Fields
from common.errors import InvalidInput
from common.storage import is_url

_FILES = (".npz", ".txt", ".vec", ".h5", ".keras")


@dataclass(frozen=True)
class WarmStart:
    """Attributes:
    model, version: whose weights; "" and 0 where they come from a file.
    file: path in the definition; "" where they come from a version.
    variables: patterns (training.is_meant) of the model's own variables that start from there.
    rename: path or layer there to path or layer here.
    freeze: patterns of variables that do not learn; they are added to training.frozen.
    """

    model: str = ""
    version: int = 0
    file: str = ""
    variables: tuple[str, ...] = ("*",)
    rename: Mapping[str, str] = field(default_factory=dict)
    freeze: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return self.file or f"{self.model}@{self.version}"

    def renamed(self, path: str) -> str:
        """A path of the source as the path of the model's variable that starts from it."""
        for there, here in self.rename.items():
            if path == there or path.startswith(f"{there}/"):
                return here + path.removeprefix(there)
        return path


def parse_warm_start(section: object, files: Mapping[str, bytes]) -> WarmStart | None:
    """Raises InvalidInput: which key, what was expected."""
    if section is None:
        return None
    fields = Fields("warm_start", section)
    source = fields.text("from")
    model, version, file = _source(source, files)
    rename = fields.take("rename", {})
    if not isinstance(rename, Mapping) or not all(isinstance(name, str) for pair in rename.items() for name in pair):
        raise InvalidInput(f"warm_start: rename must be a mapping of path there to path here, got {rename!r}")
    warm_start = WarmStart(
        model=model,
        version=version,
        file=file,
        variables=_patterns(fields, "variables", ("*",)),
        rename=dict(rename),
        freeze=_patterns(fields, "freeze", ()),
    )
    fields.finish()
    return warm_start


def _patterns(fields: Fields, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """One pattern or a list of them."""
    return (fields.text(key),) if isinstance(fields.peek(key), str) else fields.texts(key, default)


def _source(source: str, files: Mapping[str, bytes]) -> tuple[str, int, str]:
    name = source.rpartition("/")[2] if is_url(source) else source
    if name in files and name.endswith(_FILES):
        return "", 0, name
    model, _, number = source.partition("@")
    if model and number.isascii() and number.isdigit() and int(number) > 0:
        return model, int(number), ""
    raise InvalidInput(
        f"warm_start: from must be MODEL@VERSION with the number of a version, or a file of the definition "
        f"({', '.join(_FILES)}; `headrace apply` reads a file with a URL into the definition), got {source!r}; "
        f"the definition has {', '.join(sorted(files))}"
    )
