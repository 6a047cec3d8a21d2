"""boosted_trees_*: XGBoost grows them, tensor arithmetic serves them."""
