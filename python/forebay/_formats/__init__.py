"""What forebay.open needs of formats in Python: HDF5's structure by h5py, and the layout of raw records."""
