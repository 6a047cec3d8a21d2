"""A platform of processes on this machine: started, watched, stopped."""
