"""What the platform's topics are called."""


def examples_topic(stream: str) -> str:
    """Events of the stream, as Examples ready to train on."""
    return f"examples.{stream}"


def deadletter_topic(stream: str) -> str:
    """Events of the stream that were refused or could not be trained on; one partition."""
    return f"deadletter.{stream}"


def predictions_topic(model: str) -> str:
    """Predictions of the model that were sampled or have a key; one partition."""
    return f"predictions.{model}"


def labels_topic(stream: str) -> str:
    """Labels of the stream that came without their events, as Examples of key and labels."""
    return f"labels.{stream}"
