"""The processes of a run, one file each: pure wiring of the parts below."""
