"""The sections of ``benches/tiers.py``, one idea each."""
