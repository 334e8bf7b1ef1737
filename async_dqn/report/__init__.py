"""What runs have left behind, as pictures and tables: reads run directories, and trains nothing."""
