"""The page in a real browser: no script errors, tables that sort, and nothing wider than the window."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from bench_records import SHARED, observation

from bench.all_boards import all_boards
from bench.charts import Plot, Series, render_chart
from bench.findings import findings
from bench.metrics import sections
from bench.records import Record, read_records
from bench.report import write_report
from bench.table7 import SBERT, SMART

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
# Presses headings and says what came of it where the browser's dump of the page shows it.
CHECK = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("load", () => {
  const table = document.querySelector("table");
  const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.startsWith("sentences/s"));
  const press = () => table.tHead.rows[0].cells[place].firstElementChild.click();
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[place].textContent.split(" ")[0]);
  const seen = { errors, before: column() };
  press();
  seen.falling = column();
  press();
  seen.rising = column();
  table.tHead.rows[0].cells[0].firstElementChild.click();
  seen.names = [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  seen.tooWide = [...document.querySelectorAll("main, section, figure, .tiles")]
    .filter((part) => part.getBoundingClientRect().right > innerWidth + 1)
    .map((part) => part.className || part.tagName);
  seen.charts = document.querySelectorAll("figure").length;
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of board."""
    folder = tmp_path_factory.mktemp("page")
    raw = folder / "raw.jsonl"
    raw.write_text("".join(f"{json.dumps(record)}\n" for record in records_of_all_kinds()))
    records = read_records([raw])
    return write_report(all_boards(records), findings(sections(records)), folder / "out").page


def records_of_all_kinds() -> list[Record]:
    names = ("baseline", "sentport onnxruntime packed int8", "a peer with a rather long name")
    rows: list[Record] = []
    for corpus, tokens in (("STS-B", 1000), ("long documents", 20_000)):
        for place, name in enumerate(names):
            more = {"corpus": corpus, "tokens": tokens, "computed_tokens": 2 * tokens, "repeats": 2}
            taken = [
                observation(name, "own", (2 - place / 2) * tokens / 1000, place, repeat=repeat, **more)
                for repeat in range(2)
            ]
            asked = {"sts": "STS-B test", "spearman": 80 + place, "mean_cosine": 0.99, "alone_texts": 9}
            asked |= {"alone_cosine": 0.97, "neighbours_kept": 0.93}
            rows += [*taken, {**taken[0], "kind": "quality", **asked}]
    rows.append({**observation("cheat", "own", 1.0, 9), "kind": "rejected", "reason": "it caches"})
    rows.append({**SHARED, "kind": "ceiling", "precision": "fp32", "flops": 1e11, "threads_asked": 2})
    machine = {"device": "cpu", "device_name": "Some CPU", "threads": 2, "corpus_source": "s"}
    growth = {
        **SHARED,
        **machine,
        "benchmark": "growth",
        "kind": "size",
        "model": "m",
        "engine": "native",
        "precision": "fp32",
        "layout": "packed",
    }
    rows += [growth | {"texts": texts, "seconds": texts / 300, "peak_mb": 200.0} for texts in (16, 1000, 100_000)]
    table7 = {**SHARED, **machine, "benchmark": "table7", "kind": "timing", "policy": "p", "texts": 9, "tokens": 99}
    table7 |= {"repeat": 0, "computed_tokens": None}
    rows += [table7 | {"encoder": name, "turn": turn, "seconds": 1.0} for turn, name in enumerate((SBERT, SMART))]
    load = {**SHARED, "benchmark": "load", "kind": "level", "model": "m", "corpus_source": "s", "address": "a:1"}
    load |= {"engine": "e", "precision": "fp32", "texts_per_request": 1, "errors": {"busy": 2}, "server": {}}
    for loop, level in (("closed", 1), ("closed", 8), ("open", 50.0)):
        rows.append(load | {"loop": loop, "level": level, "sent": 30, "seconds": 1.0, "latency_ms": [4.0 * level] * 28})
    return rows


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium; Debian: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_opens_and_sorts_in_a_browser(page: Path, tmp_path: Path, width: int) -> None:
    checked = tmp_path / "checked.html"
    # In front of the page's own script, so that its errors are seen as well.
    checked.write_text(page.read_text(encoding="utf-8").replace("<body>", f"<body>{CHECK}", 1), encoding="utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--enable-logging=stderr",
            ),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom", checked.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not re.search(r"CONSOLE.*(Error|Refused|Failed)", done.stderr), done.stderr[-2000:]
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    seen = json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    assert seen["errors"] == []
    assert seen["before"] == ["50", "66.7", "100", "rejected"]
    assert seen["falling"] == ["100", "66.7", "50", "rejected"]
    assert seen["rising"] == ["50", "66.7", "100", "rejected"]  # what has no number stays last
    assert seen["names"][0] == "sentport onnxruntime packed int8"
    assert seen["tooWide"] == []
    assert seen["charts"] >= 9


def test_axes_have_round_ticks_and_hold_all_points() -> None:
    points = ((16.0, 0.05), (1000.0, 3.2), (1_000_000.0, 3000.0))
    drawn = render_chart(Plot("c", "texts", "seconds", (Series("a & b", points),), log_x=True, log_y=True))
    ticks = re.findall(r'class="tick">|class="tick[^"]*"[^>]*>([^<]+)<', drawn)
    assert ticks == ["10", "100", "1k", "10k", "100k", "1M", "0.01", "0.1", "1", "10", "100", "1k", "10k"]
    assert "a &amp; b" in drawn
    places = [(float(x), float(y)) for x, y in re.findall(r'translate\(([\d.]+) ([\d.]+)\)"><title>', drawn)]
    assert places == sorted(places, key=lambda place: (place[0], -place[1]))
    assert all(60 <= x <= 705 and 10 <= y <= 300 for x, y in places)
    assert len(places) == 3
    many = render_chart(Plot("c", "x", "y", tuple(Series(f"s{n}", ((1.0, 2.0),), joined=False) for n in range(24))))
    looks = re.findall(r'<li class="(hue\d)"><svg [^>]*><path class="mark" d="([^"]+)"/></svg>s\d+</li>', many)
    assert len(set(looks)) == len(looks) == 24  # by colour and form
    linear = render_chart(Plot("c", "x", "y", (Series("s", ((1.0, 81.0), (3.0, 82.5)), joined=False),)))
    assert re.findall(r'class="tick side"[^>]*>([^<]+)<', linear) == ["81", "81.5", "82", "82.5"]
    assert 'class="line"' not in linear
    assert render_chart(Plot("c", "x", "y", (Series("s", ()),))) == ""
