"""A run: the loop, the chief, snapshots, checkpoints, metrics, and building parts from settings."""
