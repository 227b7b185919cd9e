"""A window that exceeds the memory is refused with the minimum; the order never changes."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import forebay
import forebay_lab

pytestmark = pytest.mark.usefixtures("no_held_memory")

SAMPLES, SAMPLE_BYTES = 1500, 6000


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Samples that begin with their number."""
    path = tmp_path_factory.mktemp("numbered") / "numbered.npy"
    values = np.zeros((SAMPLES, SAMPLE_BYTES // 4), np.int32)
    values[:, 0] = np.arange(SAMPLES)
    np.save(path, values)
    return path


def loader(path, order, memory, batch_size=16, strategy="pread"):
    strategy = forebay_lab.strategy(strategy)
    return forebay.Loader(
        path, batch_size, order=order, node_memory=memory, strategy=strategy, seed=3, expected_epochs=1
    )


def stream(path, order, memory, batch_size, strategy):
    with loader(path, order, memory, batch_size, strategy) as one:
        state = one.state_dict()
        found = []
        for batch in one:
            assert batch["data"][:, 0].tolist() == batch.indices.tolist()
            found.append(batch.indices.tolist())
        assert one.config.memory.region_bytes <= one.config.memory.budget_bytes
        return state, found


def least_of(error):
    """The least that a refusal names: exactly, and as its hint has it."""
    text = str(error)
    exact = re.search(
        r"the least that works is (\d+) bytes \((\d+) for batch buffers, (\d+) for staging", text
    )
    hint = re.search(r'give node_memory="(\d+MiB)", or ask for a smaller batch, group or window', text)
    assert exact, text
    assert hint, text
    return int(exact[1]), hint[1]


def test_a_refusal_names_the_window_and_what_would_do(numbered, says):
    with says(forebay.OptionError, 1000000) as raised:
        loader(numbered, forebay.Group(samples=50, window=4, lanes=4), 1_000_000)
    assert "in the order group(samples=50, window=4)" in str(raised.value)
    least, hint = least_of(raised.value)
    # Four lanes, one more window that is read meanwhile, and what 16 samples make of edges.
    assert least > 5 * 4 * 50 * SAMPLE_BYTES
    with loader(numbered, forebay.Group(samples=50, window=4, lanes=4), hint) as one:
        assert one.config.order.group_samples == 50


@pytest.mark.full
def test_the_least_memory_gives_the_same_samples_and_less_is_refused(numbered):
    dice = random.Random(23)
    for _ in range(25):
        group, window, lanes = dice.randrange(2, 60), dice.randrange(1, 6), dice.choice((1, 2, 4, 8))
        batch, strategy = dice.choice((8, 16, 64)), dice.choice(("pread", "async", "async-db"))
        order = forebay.Group(samples=group, window=window, lanes=lanes)
        with pytest.raises(forebay.OptionError) as raised:
            loader(numbered, order, 1000, batch, strategy)
        least, hint = least_of(raised.value)
        plain = stream(numbered, order, "256MiB", batch, strategy)
        for memory in (least, least + 70_000, hint):
            assert stream(numbered, order, memory, batch, strategy) == plain, (group, window, lanes, memory)
        with pytest.raises(forebay.OptionError) as raised:
            loader(numbered, order, least - 1, batch, strategy)
        assert least_of(raised.value) == (least, hint)
