"""Events to tf.train.Examples and back, checked against the stream's schema."""
