"""Events of the engine in Python's ``logging``."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import warnings

import pytest

import forebay
import support


@pytest.fixture
def damaged(tmp_path):
    values = [support.datum(number) for number in range(60)]
    values[25] = values[25][:30]
    return support.write_lmdb(tmp_path / "x.lmdb", values)


def run(path, **options):
    dataset = forebay.open(path, schema="caffe-datum")
    with (
        warnings.catch_warnings(),
        forebay.Loader(
            dataset, 10, order="sequential", bad_samples="skip", expected_epochs=1, world="single", **options
        ) as loader,
    ):
        warnings.simplefilter("ignore")
        return [batch.indices.tolist() for batch in loader], loader.config


def events(caplog, level):
    return [one for one in caplog.records if one.name == "forebay" and one.levelno == level]


def test_decisions_and_replaced_samples_are_events_with_fields(damaged, caplog):
    caplog.set_level(logging.DEBUG, "forebay")
    _, config = run(damaged, name="told")
    (made,) = [one for one in events(caplog, logging.DEBUG) if "config" in one.fields]
    assert made.fields["loader"] == "told"
    logged = json.loads(made.fields["config"])
    assert logged["reading"] == dataclasses.asdict(config.reading)
    assert logged["memory"] == dataclasses.asdict(config.memory)
    (replaced,) = [one for one in events(caplog, logging.INFO) if "sample" in one.fields]
    assert replaced.fields["sample"] == 25
    assert str(damaged) in replaced.fields["reason"]
    assert made.created <= replaced.created


def test_a_fallback_is_an_event(damaged, caplog):
    caplog.set_level(logging.INFO, "forebay")
    dataset = forebay.open(damaged, schema="raw")
    strategy = forebay.Strategy(access="io_uring", stagger=2)
    with forebay.Loader(dataset, 10, strategy=strategy, world="single", expected_epochs=1) as loader:
        list(loader)
        fallbacks = {(one.wanted, one.reason) for one in loader.config.fallbacks}
    logged = [one.fields for one in events(caplog, logging.INFO) if "wanted" in one.fields]
    assert {(fields["wanted"], fields["reason"]) for fields in logged} == fallbacks
    assert "stagger" in {wanted for wanted, _ in fallbacks}


def test_without_a_level_nothing_is_logged(damaged, caplog):
    run(damaged)
    assert not [one for one in caplog.records if one.name == "forebay"]


def test_a_handler_that_interrupts_interrupts_the_call(damaged):
    class Interrupts(logging.Handler):
        def emit(self, record):
            raise KeyboardInterrupt

    logger, handler = logging.getLogger("forebay"), Interrupts()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            forebay.Loader(damaged, 10, world="single")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert len(run(damaged)[0]) == 6


CODE = """
import os, sys, warnings
import forebay
warnings.simplefilter("ignore")
def go():
    dataset = forebay.open(sys.argv[1], schema="caffe-datum")
    with forebay.Loader(dataset, 10, order="sequential", bad_samples="skip", expected_epochs=1, world="single") as loader:
        it = iter(loader)
        # Sample 25 is replaced while the loader delivers the batch before it; the event is still
        # queued.
        next(it)
        if not os.fork():
            os._exit(child())
        assert os.wait()[1] == 0
        list(it)
def child():
    dataset = forebay.open(sys.argv[1], schema="raw")
    with forebay.Loader(dataset, 10, name="child", expected_epochs=1, world="single") as loader:
        list(loader)
    return 0
go()
"""


def test_a_variable_sets_the_level_and_a_forked_child_logs_its_own_events(damaged):
    process = support.Process(CODE, damaged, environment={"FOREBAY_LOG": "debug"})
    try:
        returncode, _, stderr = process.finish()
    finally:
        process.kill()
    assert returncode == 0, stderr
    made = [line for line in stderr.splitlines() if " forebay DEBUG: " in line and " config=" in line]
    assert [" loader=child " in line for line in made] == [False, True], stderr
    assert len([line for line in stderr.splitlines() if " sample=25 " in line]) == 1, stderr


def test_a_level_that_is_none_is_refused(damaged):
    process = support.Process(CODE, damaged, environment={"FOREBAY_LOG": "loud"})
    try:
        returncode, _, stderr = process.finish()
    finally:
        process.kill()
    assert returncode == 1
    assert "OptionError: FOREBAY_LOG" in stderr


def test_the_page_of_events_has_each_warning_and_error_of_the_engine():
    root = support.ROOT
    sources = "".join(path.read_text() for path in sorted(root.glob("crates/*/src/**/*.rs")))
    calls = re.findall(r"tracing::(warn|error)!\((?:[^\"]*?)\"([^\"]+)\"", sources)
    levels = {"warn": "warning", "error": "error"}
    page = (root / "docs/logging.md").read_text()
    missing = [text for level, text in calls if f"| `{text}` | {levels[level]} |" not in page]
    assert len(calls) > 10
    assert missing == []
