"""What the console and the page say, as text."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from steelyard.report import print_summary


def printed(result: Any, width: int = 80) -> str:
    out = io.StringIO()
    print_summary(result, Console(file=out, width=width))
    return out.getvalue()


VOID = {"meta", "link", "input", "br", "circle", "path", "rect"}
HOSTILE = '<script>alert(1)</script> "it\'s" & {{js}} </style> ]]> </script <!--<script'


class Outline(HTMLParser):
    """Checks that elements nest, and collects their text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def read(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return outline


def words(page: str) -> str:
    return " ".join(" ".join(read(page).text).split())


def charts_of(page: str) -> dict[str, Any]:
    """The data of every chart on a page, by name."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
    assert not any("<" in each for each in found), "nothing in the data may look like a tag"
    charts = [json.loads(each) for each in found]
    assert len({each["name"] for each in charts}) == len(charts)
    return {each["name"]: each for each in charts}
