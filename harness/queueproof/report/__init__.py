"""Stories and cards: what a person or a machine reads afterwards."""
