"""The gradient of a batch in parts: cut by a rule, summed in one order, computed by any number of processes."""
