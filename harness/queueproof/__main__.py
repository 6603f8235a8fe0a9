"""`python -m queueproof`: the command line."""

from queueproof.cli import main

main()
