"""What the adapters of frameworks share; no framework is imported here."""
