"""Embedding tables in parts: the optimizers whose rule is of whole variables would compute otherwise for each part."""

from collections.abc import Iterable, Mapping

from common.definition.features import Embedding, FeatureSpec
from common.definition.optimizers import Optimizer
from common.errors import InvalidInput

_OF_WHOLE_VARIABLES = ("adafactor", "lamb", "muon", "schedule_free_adamw")


def check_parts(features: Mapping[str, FeatureSpec], optimizers: Iterable[Optimizer]) -> None:
    """Raises InvalidInput where a table is in parts and an optimizer looks at a variable as a whole."""
    parted = [spec.name for spec in features.values() if isinstance(spec, Embedding) and spec.parts > 1]
    whole = list[str]()
    for optimizer in optimizers:
        whole += [key for key in ("use_ema", "clipnorm") if optimizer.options.get(key)]
        whole += ["clip_average_norm"] if optimizer.clip_average_norm else []
        whole += [optimizer.name] if optimizer.name in _OF_WHOLE_VARIABLES else []
    if parted and whole:
        raise InvalidInput(
            f"feature {parted[0]}: a table in parts does not go with {', '.join(whole)}: its rule is of whole variables"
        )
