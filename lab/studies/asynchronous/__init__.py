"""The sections of ``lab/studies/async.py``, one idea each."""
