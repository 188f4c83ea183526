"""Results drawn for people and programs: tables, JSON records, pages, pictures. Nothing here searches or simulates."""
