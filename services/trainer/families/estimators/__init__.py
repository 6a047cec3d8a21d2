"""Ready-made models from a feature spec, as Keras functional models with named inputs."""
