"""Which versions this replica has, and how they get there: the manager and its slots."""
