"""In a real browser the page is drawn without errors, has switches that work, and fetches nothing."""

import json
import re
import zlib

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from comparison.drawing.page import page
from comparison.published import read
from comparison.report import build_report
from comparison.write import write_report
from tests.comparison.runs import FAR, NEAR, fair_runs, several
from tests.conftest import ROOT
from tests.helpers.browser import browser, needs_browser  # noqa: F401 a fixture
from tests.helpers.waiting import until


def curve(norm: str, rate: float) -> dict[int, dict[str, float]]:
    statistics = {f"act.rms/{block:02}.mlp": 1.0 + block for block in range(4)}
    return {
        step: {"train/loss": 4 - step / 500 + rate, "val/loss": 4 - step / 500} | statistics
        for step in (0, 100, 500, 900)
    }


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    runs = []
    for norm, loss in (("layernorm", 2.0), ("batchnorm", 2.3), ("none", 2.1)):
        for rate in (1e-3, 3e-3, 1e-2):
            arguments = f"norm={norm} optim.learning_rate={rate}"
            losses = [loss + rate * 10, loss + rate * 11, loss + rate * 9]
            runs += several(parent / f"{norm}{rate}", {arguments: losses}, curve=curve(norm, rate))
    return build_report(runs)


def open_page(browser, folder, report) -> None:
    file = folder / "index.html"
    file.write_text(page(report), encoding="utf-8")
    browser.get(file.as_uri())
    until(lambda: browser.execute_script("return document.body.dataset.drawn"))


@pytest.fixture
def opened(browser, report, tmp_path):
    browser.get_log("performance")
    open_page(browser, tmp_path, report)
    return browser


def lines(browser, figure: str) -> int:
    """Return the number of lines in a figure."""
    return len(browser.find_elements(By.CSS_SELECTOR, f"#{figure} g.mark-line path"))


@pytest.mark.slow
@needs_browser
def test_it_is_drawn_without_errors_and_fetches_nothing(opened):
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    for figure in ("curves", "rates", "profile"):
        assert lines(opened, figure) == 3, figure
    assert len(opened.find_elements(By.CSS_SELECTOR, "#glance g.mark-symbol.role-mark path")) == 2
    assert len(opened.find_elements(By.CSS_SELECTOR, "#map g.mark-rect.role-mark path")) == 3 * 4 * 4
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert urls
    assert all(url.startswith(("file:", "data:", "blob:")) for url in urls), urls


@pytest.mark.slow
@needs_browser
def test_the_legend_marks_what_leaks(opened):
    labels = [each.text for each in opened.find_elements(By.CSS_SELECTOR, "#legend label")]
    assert [label for label in labels if "LEAKS" in label] == ["batchnorm LEAKS"]


@pytest.mark.slow
@needs_browser
def test_the_legend_takes_groups_away_and_brings_them_back_by_keyboard(opened):
    [box, *_] = opened.find_elements(By.CSS_SELECTOR, "#legend input")
    box.send_keys(Keys.SPACE)
    until(lambda: lines(opened, "curves") == lines(opened, "profile") == lines(opened, "rates") == 2)
    box.send_keys(Keys.SPACE)
    until(lambda: lines(opened, "curves") == lines(opened, "profile") == 3)


@needs_browser
def test_the_slider_moves_through_the_steps(opened):
    slider = opened.find_element(By.ID, "profile-slider")
    step = opened.find_element(By.ID, "profile-step")
    assert step.text == "900"
    slider.send_keys(Keys.ARROW_LEFT)
    until(lambda: step.text == "500")
    assert slider.get_attribute("aria-valuetext") == "step 500"
    slider.send_keys(Keys.HOME)
    until(lambda: step.text == "0")


@needs_browser
def test_metric_axis_and_statistic_can_be_chosen(opened):
    Select(opened.find_element(By.ID, "curve-metric")).select_by_value("train/loss")
    until(lambda: "train/loss" in opened.find_element(By.ID, "curves").text)
    opened.find_element(By.CSS_SELECTOR, "input[value=tokens]").click()
    until(lambda: "tokens trained on" in opened.find_element(By.ID, "curves").text)
    assert Select(opened.find_element(By.ID, "map-name")).first_selected_option.text == "act.rms/*.mlp"


@needs_browser
def test_the_table_sorts_by_a_column_up_and_down(opened):
    table = opened.find_element(By.CSS_SELECTOR, "table.sortable")
    heads = table.find_elements(By.CSS_SELECTOR, "th")
    column = [head.text for head in heads].index("val/full_loss")

    def values() -> list[float]:
        cells = table.find_elements(By.CSS_SELECTOR, f"tbody td:nth-child({column + 1})")
        return [float(re.match(r"[\d.]+", cell.text)[0]) for cell in cells]

    button = heads[column].find_element(By.TAG_NAME, "button")
    button.send_keys(Keys.ENTER)
    assert values() == sorted(values())
    assert heads[column].get_attribute("aria-sort") == "ascending"
    button.click()
    assert values() == sorted(values(), reverse=True)
    assert heads[column].get_attribute("aria-sort") == "descending"


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark_and_nothing_is_wider_than_a_phone(opened, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        script = "return document.documentElement.scrollWidth"
        until(lambda: opened.execute_script(script) <= 390)
        table = "const e = document.querySelector('.wide'); return e.scrollWidth <= e.clientWidth"
        assert opened.execute_script(table), "the first table has a scroll bar of its own"
        style = "const s = getComputedStyle(document.querySelector(arguments[0])); return s[arguments[1]]"
        text = opened.execute_script(style, "#curves .role-axis-label text", "fill")
        assert text == opened.execute_script(style, "body", "color")
        back = opened.execute_script(style, "body", "backgroundColor")
        dark, light = (back, text) if scheme == "dark" else (text, back)
        # WCAG 2, contrast, level AAA
        assert (luminance(light) + 0.05) / (luminance(dark) + 0.05) > 7
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def luminance(color: str) -> float:
    """Return the relative luminance as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_a_run_says_is_text_on_the_page_and_no_markup(tmp_path):
    runs = several(tmp_path, {"norm=none": [2.0]}, overrides=["wandb.tags=[</script><b>]"])
    text = page(build_report(runs))
    assert "&lt;/script&gt;&lt;b&gt;" in text
    assert "</script><b>" not in text


def test_the_page_of_a_fair_comparison_has_the_settings_of_each_arm():
    text = page(build_report(read(ROOT / "results/reference")))
    assert "at the baseline&#39;s settings" in text
    assert '<td class="number">0.00531</td>' in text  # the learning rate of norm=none


def test_every_file_of_a_report_is_there(report, tmp_path):
    lines = list(write_report(report, tmp_path))
    assert len(lines) == 3
    assert {file.name for file in tmp_path.iterdir()} == {
        *("index.html", "table.md", "table.csv", "runs.csv", "metrics.csv", "figures"),
    }
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 27
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    total = sum(len(values) for run in report.runs for _, values in run.metrics.values())
    assert len(rows) == 1 + total
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {"val-loss-against-step.svg", "learning-rates.svg", "map-act.rms-LL.mlp.svg"} <= names
    assert all(file.read_text().startswith("<svg") for file in (tmp_path / "figures").iterdir())


@pytest.mark.long
def test_fifty_runs_with_every_statistic_are_at_most_two_megabytes(tmp_path):
    sites = [
        f"{kind}.{name}/{b:02}.{site}"
        for kind, names in (("act", "abcdef"), ("grad", "ab"))
        for name in names
        for b in range(12)
        for site in ("attn", "mlp")
    ]
    noise = {
        step: {site: zlib.crc32(f"{step}{site}".encode()) % 10**6 / 7 for site in sites}
        for step in range(0, 1000, 10)
    }
    losses = {f"optim.weight_decay={0.01 * i}": [2.0] for i in range(50)}
    assert len(page(build_report(several(tmp_path, losses, curve=noise)))) < 2e6


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_many_long_names_leave_room_for_the_table_and_the_picture(browser, tmp_path, width):
    arm, decay = "norm=batchnorm_position placement=layernorm_scaling", "optim.weight_decay"
    losses = {"norm=layernorm": [2.0, 2.1]} | {f"{arm} {decay}=0.{n}": [2.2, 2.4] for n in range(2, 9)}
    runs = several(tmp_path / "runs", losses)
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_page(
            browser,
            tmp_path,
            build_report(runs, baseline={"norm": "layernorm", "placement": "pre", decay: "0.1"}),
        )
        table = "const e = document.querySelector('.wide'); return e.scrollWidth <= e.clientWidth"
        assert browser.execute_script(table), "the first table has a scroll bar of its own"
        page_width = browser.execute_script("return document.documentElement.scrollWidth")
        axis = browser.find_element(By.CSS_SELECTOR, "#glance .role-axis-domain line").rect["width"]
        assert 0.5 * width < axis < page_width <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
@needs_browser
def test_the_trials_of_each_arm_are_drawn(browser, tmp_path):
    runs = fair_runs(tmp_path / "a", "layernorm", NEAR, [2.0, 2.1, 2.2], worst=None)
    runs += fair_runs(tmp_path / "b", "none", FAR, [1.5, 1.6, 1.71])
    open_page(browser, tmp_path, build_report(runs))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#trials g.mark-symbol.role-mark path")) == 2 * 2
    assert {"chosen", "other", "diverged"} <= {*browser.find_element(By.ID, "trials").text.split()}


@pytest.mark.slow
@needs_browser
def test_two_crossed_factors_are_drawn_as_a_map(browser, tmp_path):
    cells = {
        f"norm={norm} placement={placement}": losses
        for norm in ("layernorm", "batchnorm")
        for placement, losses in (("pre", [2.0]), ("post", [None]))
    }
    open_page(browser, tmp_path, build_report(several(tmp_path / "runs", cells)))
    drawn = {word.strip(",") for word in browser.find_element(By.ID, "grid").text.split()}
    assert {"layernorm", "batchnorm", "pre", "post", "2.000", "leaks", "diverged"} <= drawn
    assert "null" not in drawn
