"""Programs, their random draws, their schedules, and the conditions they run under: data."""
