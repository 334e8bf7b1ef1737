"""What runs have left behind, as pictures and tables; `compare` has the runs of a comparison trained."""
