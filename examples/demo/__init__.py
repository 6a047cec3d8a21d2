"""The demonstration: a fresh platform, real events, predictions all the while, and an account of what happened.

run.py conducts; feeder.py replays the events and asker.py asks for predictions, each in a separate process;
watcher.py follows versions and replicas; report.py adds up and checks; screen.py shows.
"""
