"""What people see of the games that an agent plays."""
