"""What can be trained: estimators from a feature spec and Keras modules; `building` makes a `model` of either."""
