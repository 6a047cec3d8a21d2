"""Immutable plans of training: who may plan, who trains, whose parent a version is, where every event went."""
