"""The platform `tensorflow`: a SavedModel, computed by the engine that the model's options ask for."""

from services.serving.engines import choice
from services.serving.engines.platforms.custom_ops import load_custom_ops
from services.serving.engines.platforms.loading import LoadedModel, LoadRequest


def load(request: LoadRequest) -> LoadedModel:
    """Raises RequestFailed as the engines and `load_custom_ops` do."""
    load_custom_ops(request.directory)
    return choice.load(request)
