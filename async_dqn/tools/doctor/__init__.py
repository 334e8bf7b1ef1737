"""Whether this machine can run what is asked of it: one line a check, with the remedy where something is amiss."""
