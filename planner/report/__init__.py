"""Results drawn for people and programs: tables, JSON records, pages, slides. Nothing here searches or simulates."""
