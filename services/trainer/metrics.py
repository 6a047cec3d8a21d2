"""What the trainer counts, for /metrics."""

from prometheus_client import Counter, Gauge, Histogram

ROUNDS = Counter("headrace_trainer_rounds", "Attempts at rounds, by how they ended", ["model", "outcome"])
PLANS = Counter("headrace_trainer_plans", "Rounds planned by this trainer, by what fired", ["model", "trigger"])
ROUND_SECONDS = Histogram(
    "headrace_trainer_round_seconds",
    "From the fork of a round's process to its registered version",
    ["model"],
    buckets=(0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600),
)
LIVE_STEPS = Counter("headrace_trainer_live_steps", "Steps of live quality that this trainer has handed in", ["model"])
RUNNING_ROUNDS = Gauge(
    "headrace_trainer_running_rounds",
    "Rounds whose processes run here: moves, starved (wants a core and gets next to none), stalled (hangs or waits)",
    ["activity"],
)
ROUND_CPU_SECONDS = Counter(
    "headrace_trainer_round_cpu_seconds", "Processor time of rounds' processes and all that they start", ["model"]
)
ROUND_STARVED_SECONDS = Counter(
    "headrace_trainer_round_starved_seconds",
    "Wall seconds in which a round wanted a core, or the disk, and did not have it",
    ["model"],
)
ROUND_STARTS = Counter(
    "headrace_trainer_round_starts",
    "Registered rounds by how they began: warm, with what their process had kept, or cold, and why",
    ["model", "start", "because"],
)
WARM_PROCESSES = Gauge("headrace_trainer_warm_processes", "Processes that wait for the next round of their model")
EXAMPLES_TRAINED = Counter("headrace_trainer_examples_trained", "Examples in registered versions", ["model"])
LAG_EXAMPLES = Gauge(
    "headrace_trainer_lag_examples", "Examples in the log that no accepted version and no skip covers", ["model"]
)
GRADIENT_STALENESS = Gauge(
    "headrace_trainer_gradient_staleness",
    "Of asynchronous training: updates between the fetch of the weights and that of the gradient, a mean",
    ["model"],
)
ZYGOTE_STARTS = Counter("headrace_trainer_zygote_starts", "How often the process that forks rounds was started")
