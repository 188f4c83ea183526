"""The HTML report in a real Chromium, the network off: it draws, follows clicks and keys, fits a phone.

Skipped where there is no playwright or no Chromium. `opened` fails a test on any message, error, dialog or request.
"""

from dataclasses import replace

import pytest

from tests.report.conftest import small_report

pytestmark = pytest.mark.extra
SHOWN = "#details .layout"


def test_draws_every_section(opened, report):
    page = opened(report)
    assert page.inner_text("h1") == report.title
    for section in ("choices", "time", "memory", "timeline", "curve", "accuracy", "assumed", "exports"):
        box = page.locator(f"#{section}").bounding_box()
        assert box is not None, section
        assert box["height"] > 80, section
    assert page.locator("#front .point").count() > 3
    assert page.locator("#curve-chart .point").count() > 3
    painted = page.evaluate(
        """() => { const c = document.querySelector("canvas"), g = c.getContext("2d");
        return new Set(new Uint32Array(g.getImageData(0, 0, c.width, c.height).data.buffer)).size; }"""
    )
    assert painted > 5


def test_click_selects_and_all_follows(opened, report):
    page = opened(report)
    best = page.inner_text(SHOWN)
    assert page.locator("#selected").is_hidden()
    others = page.locator("#front .point[aria-pressed=false]")
    name = others.first.get_attribute("aria-label")
    page.evaluate("() => document.querySelector('#front .point[aria-pressed=false]').dispatchEvent(new Event('click'))")
    assert page.inner_text(SHOWN) != best
    assert name.startswith(page.inner_text(SHOWN))
    assert page.locator("#selected").is_visible()
    for part in ("#time-bars", "#memory-bars"):
        assert "recommended" in page.inner_text(part)
    assert page.inner_text(SHOWN) in page.get_attribute("canvas", "aria-label")
    page.get_by_role("button", name="Back to the recommended").click()
    assert page.inner_text(SHOWN) == best
    assert page.locator("#selected").is_hidden()


def test_hover_names_a_layout(opened, report):
    page = opened(report)
    page.locator("#front .point").last.hover()
    assert "per step" in page.inner_text("#tip")
    assert page.inner_text("#tip").splitlines()[0] == page.inner_text(SHOWN)
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()


def test_keyboard_alone(opened, report):
    page = opened(report)
    best = page.inner_text(SHOWN)
    page.locator("#front .point[tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    after = page.inner_text(SHOWN)
    assert after != best
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.keyboard.press("ArrowRight")
    assert page.inner_text(SHOWN) == best
    page.locator("#choices summary").focus()
    page.keyboard.press("Enter")
    page.locator("#front-table button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.inner_text(SHOWN) == page.locator("#front-table button").nth(1).inner_text()


def test_table_holds_every_layout(opened, report):
    page = opened(report)
    page.click("#choices summary")
    names = page.locator("#front-table td button").all_inner_texts()
    assert len(names) == len(set(names)) >= 4


def test_timeline_zooms_and_pans(opened, report):
    page = opened(report)
    picture = "() => document.querySelector('canvas').toDataURL()"
    whole = page.evaluate(picture)
    page.get_by_role("button", name="Zoom in").click()
    zoomed = page.evaluate(picture)
    page.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    panned = page.evaluate(picture)
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 800, box["y"] + 40)
    page.mouse.up()
    dragged = page.evaluate(picture)
    assert len({whole, zoomed, panned, dragged}) == 4
    page.keyboard.press("0")
    assert page.evaluate(picture) == whole
    page.mouse.move(box["x"] + 500, box["y"] + 40)
    assert page.inner_text("#tip").startswith("rank 0: ")


def test_other_exports_open_and_save(opened, report):
    page = opened(report)
    assert "dp" in page.inner_text("#export-0")
    page.get_by_role("tab", name="Other").click()
    assert page.locator("#export-0").is_hidden()
    assert "not all is said" in page.inner_text("#export-1")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#export-2") == "it has no pipeline"
    page.keyboard.press("ArrowLeft")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save other.sh").click()
    assert download.value.suggested_filename == "other.sh"
    assert download.value.path().read_text() == "run me\n"


@pytest.mark.parametrize("width", [390, 768])
def test_nothing_is_wider_than_the_screen(opened, report, width):
    page = opened(report, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CONTRAST = """() => {
  const channels = (c) => c.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => { const [r, g, b] = channels(c).map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (n) => {
    for (; n; n = n.parentElement) {
      const c = getComputedStyle(n).backgroundColor;
      if (!/, 0\\)$/.test(c)) return c;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = "p, li, dt, dd, td, th, h1, h2, h3, button, summary, .name, .value, .more, .tag, .legend span";
  let worst = [99, ""];
  for (const n of document.querySelectorAll(texts)) {
    if (!n.textContent.trim() || !n.offsetParent) continue;
    const [low, high] = [light(getComputedStyle(n).color), light(behind(n))].sort((x, y) => x - y);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < worst[0]) worst = [ratio, n.className + ": " + n.textContent.slice(0, 40)];
  }
  return worst;
}"""
"""The least contrast of any text with what is behind it (WCAG 2.1, 1.4.3: at least 4.5), and where."""


def test_light_and_dark_have_enough_contrast(opened, report):
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = opened(report, color_scheme=scheme)
        worst, where = page.evaluate(CONTRAST)
        assert worst >= 4.5, f"{scheme}: {where}"
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2


def test_hostile_names_stay_text(opened, hostile):
    page = opened(hostile)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert "<img src=x" in page.inner_text("h1")
    assert "<img src=x" in page.inner_text("#asked")
    assert "<img src=x" in page.inner_text("#exports")


def test_says_so_where_nothing_fits(opened, nothing_fits):
    page = opened(replace(nothing_fits, curve=None))
    assert "NOTHING FITS" in page.inner_text("#answer h2").upper()
    assert page.locator("#curve").is_hidden()
    assert "Does not fit" in page.inner_text("#details")


def test_every_control_has_a_name(opened, report):
    page = opened(report)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, [role=button], [role=tab], canvas, svg[role], .point")]
        .filter((n) => !(n.getAttribute("aria-label") || n.textContent.trim())).map((n) => n.outerHTML)"""
    )
    assert nameless == []


def test_paper_shows_no_controls(opened, report):
    page = opened(report)
    page.emulate_media(media="print")
    for hidden in ("#timeline .buttons", "#exports .buttons", "#selected", "#tip"):
        assert not page.locator(hidden).first.is_visible(), hidden
    for shown in ("#answer", "#front svg", "canvas", "#export-0"):
        assert page.locator(shown).first.is_visible(), shown


def test_the_timeline_opens_on_the_first_and_last_micro_batches(opened, report):
    page = opened(report)
    page.wait_for_selector("text=Drawn are the first and the last micro-batches")
    short = page.evaluate("document.querySelector('canvas').toDataURL()")
    page.get_by_role("button", name="Show the whole step").click()
    assert page.evaluate("document.querySelector('canvas').toDataURL()") != short
    assert page.locator("text=Drawn are the first").count() == 0


def test_no_picture_where_there_is_no_pipeline(opened):
    page = opened(replace(small_report(pp=[1], tp=[2]), curve=None))
    page.wait_for_selector("text=No pipeline: every GPU does the same.")
    assert not page.locator("canvas").is_visible()


def test_it_answers_why_part_by_part(opened, asked_why):
    page = opened(asked_why)
    assert "Why not tp 4, recompute full?" in page.inner_text("#why")
    assert "recomputed forward" in page.inner_text("#why")
    assert "activations" in page.inner_text("#why")
