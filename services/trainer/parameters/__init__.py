"""Parameter servers: processes that hold variables, and workers that compute gradients and wait for nobody."""
