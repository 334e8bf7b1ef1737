"""Faults of all kinds in whole runs, and what has to hold after each. Run it with launch/chaos.sh."""
