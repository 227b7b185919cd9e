"""Studies: what docs/results shows, measured again by ``python lab/studies STUDY [SECTION ...]``.

A study is a folder. Its ``__init__.py`` says what is measured and what that needs; its ``study.py``
has the entry point `STUDY`: the sections, each a function that measures and returns rows. All
studies start in one way (`studies.harness.sections`):

    python lab/studies                          # names the studies
    python lab/studies tiers --help             # names its sections
    python lab/studies tiers --tiny             # runs everything on small data, in minutes
    python lab/studies tiers half               # measures a section, and prints its tables
    python lab/studies tiers half --save        # also stores its figures and updates its page
    python lab/studies pages                    # writes all tables from the stored figures

Datasets are made once and kept in ``$FOREBAY_BENCH_DIR`` (default ``./bench-data``).

``harness`` has what studies share beside `forebay_lab.bench`: the command line, pages of results,
datasets, and emulated mounts with a tier. Studies run `forebay bench` wherever it can measure what
they ask.
"""
