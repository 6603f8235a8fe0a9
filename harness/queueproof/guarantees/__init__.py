"""The catalogue, every guarantee once, and the programs that show each broken."""
