"""What two or more services need. Knows no service and never imports TensorFlow."""
