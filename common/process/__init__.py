"""What every process is made of: settings, life cycle, health, logs, doors, retries."""
