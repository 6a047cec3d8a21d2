"""The roles that requests about a model need; the doors check them with the model's name that they have read."""

from common.access.guard import rule

PREDICTS = rule("predict:{model}", "service:registry", by_door=True)
READS = rule("predict:{model}", "viewer", "service:registry", by_door=True)
CALLS = rule("predict:{model_spec.name}", by_door=True)
CALLS_TASKS = rule("predict:{tasks.model_spec.name}", by_door=True)
CALLS_TO_READ = rule("predict:{model_spec.name}", "viewer", by_door=True)
RELOADS = rule("operator", by_door=True)
