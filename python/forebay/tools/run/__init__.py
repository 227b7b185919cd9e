"""``forebay run``: start a program whose files come from storage tiers.

:mod:`~forebay.tools.run.command_line` reads the command line,
:mod:`~forebay.tools.run.served` opens a run with the tier daemon,
:mod:`~forebay.tools.run.program` looks at the program before it starts,
:mod:`~forebay.tools.run.child` starts it and waits for its end, and
:mod:`~forebay.tools.run.summary` says what came from the tiers.
:mod:`~forebay.tools.run.main` puts them in this order.

A job starts one such process for each rank, so these modules import neither click, numpy nor rich.
"""
