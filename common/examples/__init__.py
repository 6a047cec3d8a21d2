"""Events as tf.train.Examples: what a schema asks for, from JSON values, cells of files and others' records."""
