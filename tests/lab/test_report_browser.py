"""Reports in a real browser: nothing is fetched, nothing fails, no two texts overlap."""

from __future__ import annotations

import os
import shutil

import pytest

from forebay_lab import report
from forebay_lab.report import data, page
from support.bench_result import STRATEGIES, bench_result, event_log, hostile


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, started once."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install 'forebay[test]'"
    )
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    with sync_api.sync_playwright() as playwright:
        # As root Chromium refuses to start with its sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield started
        started.close()


OVERLAPS = """() => {
  // Texts of one picture that cover each other, by more than the slack of a line box.
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const boxes = [...svg.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect()]);
    const frame = svg.getBoundingClientRect();
    boxes.forEach(([text, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 3) found.push(['outside', text]);
      for (const [other, b] of boxes.slice(i + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          found.push([text, other]);
    });
  }
  return found;
}"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 420)])
@pytest.mark.parametrize("source", ["wide", "small", "plain", "events"])
def test_a_browser_shows_the_page_without_a_network_an_error_or_an_overlap(
    browser, tmp_path, source, scheme, width
):
    if source == "events":
        events = [
            [at * 0.01, at % 4, f"part-{at % 3}", at * 4096, 4096 << at % 3, 0.0005] for at in range(300)
        ]
        text = page.render(data.read(event_log(tmp_path / "events.jsonl", events)))
    elif source == "wide":
        text = report.render(bench_result())
    elif source == "small":
        text = report.render(
            bench_result(ranks=2, nodes=1, strategies=STRATEGIES[-1:], repetitions=1, events=3)
        )
    else:
        text = report.render(bench_result(pfs=False, ranks=4, nodes=1, strategies=STRATEGIES[:3]))
    path = tmp_path / "page.html"
    path.write_text(text)
    view = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    messages, requests = [], []
    view.on("console", lambda message: messages.append(message.text))
    view.on("pageerror", lambda error: messages.append(str(error)))
    view.on("request", lambda request: requests.append(request.url))
    try:
        view.goto(path.as_uri())
        assert messages == []
        assert requests == [path.as_uri()]
        shown = [one.get_attribute("id") for one in view.query_selector_all("section.figure")]
        assert {"sizes", "offsets"} <= set(shown) or source == "plain"
        for key in shown:
            # Some tell in sentences or in a table what others draw.
            picture = view.locator(f"#{key} :is(svg, ul, table)").first
            box = picture.bounding_box()
            assert box["width"] > 200
            assert box["height"] > 10
        assert view.evaluate(OVERLAPS) == []
        # Nothing but the table of rows may be wider than the window, and that scrolls by itself.
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        background = view.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(251, 250, 247)", "dark": "rgb(20, 24, 28)"}[scheme]
    finally:
        view.close()


def test_a_browser_runs_nothing_of_a_hostile_result(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(report.render(hostile(bench_result(ranks=2, nodes=1, events=20))))
    view = browser.new_page()
    dialogs = []
    view.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    try:
        view.goto(path.as_uri())
        assert dialogs == []
        assert "<img src=x onerror=alert(2)>" in view.inner_text("h1")
        assert view.query_selector_all("script, img") == []
    finally:
        view.close()
