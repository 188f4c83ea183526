"""What a user does on the page of `planner serve`, in a real Chromium: wide with a mouse, narrow by keyboard alone.

With SCREENS=all every task at both widths, in light and dark, by mouse and by keyboard. Skipped where there is no
playwright, no Chromium or no server. A message, an error or a request elsewhere fails a test.
"""

import itertools
import json
import os
import re

import pytest

pytestmark = [pytest.mark.extra, pytest.mark.slow]
ASK = "model=llama-13b&cluster=dgx-a100-80gb&gpus=16&batch=128&tp=2%2C4&pp=2%2C4"
EVERY = itertools.product((1280, 390), ("light", "dark"), ("mouse", "keyboard"))
USUAL = [(1280, "light", "mouse"), (390, "dark", "keyboard")]
SCREENS = [
    pytest.param(one, id="-".join(map(str, one))) for one in (EVERY if os.environ.get("SCREENS") == "all" else USUAL)
]
PICK = "#answer-layout"


@pytest.fixture(params=SCREENS)
def screen(request):
    return request.param


@pytest.fixture
def opened(browser, server, screen):
    """Opens the page at an address; any message, error, dialog or request to another address fails the test."""
    faults, contexts = [], []

    def show(address=ASK):
        width, scheme, hands = screen
        context = browser.new_context(viewport={"width": width, "height": 850}, color_scheme=scheme)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.by_keyboard = hands == "keyboard"
        page.on("console", lambda message: faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: None if r.url.startswith((f"http://{server}/", "data:", "blob:"))
                else faults.append(r.url))  # fmt: skip
        page.goto(f"http://{server}/#{address}")
        settled(page)
        return page

    yield show
    for context in contexts:
        context.close()
    assert faults == []


def settled(page):
    """Waits until the newest question is answered."""
    page.wait_for_function("() => !document.getElementById('main').hasAttribute('aria-busy')")
    assert re.search("Answered in|allowed", page.inner_text("#state"))


def press(page, where):
    """A user presses a button, a tab or a summary: clicks it, or goes there by Tab and takes Enter."""
    box = page.locator(where).first if isinstance(where, str) else where
    if not page.by_keyboard:
        box.click()
        return
    box.wait_for(state="visible")
    go_to(page, box)
    page.keyboard.press("Enter")


def go_to(page, box):
    """Tab until something has the focus; a row of tabs is one stop, and arrows go on in it."""
    is_tab = box.evaluate("(n) => n.getAttribute('role') === 'tab'")
    for _ in range(250):
        if box.evaluate("(n) => n === document.activeElement"):
            return
        among = is_tab and page.evaluate("() => document.activeElement.getAttribute('role') === 'tab'")
        page.keyboard.press("ArrowRight" if among else "Tab")
    raise AssertionError(f"{box} is not reached")


def enter(page, where, value):
    """A user writes into a field, or picks of a list, where it is shown first if it is folded away."""
    box = page.locator(where)
    folded = box.locator("xpath=ancestor::details[not(@open)]")
    while folded.count():
        press(page, folded.first.locator("xpath=summary"))
    listed = box.evaluate("(n) => n.tagName") == "SELECT"
    if not page.by_keyboard:
        box.select_option(value) if listed else box.fill(value)
        return
    go_to(page, box)
    if not listed:
        page.keyboard.press("Control+a")
        page.keyboard.press("Delete")
        page.keyboard.insert_text(value)
        return
    page.keyboard.press("Home")
    for _ in range(box.evaluate("(n) => n.options.length")):
        if box.input_value() == value:
            return
        page.keyboard.press("ArrowDown")
    raise AssertionError(f"{where} has no {value}")


def paste(page, text, until):
    """A user pastes a configuration as my layout, and waits for what it gives; its fold opens by itself."""
    enter(page, "#pin-text", text)
    press(page, "text=Take its layout")
    page.wait_for_selector(until)


def change(page, field, value):
    """A user sets a field, and the answer comes."""
    enter(page, f"[id='field-{field}']", value)
    settled(page)


def choose(page, name, mode, value):
    """A user says of a choice that it may be only some values, or not some."""
    enter(page, f"#mode-{name}", mode)
    change(page, name, value)


def test_more_gpus_give_another_pick(opened):
    page = opened()
    before, title = page.inner_text(PICK), page.inner_text("h1")
    change(page, "gpus", "32")
    assert page.inner_text(PICK) != before
    assert "on 32 GPUs" in page.inner_text("h1") != title
    assert "gpus=32" in page.url
    assert "32 GPUs" in page.inner_text("#figures")


def test_a_batch_of_tokens(opened):
    page = opened()
    change(page, "batch_in", "tokens")
    assert "allowed" in page.inner_text("#state")
    change(page, "batch", "1M")
    assert "batch 512 x 2048" in page.inner_text("h1")


def test_memory_is_capped(opened):
    page = opened()
    change(page, "max_memory_gib", "30")
    used = re.search(r"([\d.]+)\sGiB", page.inner_text("#figures").split("Memory per GPU")[1]).group(1)
    assert float(used) <= 30
    change(page, "max_memory_gib", "1")
    assert page.inner_text("#answer-title").upper() == "NOTHING FITS IN MEMORY"


def test_a_choice_is_fixed_and_another_forbidden(opened):
    page = opened()
    assert "tp 2" in page.inner_text(PICK)
    choose(page, "tp", "only", "4")
    assert "tp 4" in page.inner_text(PICK)
    choose(page, "pp", "not", "2")
    assert "pp 2" not in page.inner_text(PICK)
    assert "--exclude pp=2" in page.inner_text("#same-body")


def test_the_least_memory_is_an_objective(opened):
    page = opened()
    before = page.inner_text(PICK)
    change(page, "objective", "memory")
    assert page.inner_text(PICK) != before
    assert "objective='memory'" in page.inner_text("#same-body")


def test_what_is_wrong_is_said_and_mended(opened):
    page = opened()
    change(page, "seq_len", "long")
    assert "seq_len is 'long'" in page.inner_text("#state")
    change(page, "seq_len", "2k")
    assert page.inner_text("#state").startswith("Run dp")


def test_a_pasted_config_takes_the_presets_place(opened):
    config = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 5504, "vocab_size": 32000, "max_position_embeddings": 2048,
    }  # fmt: skip
    page = opened()
    change(page, "config", json.dumps(config))
    assert page.inner_text("h1").startswith("pasted-model on 16 GPUs")
    assert "Save the pasted configuration as config.json" in page.inner_text("#same-body")


def test_a_layout_is_pinned_by_hand_and_stays(opened):
    page = opened()
    enter(page, "#pin-tp", "4")
    enter(page, "#pin-recompute", "full")
    press(page, "text=Pin this layout")
    page.wait_for_selector("#pin-answer .verdict")
    assert page.inner_text("#pin-answer h3") == "Why not tp 4, recompute full?"
    assert "recomputed forward" in page.inner_text("#pin-answer")
    assert "activations" in page.inner_text("#pin-answer")
    before = page.inner_text("#pin-answer .verdict")
    change(page, "gpus", "32")
    page.wait_for_function("(t) => document.querySelector('#pin-answer .verdict').textContent !== t", arg=before)
    assert page.inner_text("#pin-answer h3") == "Why not tp 4, recompute full?"
    press(page, "text=Unpin")
    assert page.inner_text("#pin-answer") == ""


def test_the_layout_shown_is_pinned(opened):
    page = opened()
    press(page, "text=Pin the layout shown")
    page.wait_for_selector("#pin-answer .verdict")
    assert page.inner_text("#pin-answer .verdict") == "The best is like that."


def test_a_layout_is_taken_from_megatrons_arguments(opened):
    page = opened()
    sizes = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 2 --odd-thing 3 "
    rest = "--global-batch-size 128 --recompute-granularity full --recompute-method uniform"
    paste(page, sizes + rest, "#pin-answer .verdict")
    assert page.input_value("#pin-tp") == "4"
    assert "recompute full" in page.inner_text("#pin-answer h3")
    assert "--odd-thing" in page.inner_text("#pin-form")


def test_a_layout_is_taken_from_deepspeeds_json(opened):
    page = opened(ASK.split("&tp")[0])
    said = {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 9}, "odd": 1}
    paste(page, json.dumps(said), "#pin-form .fault")
    assert page.inner_text("#pin-form .fault") == (
        "ds_config.json: field zero_optimization.stage is 9; allowed: a whole number from 0 to 3"
    )
    paste(page, json.dumps(said | {"zero_optimization": {"stage": 2}}), "#pin-answer .verdict")
    assert [page.input_value(f"#pin-{name}") for name in ("dp", "tp", "zero", "micro_batch")] == ["16", "1", "2", "2"]
    assert page.inner_text("#pin-form .plain.note") == "not understood: odd"
    assert "zero 2" in page.inner_text("#pin-answer h3")


def test_a_layout_is_taken_from_torchtitans_toml(opened):
    page = opened(ASK.split("&tp")[0])
    said = "[parallelism]\ntensor_parallel_degree = {}\nenable_async_tensor_parallel = true\n[training]\nsteps = 9\n"
    paste(page, said.format("true"), "#pin-form .fault")
    assert page.inner_text("#pin-form .fault") == (
        "torchtitan.toml: field parallelism.tensor_parallel_degree is True; allowed: a whole number from 1 to 10000000"
    )
    paste(page, said.format(4) + '[activation_checkpoint]\nmode = "full"\n', "#pin-answer .verdict")
    assert [page.input_value(f"#pin-{name}") for name in ("dp", "tp", "zero", "micro_batch")] == ["4", "4", "3", "8"]
    assert page.inner_text("#pin-form .plain.note") == "not understood: parallelism.enable_async_tensor_parallel"
    assert "recompute full" in page.inner_text("#pin-answer h3")


def test_an_illegal_pin_says_the_rule(opened):
    page = opened(ASK.split("&tp")[0])
    enter(page, "#pin-tp", "3")
    press(page, "text=Pin this layout")
    page.wait_for_selector("#pin-answer .verdict")
    assert "Not legal: tp 3 doesn't divide 16 GPUs" in page.inner_text("#pin-answer")


def test_a_link_is_a_plan(opened):
    page = opened()
    enter(page, "#pin-tp", "4")
    press(page, "text=Pin this layout")
    page.wait_for_selector("#pin-answer .verdict")
    change(page, "max_memory_gib", "60")
    page.wait_for_selector("#pin-answer .verdict")
    again = opened(page.url.split("#")[1])
    again.wait_for_selector("#pin-answer .verdict")
    for place in (PICK, "#pin-answer", "h1"):
        assert again.inner_text(place) == page.inner_text(place)
    assert again.input_value("#field-max_memory_gib") == "60"
    assert again.input_value("#pin-tp") == "4"


def test_another_address_is_another_question(opened):
    page = opened()
    page.evaluate(
        "(a) => { document.getElementById('state').textContent = ''; location.hash = a; }", ASK.replace("16", "32")
    )
    settled(page)
    assert "on 32 GPUs" in page.inner_text("h1")
    press(page, "text=Start anew")
    page.wait_for_function("() => document.querySelector('h1').textContent.startsWith('llama2-70b on 256')")


def test_the_front_and_the_fastest_are_selected(opened):
    page = opened("model=llama-13b&cluster=dgx-a100-80gb&gpus=16&batch=128")
    press(page, "#choices summary")
    press(page, page.locator("#front-table button").last)
    assert page.inner_text("#details .layout") == page.locator("#front-table button").last.inner_text()
    assert page.locator("#selected").is_visible()
    press(page, "text=Back to the recommended")
    ends = page.locator("#reasons button.link")
    if ends.count():
        press(page, ends.first)
        assert page.inner_text("#details .layout") == ends.first.inner_text()


def test_reasons_come_after_the_answer(opened):
    page = opened()
    page.wait_for_function("() => document.getElementById('reasons').textContent.includes('instead of')")


def test_the_timeline_is_drawn_when_asked_for(opened):
    page = opened()
    assert page.locator("canvas").count() == 0
    press(page, "text=Draw the timeline")
    page.wait_for_selector("canvas", state="visible")
    page.wait_for_selector("text=Drawn are the first and the last micro-batches")
    press(page, page.get_by_role("button", name="Show the whole step"))
    assert page.locator("text=Drawn are the first and the last micro-batches").count() == 0


def test_days_and_dollars(opened):
    page = opened()
    change(page, "tokens", "1T")
    assert "1T tokens on 16 GPUs" in page.inner_text("#curve-body")


def test_exports_and_the_report_are_saved(opened):
    page = opened()
    press(page, page.get_by_role("tab", name="Megatron-LM"))
    with page.expect_download() as download:
        press(page, page.get_by_role("button", name="Save megatron.sh"))
    assert "--tensor-model-parallel-size" in download.value.path().read_text()
    with page.expect_download() as download:
        press(page, "text=Save the report")
    text = download.value.path().read_text()
    assert text.startswith("<!doctype html>")
    assert page.inner_text(PICK) in text


def test_a_figure_that_leaves_the_profile_is_marked(opened):
    page = opened(f"{ASK}&tokens=1T")
    memory = page.locator("[id='says-accelerator.memory_gib']")
    assert memory.text_content() == "profile: 79.25"
    assert "not known" in page.inner_text("#curve-body")
    change(page, "accelerator.memory_gib", "60")
    assert memory.inner_text() == "changed; profile: 79.25"
    assert "accelerator.memory_gib=60" in page.inner_text("h1")
    change(page, "accelerator.price_usd_per_hour", "2")
    assert "USD" in page.inner_text("#curve-body")
    change(page, "nics_per_node", "0")
    assert "'nics_per_node' is 0.0; allowed: a value from 1" in page.inner_text("#state")


def test_curves_along_gpus_and_bandwidth(opened):
    page = opened()
    press(page, "#along-gpus")
    page.wait_for_selector("#along svg")
    rows = page.locator("#along tbody tr")
    assert [rows.nth(i).locator("td").first.inner_text() for i in range(7)] == ["2", "4", "8", "16", "32", "64", "128"]
    assert rows.nth(3).locator("td").last.inner_text() == page.inner_text(PICK)
    press(page, "#along-bandwidth")
    page.wait_for_selector("#along th:has-text('Gb/s per NIC')")
    assert page.locator("#along svg .point").count() == 7


def test_nothing_is_wider_than_the_screen(opened, screen):
    page = opened()
    press(page, "#along-batch")
    page.wait_for_selector("#along table")
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= screen[0]


def test_keyboard_alone(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "answer"
    assert page.url.endswith(ASK)

    def tab_to(id_, key="Tab"):
        for _ in range(120):
            if page.evaluate("document.activeElement.id") == id_:
                return
            page.keyboard.press(key)
        raise AssertionError(f"{id_} is not reached")

    tab_to("field-gpus", "Shift+Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("32")
    settled(page)
    assert "on 32 GPUs" in page.inner_text("h1")
    tab_to("pin-tp")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    page.wait_for_selector("#pin-answer .verdict")
    assert page.inner_text("#pin-answer h3") == "Why not tp 4?"


def test_axe_finds_nothing(opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install '.[browser]'")
    page = opened(f"{ASK}&pin=tp%3D4")
    page.wait_for_selector("#pin-answer .verdict")
    press(page, "text=Draw the timeline")
    page.wait_for_selector("canvas", state="visible")
    press(page, "#along-gpus")
    page.wait_for_selector("#along svg")
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = axe.Axe().run(page).response["violations"]
    assert [(x["id"], [n["html"][:120] for n in x["nodes"]][:3]) for x in found] == []
