"""A gate on the wire: clients that own their connections, stepped from outside."""
