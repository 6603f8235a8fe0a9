"""Looking for schedules that break a guarantee, and making what was found shorter."""
