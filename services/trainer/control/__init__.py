"""Leases rounds, watches over their processes, settles every ending; never imports TensorFlow."""
