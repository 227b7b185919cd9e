"""The sections of ``lab/studies/tiers.py``, one idea each."""
