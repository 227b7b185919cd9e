"""Parts of formats in Python: the structure of HDF5 files, and the layout of raw records."""
