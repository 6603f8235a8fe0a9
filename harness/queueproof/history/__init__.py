"""What workers asked and were told, call by call."""
