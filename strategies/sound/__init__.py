"""Sound queues of quite different designs, which no check may accuse."""
