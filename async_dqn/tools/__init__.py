"""What is done with runs and machines: evaluate, export, compare, plot, status, bench, doctor."""
