"""How good outputs are, exactly, over a whole slice: every metric is a function of the examples' weights."""
