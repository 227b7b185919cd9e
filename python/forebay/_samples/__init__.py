"""The user's functions of samples and batches, run in threads or processes.

- :mod:`~forebay._samples.rng`: the random numbers of a sample.
- :mod:`~forebay._samples.collate`: results of samples become a batch.
- :mod:`~forebay._samples.calling`: how a function of a sample is called.
- :mod:`~forebay._samples.functions`: what the user gave, and what a sample that fails does.
- :mod:`~forebay._samples.work`: the work for one batch, which several threads share.
- :mod:`~forebay._samples.crew`: the threads.
- :mod:`~forebay._samples.area`, :mod:`~forebay._samples.pipe`: shared memory and messages of a
  worker process.
- :mod:`~forebay._samples.portable`: what is sent to a worker process, and its errors.
- :mod:`~forebay._samples.worker`: the program of a worker process.
- :mod:`~forebay._samples.processes`: the worker processes.
- :mod:`~forebay._samples.pipeline`: the batches that a loader works on ahead of the script.
- :mod:`~forebay._samples.iteration`: the iterator of such a loader.
"""
