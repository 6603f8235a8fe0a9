"""From a queue and a server to a card: profiles, what is asked, verdicts."""
