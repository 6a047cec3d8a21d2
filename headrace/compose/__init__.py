"""A platform in containers: started, watched, stopped."""
