"""Images per second of ``decode=``, against its decoder alone and torch's DataLoader.

It has no page; docs/decode.md quotes it. JPEGs of 500x375 pixels and quality 90, cut out of
scikit-learn's two photographs, become random crops of 224x224 pixels. Programs take turns, one
epoch each, from a warm page cache. The figure is the best of the rounds; ratios of one run are what
counts.

Needs cargo. Rows of torch need torchvision and simplejpeg (``.venv-frameworks``), and are left out
without.
"""
