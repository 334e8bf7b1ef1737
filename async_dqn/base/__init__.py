"""What knows nothing of learning: errors, named tuples, schedules, threads, clocks."""
