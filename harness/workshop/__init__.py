"""What this repository needs and the wheel leaves out: the matrix, and the harness's own speed."""
