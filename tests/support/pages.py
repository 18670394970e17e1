"""One of each product, small, with names and texts that want to be markup, and a reader of pages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser

from support.index_caches import write_dataset
from support.mixture_data import CODE, NAMES, run
from support.tokenize_runs import run_tokenize

HOSTILE = "<script>alert(1)<img src=x onerror=alert(2)>\"'&amp;[red]\x1b[31m\u202e\x85é"
"""A file name: markup of HTML and of rich, an escape sequence, a mark that turns text around, a letter."""

PLAIN = "<script>alert(1)<img src=x onerror=alert(2)>\"'&amp;[red]é"
"""One without anything that cannot be seen, which is all that plans take."""

SHOWN = "<script>alert(1)<img src=x onerror=alert(2)>\"'&amp;[red]\\x1b[31m\\u202e\\x85é"
"""How it is shown."""

TEXT = f"{HOSTILE}</script></title></style></svg>-->]]> [bold red]text[/] {{}} `${{1}}`"


def build(directory):
    """Build two datasets, a blend with its cache, and two plans, in a directory; return their paths."""
    lines = [json.dumps({"text": f"{TEXT} {number} " * (1 + number % 7)}) for number in range(60)]
    (directory / "in.jsonl").write_text("\n".join(lines))
    (directory / "data").mkdir()
    data, plain, mix = (
        str(directory / name) for name in (f"data/{HOSTILE}", f"data/{PLAIN}", f"mix-{HOSTILE}")
    )
    run_tokenize(str(directory / "in.jsonl"), data, workers=1)
    write_dataset(plain, CODE * 5, vocabulary=257)
    other = write_dataset(str(directory / "data/other"), CODE * 5, vocabulary=257)
    sizes = ("--seq-length", "16", "--split", "90,10,0", "--num-samples", "500,20,0", *NAMES)
    plan_mix = str(directory / f"mix-{PLAIN}")
    commands = (
        ("blend", "0.7", data, "0.3", other, *sizes, "-o", mix),
        ("blend", "0.7", plain, "0.3", other, *sizes, "-o", plan_mix),
        ("shard-plan", plan_mix, *BATCH, "-o", directory / "plan"),
        ("shard-plan", plain, other, "--documents", "--mode", "contiguous", *BATCH, "-o", directory / "runs"),
    )
    for command in commands:
        done = run(*command)
        assert done.returncode == 0, done.stderr
    return {
        "dataset": data,
        "blend": mix,
        "cache": f"{mix}/cache",
        "plan": str(directory / "plan"),
        "runs": str(directory / "runs"),
        "rank": str(directory / "runs/rank-00001.json"),
    }


BATCH = ("--data-parallel", "4", "--micro-batch-size", "1", "--global-batch-size", "8")


@dataclass
class Page(HTMLParser):
    """What a browser would make of a page, strictly: every element is closed, and by its own name."""

    content: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)
        self.feed(self.content)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    @property
    def names(self):
        return {name for name, _ in self.elements}

    @property
    def attributes(self):
        return {name for _, attributes in self.elements for name in attributes}

    def of(self, name):
        """Return the attributes of all elements of a name."""
        return [attributes for each, attributes in self.elements if each == name]
