"""A queue under test: the model, one SQL file, a Python class, a worker program, templates."""
