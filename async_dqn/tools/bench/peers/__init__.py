"""Programs of others, each a script for a Python that has them installed; nothing here imports anything of ours."""
