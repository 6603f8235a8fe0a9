"""The programs that a queue is put to, derived from what it offers, declares and is written in."""
