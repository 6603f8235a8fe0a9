"""What workers asked and were told, call by call, and a shelf to find calls on."""
