"""Environments: which there are, and N of them in lock-step."""
