"""The sections of ``benches/async.py``, one idea each."""
