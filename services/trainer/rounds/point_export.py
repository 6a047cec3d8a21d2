"""A resume point as a SavedModel: `python -m services.trainer.rounds.point_export FOLDER`.

The folder holds schema.json, definition/ (model.yaml and the files beside it) and the point's files below point/;
saved_model/ comes beside them. Nothing is trained, and the definition's code runs in this process.
"""

import sys
from pathlib import Path

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.export import saved_model
from services.trainer.families.user_module import load_user_module
from services.trainer.features.show import files_below
from services.trainer.learn import checkpoint
from services.trainer.rounds.inputs import Parent


def export(folder: Path) -> None:
    """Raises InvalidInput: the definition does not fit the schema. DataLoss: the point cannot be read."""
    files = files_below(folder / "definition")
    definition = parse_definition(files)
    schema = Schema.from_json((folder / "schema.json").read_text())
    definition.check_schema(schema)
    module = load_user_module(definition, files, digest="point", directory=folder / "code")
    point = checkpoint.read(folder / "point")
    model = Parent(definition, definition.seen(schema), module, point).built()
    saved_model.export(model, folder / "saved_model")


def main() -> None:
    export(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
