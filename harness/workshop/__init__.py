"""Tools of this repository that the wheel leaves out: the matrix, and the harness's own speed."""
