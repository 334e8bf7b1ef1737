"""Experience, and how it is kept on disk."""
