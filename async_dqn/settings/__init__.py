"""The settings of a run, and what makes flags and config.json of them."""
