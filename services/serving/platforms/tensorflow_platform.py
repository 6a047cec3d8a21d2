"""The platform `tensorflow`: a SavedModel, computed by the engine that the model's options ask for."""

from services.serving.engines import tensorflow_engine
from services.serving.platforms.loading import LoadedModel, LoadRequest


def load(request: LoadRequest) -> LoadedModel:
    """Raises RequestFailed as the engine does."""
    return tensorflow_engine.load(request.directory, request.options.engine, is_cautious=request.is_cautious)
