"""What it looks like and how it is reached: widths, colours, accessibility, keyboard."""

import pathlib

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import DOCUMENT, PageTest
from test_chat import stream_text

CODE = ("Two lines are **enough**:\n\n```sh\nlca serve smollm2 --sessions talks --compare --port 8080 --context 32768 "
        "--api-key-file key.txt\n```\n\n- one\n- two\n")


class LookTest(PageTest):
    flags = ("--compare",)

    def fill(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.ask("How many ships went by?")
        self.part("compare").click()
        self.ask("Which things follow from it?")
        self.fault("/v1/chat", 200, stream_text(CODE))
        self.ask("Show me code with a long line")
        self.faults_end()
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "summary")

    def sideways(self):
        return self.script("return [document.documentElement.scrollWidth, innerWidth]")

    @pytest.mark.short
    def test_at_360_pixels_nothing_scrolls_sideways(self):
        self.narrow()
        self.open()
        self.assertLessEqual(self.sideways()[0], 360)
        self.fill()
        wide, inner = self.sideways()
        self.assertLessEqual(wide, 360)
        self.assertEqual(inner, 360)
        beyond = self.script("""return [...document.querySelectorAll('body *')].filter((e) =>
            !e.closest('pre, .hidden, .skip, dialog') && e.getBoundingClientRect().right > 360.5).map((e) => e.outerHTML.slice(0, 80))""")
        self.assertEqual(beyond, [])
        self.script("scrollTo(0, 0)")
        self.part("sessions-toggle").click()
        self.assertTrue(self.shown("session-new"))
        self.assertLessEqual(self.sideways()[0], 360)
        self.part("session-new").click()
        self.wait(lambda: not self.shown("session-new"), "closed")

    CONTRAST = """
        const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((c) => {
            c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
          return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
            if (!/, 0\\)$|transparent/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
        return [...document.querySelectorAll('body *')].filter((e) => e.offsetParent && !e.disabled &&
            [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
          const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
          return [(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 90)]; }).filter(([ratio]) => ratio < 4.5);"""

    @pytest.mark.short
    def test_light_and_dark_have_contrast(self):
        self.fill()
        backs = {}
        for scheme in ("light", "dark"):
            self.media(prefers_color_scheme=scheme)
            self.assertEqual(self.script(self.CONTRAST), [], scheme)
            backs[scheme] = self.script("return getComputedStyle(document.body).backgroundColor")
        self.assertEqual(backs, {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"})

    def test_the_strip_is_drawn_anew_in_dark(self):
        self.fill()
        self.log_allowed = ("willReadFrequently",)  # the test reads, the page does not
        for scheme in ("light", "dark"):
            self.media(prefers_color_scheme=scheme)
            # Newly condensed groups fade first.
            self.wait(lambda: self.script("""
                const wanted = getComputedStyle(document.body).getPropertyValue('--group').trim();
                const canvas = document.getElementById('strip');
                const {data} = canvas.getContext('2d').getImageData(0, 4, canvas.width, 1);
                const hex = (at) => '#' + [...data.slice(at, at + 3)].map((c) => c.toString(16).padStart(2, '0')).join('');
                return Array.from({length: canvas.width}, (_, x) => hex(4 * x)).includes(wanted);"""),
                      f"a group in its colour, {scheme}")

    @pytest.mark.short
    def test_names_of_controls_begin_with_what_they_show(self):
        self.fill()
        wrong = self.script("""return [...document.querySelectorAll('[aria-label]')].filter((e) => {
            const shown = e.matches('button') ? e.textContent.trim() : '';
            return /[a-z]/i.test(shown) && !e.getAttribute('aria-label').startsWith(shown);
          }).map((e) => e.outerHTML);""")
        self.assertEqual(wrong, [])

    @pytest.mark.short
    def test_the_strip_is_a_slider_only_while_it_has_cells(self):
        def strip():
            return [self.part("strip").get_dom_attribute(name) for name in ("role", "tabindex", "aria-valuenow")]

        self.assertEqual(strip(), ["img", None, None])
        self.ask("First question")
        self.wait(lambda: strip() == ["slider", "0", "1"], "a slider")
        self.part("session-new").click()
        self.wait(lambda: strip() == ["img", None, None], "a picture again")

    def test_axe_finds_nothing(self):
        try:
            import axe_core_python
        except ImportError:
            self.skipTest("axe-core-python is not installed")
        self.log_allowed = ("willReadFrequently",)  # axe draws letters, to know icons from words
        self.script(next(pathlib.Path(axe_core_python.__file__).parent.glob("**/axe.min.js")).read_text())

        def check(what):
            found = self.script("""
                const rules = {'label-content-name-mismatch': {enabled: true}};  // off by default
                return axe.run({rules}).then((result) => result.violations.map((one) =>
                    [one.id, one.nodes.map((node) => node.html.slice(0, 120))]));""")
            self.assertEqual(found, [], what)

        check("empty")
        self.fill()
        self.script("document.getElementById('settings').open = true")
        check("wide")
        for dialog in ("key-dialog", "delete-dialog"):
            self.script("document.getElementById(arguments[0]).showModal()", dialog)
            check(dialog)
            self.script("document.getElementById(arguments[0]).close()", dialog)
        self.narrow()
        self.script("scrollTo(0, 0)")
        self.click("#sessions-toggle")
        check("narrow")


class KeyboardTest(PageTest):
    def tab_to(self, condition, back=False, limit=60):
        for _ in range(limit):
            if back:
                ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
            else:
                self.press(Keys.TAB)
            active = self.driver.switch_to.active_element
            if condition(active):
                return active
        self.fail("not reached by Tab")

    @pytest.mark.short
    def test_everything_is_done_without_a_pointer(self):
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "question")
        self.tab_to(lambda one: one.text == "Skip to the question", back=True)
        self.press(Keys.ENTER)
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "question")
        self.press("First question", Keys.ENTER)
        self.written()
        self.finished()
        self.longest(None)
        self.press("A long", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "one", Keys.ENTER)
        self.written(1)
        self.press(Keys.ESCAPE)
        self.finished()
        self.assertIn("Stopped.", self.text(".message.assistant .foot"))
        self.longest(1500)  # beyond the window: there are groups
        self.tab_to(lambda one: one.text == "Continue", back=True)
        self.press(Keys.ENTER)
        self.wait(lambda: self.shown("stop"), "running")
        self.finished()
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "cache")
        strip = self.tab_to(lambda one: one.get_attribute("id") == "strip", back=True)
        self.press(Keys.HOME, Keys.ARROW_RIGHT)
        self.wait(lambda: "Condensed group" in strip.get_attribute("aria-valuetext"), "group")
        self.assertNotEqual(self.script("return getComputedStyle(document.activeElement).outlineStyle"), "none")
        self.tab_to(lambda one: one.get_attribute("aria-label") == "Fork here: after this reply")
        self.press(Keys.ENTER)
        self.wait(lambda: len(self.replies()) == 1, "fork")
        self.wait(lambda: self.driver.switch_to.active_element.get_attribute("id") == "question", "focus")
        self.tab_to(lambda one: "session-delete" in (one.get_attribute("class") or ""), back=True)
        self.press(Keys.ENTER)
        self.tab_to(lambda one: one.text == "Keep")
        self.press(Keys.ESCAPE)
        self.wait(lambda: not self.part("delete-dialog").is_displayed(), "closed")
        self.assertIn("session-delete", self.driver.switch_to.active_element.get_attribute("class"))
