"""The server as a laboratory: sessions, gates, the clock, the runner."""
