"""A page of a report, taken apart for tests."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}


class Page(HTMLParser):
    """A page taken apart: sections, table cells, texts; knows whether every tag was closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.sections, self.tags, self.cells, self.texts = {}, [], {}, []
        self.open, self._section = [], None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section = given["id"]
            self.sections[self._section] = (given.get("class", ""), [])
        if "data-key" in given:
            self.cells[given["data-row"], given["data-key"]] = float(given["data-value"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)
        if self._section:
            self.sections[self._section][1].append(text)

    def text(self, section=None):
        return "".join(self.texts if section is None else self.sections[section][1])
