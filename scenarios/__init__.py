"""What `pytest scenarios` runs; one file per family of guarantees."""
