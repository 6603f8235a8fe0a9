"""What a person or a machine reads afterwards: stories and cards."""
