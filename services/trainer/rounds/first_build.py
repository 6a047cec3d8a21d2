"""A module's model of a round that begins from nothing is built twice: a rebuild has to begin as the round does."""

from collections.abc import Callable

from services.trainer.families.port import Model
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import UserModule
from services.trainer.learn import adapters

Build = Callable[[UserModule | None], Model]


def first_build(build: Build, imported: UserModule, import_again: Callable[[], UserModule | None]) -> Model:
    """Built from the module as it is imported again; the first one is only compared with.

    Raises:
        DefinitionFailedError: they begin with other variables; or as `build`.
    """
    before = adapters.beginning_of(build(imported))
    model = build(import_again())
    now = adapters.beginning_of(model)
    different = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    if different:
        raise DefinitionFailedError(
            f"{model.definition.module}: built twice from one seed, the model begins with another "
            f"{different[0].removeprefix('model/')} each time, so no version could be rebuilt. Draw with keras.random "
            f"or numpy.random, which are seeded for it, or from numpy.random.default_rng(NUMBER); take nothing from a "
            f"clock"
        )
    return model
