"""Results for people and programs: terminal tables, JSON records."""
