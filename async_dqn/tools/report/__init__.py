"""What runs have left behind, as pictures and tables; `experiment` has the runs of a comparison trained."""
