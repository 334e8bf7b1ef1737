"""The command line: sub-commands and flags become a `Config` and one role."""
