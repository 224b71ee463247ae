"""The page of a comparison says what its table says, and in a real browser its charts and switches work."""

import json
import re
from dataclasses import replace

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from data.errors import ConfigError
from study import page
from study.figures import interval_range
from study.report import load
from study.table import markdown, short
from tests.helpers.browser import browser, needs_browser  # noqa: F401 a fixture
from tests.helpers.studies import BASE, OTHER, RATE, WORSE, a_run, a_table, write_run, write_study
from tests.helpers.waiting import until

HOSTILE = "norm=</script><b>"
LOSSES = {  # by arm; the last one is far away
    BASE: [2.00, 2.05, 1.98],
    OTHER: [1.90, 1.951, 1.88],
    "norm=dyt placement=pre": [2.10, 2.151, 2.08],
    "norm=derf placement=pre": [2.11, 2.161, 2.09],
    "norm=none placement=pre": [2.12, 2.171, 2.10],
    "norm=batchnorm placement=pre model.depth_scaled_init=false": [2.13, 2.181, 2.11],
    HOSTILE: [11.0, 11.1, 11.05],
}
STEPS = [0, 50, 90]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The table of a tuned study. The first seed of each arm has rows with statistics of three blocks."""
    folder = tmp_path_factory.mktemp("study")
    curves = {title: [(step, loss + 2 - step / 50) for step in STEPS] for title, [loss, *_] in LOSSES.items()}
    options = {title: {"curve": curve} for title, curve in curves.items()}
    write_study(folder, LOSSES, (None, 2.5, 2.0), options, seeds=3, runs_dir=str(folder / "runs"))
    for scale, _ in enumerate(LOSSES, 1):
        file = folder / "runs" / f"arm{scale - 1}-s10" / "metrics.jsonl"
        rows = [
            {"step": step, "act.rms/final": 1.0, "stats/overhead": 0.1, "grad.norm/00": "NaN"}
            | {f"act.rms/{block:02}.mlp": float(scale * (1 + block + step)) for block in range(3)}
            | {f"act.ratio/{block:02}.attn.branch": 0.123456 for block in range(3)}
            for step in STEPS
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows) + file.read_text())
    return load(folder)


@pytest.fixture(autouse=True)
def without_vega(monkeypatch):
    """Leave out the library that draws the charts, which takes seconds; in the browser it is there."""
    monkeypatch.setattr(page, "vega", lambda: "")


def visible(text):
    """Return the words of a page."""
    words = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
    return " ".join(words.split())


# ---------------------------------------------------------------------------------------------------
# What it says


def test_the_page_and_the_table_in_markdown_are_written_over_ours_alone(table, tmp_path):
    index = tmp_path / "new" / "index.html"
    for _ in range(2):
        assert page.write(table, index.parent) == index
    assert index.with_name("table.md").read_text(encoding="utf-8") == markdown(table)
    assert "<!doctype html>" in index.read_text(encoding="utf-8")
    assert len([*index.parent.iterdir()]) == 2
    index.write_text("mine")
    with pytest.raises(ConfigError, match=r"index\.html: is not a page of compare\.py; remove it, or name"):
        page.write(table, index.parent)
    assert index.read_text() == "mine"


def test_it_is_one_file_that_may_load_nothing_and_what_a_folder_says_is_no_markup(table):
    text = page.render(replace(table, name="<i>", warnings=["<img src=x>"]))
    assert "Content-Security-Policy\" content=\"default-src 'none';" in text
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?!data:)", text) == []
    assert "@import" not in text
    assert "&lt;/script&gt;&lt;b&gt;" in text
    assert "\\u003c/script\\u003e\\u003cb\\u003e" in text  # in JSON
    for markup in ("</script><b>", "<img", "<i>"):
        assert markup not in text


def test_a_study_a_published_one_and_loose_runs_have_what_they_can_show(table):
    runs = {title: {s: replace(r, folder=None) for s, r in own.items()} for title, own in table.runs.items()}
    rows = [replace(row, outcome=None, reason=None) for row in table.rows]
    loose = replace(table, study=None, rows=rows, trials={}, conclusion="7 groups.", notes=[], advice=None)
    curves, blocks, made = "Loss curves", "Block by block", "How the runs were made"
    for kind, heads in (
        (table, [curves, blocks, "Tuning", made]),
        (replace(table, runs=runs), [curves, "Tuning", made]),  # published
        (loose, [curves, blocks, made]),
    ):
        assert re.findall(r"<h2>(.*?)</h2>", page.render(kind)) == heads
    verdicts = {"better", "worse", "equivalent", "open"}
    assert not verdicts & {*re.findall(r"\w+", visible(page.render(loose)))}


def test_the_sentences_of_the_table_are_on_the_page(table):
    advice = ("More seeds:", "python x")
    table = replace(table, warnings=["the compared runs differ in threads"], advice=advice)
    text = page.render(table)
    for line in (table.conclusion, *table.notes, *table.warnings, *advice):
        assert page.TEMPLATES.from_string("{{ line }}").render(line=line) in text
    for words in ("python ablate.py study=norms", "torch 2.13.0", "commit 01234567", "arm1-s12"):
        assert words in visible(text)


def test_the_interval_drawn_is_the_rows(table):
    low, high = interval_range(table)
    drawn = re.findall(r'<line class="ci \w+" x1="(.*?)%" x2="(.*?)%"', page.render(table))
    compared = [row for row in table.rows if row.low is not None]
    assert len(drawn) == len(compared) == len(LOSSES) - 1
    for row, ends in zip(compared, drawn, strict=True):
        expected = [min(max(end, low), high) for end in (row.low, row.high)]
        assert [low + float(end) / 100 * (high - low) for end in ends] == pytest.approx(expected, abs=1e-3)


def test_a_baseline_the_best_three_and_the_worst_that_is_not_far_away_are_shown_at_first(table):
    shown = page.first_shown(table)
    assert shown == [short([*LOSSES][number]) for number in (0, 1, 2, 5)]
    low, high = page.ends(page.curves(table), shown)  # where these differ at the end
    assert 1.8 < low < 1.9
    assert high < 3.3  # although the runs start at 4 and one ends at 11


def test_curves_are_means_and_ranges_over_the_seeds_that_got_there():
    runs = {1: a_run(2.0, curve=((0, 4.0), (100, 2.0))), 2: a_run(None, curve=((0, 5.0),))}
    assert page.curves(replace(a_table(WORSE), runs={OTHER: runs})) == [
        {"arm": "rmsnorm pre", "step": 0, "loss": 4.5, "low": 4.0, "high": 5.0},
        {"arm": "rmsnorm pre", "step": 100, "loss": 2.0, "low": 2.0, "high": 2.0},
    ]
    for count in (1, 199, 200, 201, 5000):  # long ones are thinned, but for their end
        kept = page.thinned(range(count), 200)
        assert (len(kept) <= 200, kept[-1]) == (True, count - 1)


def test_statistics_of_blocks_are_those_of_the_first_seed_and_not_too_many(table, tmp_path):
    records = page.blocks(table)
    assert len(records) == len(LOSSES) * len(STEPS) * 2
    assert {record["statistic"] for record in records} == {"act.rms/*.mlp", "act.ratio/*.attn.branch"}
    first = {"arm": "layernorm pre", "statistic": "act.rms/*.mlp", "step": 0}
    assert records[0] == first | {"block": [0, 1, 2], "value": [1.0, 2.0, 3.0]}
    write_run(tmp_path / "a", end={f"a.{number}/00.mlp": 1.0 for number in range(1000)})
    runs = {OTHER: {1: a_run(2.0, folder=tmp_path / "a")}}
    assert len(page.blocks(replace(a_table(WORSE), runs=runs))) == page.STATISTICS


def test_a_best_at_the_edge_of_its_range_is_marked(table):
    best = [record for record in page.trials(table) if record["chosen"]]
    assert [record["edges"] for record in best] == [[RATE]] * len(LOSSES)
    charts = page.specs(table, {"curves": [], "blocks": [], "trials": best}, [])
    assert "chosen, at the edge" in json.dumps(charts)


def test_a_map_and_a_line_are_drawn_where_arms_allow_it():
    norms, places = ("layernorm", "rmsnorm", "none"), ("pre", "post", "peri")
    means = {f"norm={norm} placement={each}": [2.0] for norm in norms for each in places}
    assert "<h2>Map</h2>" in page.render(a_table(means, seeds=1, verdicts=False))
    assert "<h2>Map</h2>" not in page.render(a_table(means, seeds=1))
    titles = [f"norm={norm} placement=pre model.n_layer={n}" for n in (2, 4, 16) for norm in norms[:2]]
    text = page.render(a_table({title: [2.0] for title in titles}, seeds=1, by=["model.n_layer"]))
    assert "<h2>Validation loss by model.n_layer</h2>" in text


def test_ticks_are_round_numbers():
    assert page.ticks(-0.03, 0.41) == [0.0, 0.2, 0.4]
    assert page.ticks(-1.2, 1.0) == [-1.0, 0.0, 1.0]


# ---------------------------------------------------------------------------------------------------
# In a browser


@pytest.fixture(scope="module")
def drawn(browser, table, tmp_path_factory):
    """Return a browser that shows the page; tests leave it as they found it."""
    file = page.write(table, tmp_path_factory.mktemp("page"))
    browser.get_log("performance")
    browser.get(file.as_uri())
    until(lambda: browser.execute_script("return document.body.dataset.drawn"))
    return browser


def marks(browser, where, attribute):
    """Return an attribute of the paths of a chart."""
    found = browser.find_elements(By.CSS_SELECTOR, f"{where} path")
    return [path.get_attribute(attribute) for path in found]


def colors(browser):
    """Return the colours of the curves."""
    return marks(browser, "#curves g.mark-line", "stroke")


def shapes(browser):
    """Return the lines of the profile, as they are drawn."""
    return marks(browser, "#profile g.mark-line", "d")


@pytest.mark.slow
@needs_browser
def test_charts_are_drawn_without_an_error_and_nothing_is_fetched(drawn):
    assert [entry for entry in drawn.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert len(colors(drawn)) == len(LOSSES)
    assert len(marks(drawn, "#heat g.mark-rect.role-mark", "d")) == 4 * 3 * 3
    assert len(shapes(drawn)) == 4
    assert len(marks(drawn, "#tuning g.mark-symbol.role-mark", "d")) == 3 * len(LOSSES)
    events = [json.loads(entry["message"])["message"] for entry in drawn.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert urls
    assert all(url.startswith(("file:", "data:")) for url in urls), urls


@pytest.mark.slow
@needs_browser
def test_a_tick_colours_a_curve_and_no_other_one_changes_its_colour(drawn):
    first, *_, last = drawn.find_elements(By.CSS_SELECTOR, "#table input")
    before = {*colors(drawn)}
    assert "#888" in before
    last.send_keys(Keys.SPACE)
    until(lambda: len({*colors(drawn)}) == len(before) + 1)
    first.send_keys(Keys.SPACE)  # the first colour is free now
    until(lambda: len(shapes(drawn)) == 4)
    assert len(before & {*colors(drawn)}) == len(before) - 1
    first.send_keys(Keys.SPACE)
    last.send_keys(Keys.SPACE)
    until(lambda: {*colors(drawn)} == before)


@pytest.mark.slow
@needs_browser
def test_all_and_none(drawn):
    drawn.find_element(By.ID, "all").click()
    until(lambda: "#888" not in colors(drawn))
    drawn.find_element(By.ID, "none").click()
    until(lambda: {*colors(drawn)} == {"#888"})
    assert shapes(drawn) == []
    for box in drawn.find_elements(By.CSS_SELECTOR, "#table input"):
        if box.get_attribute("value") in ("layernorm pre", "rmsnorm pre", "dyt pre", "none pre"):
            box.click()
    until(lambda: len(shapes(drawn)) == 4)


@pytest.mark.slow
@needs_browser
def test_the_slider_and_the_menu_change_the_profile(drawn):
    slider, menu = drawn.find_element(By.ID, "at"), Select(drawn.find_element(By.ID, "statistic"))
    ratio = shapes(drawn)
    menu.select_by_visible_text("act.rms/*.mlp")
    until(lambda: shapes(drawn) != ratio)
    at_90 = shapes(drawn)
    slider.send_keys(Keys.HOME)
    until(lambda: shapes(drawn) != at_90)
    assert drawn.find_element(By.ID, "step").text == "0"
    slider.send_keys(Keys.END)
    until(lambda: shapes(drawn) == at_90)
    menu.select_by_index(0)
    until(lambda: shapes(drawn) == ratio)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling_and_charts_have_the_ink_of_the_page(drawn, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    drawn.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    drawn.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        until(lambda: drawn.execute_script("return document.documentElement.scrollWidth") <= 390)
        style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        ink = drawn.execute_script(style, "#curves .role-axis-label text", "fill")
        assert ink == drawn.execute_script(style, "body", "color")
        assert ink != drawn.execute_script(style, "body", "backgroundColor")
    finally:
        drawn.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        drawn.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
