"""What can be trained: estimators from a feature spec and Keras modules, made ready by `model`."""
