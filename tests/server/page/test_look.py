"""What it looks like and how it is reached: widths, colours, accessibility, keyboard."""

import pathlib
import time

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import DOCUMENT, PICTURES, PageTest


class LookTest(PageTest):
    server_options = {"compare": True, "rate": 400}

    def fill(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.ask("Show me code with a long line")
        self.part("compare").click()
        self.ask("Which things follow from it?")
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "summary")

    def sideways(self):
        return self.script("return [document.documentElement.scrollWidth, innerWidth]")

    def test_at_360_pixels_nothing_scrolls_sideways(self):
        self.narrow()
        self.open()
        self.fill()
        wide, inner = self.sideways()
        self.assertLessEqual(wide, 360)
        self.assertEqual(inner, 360)
        beyond = self.script("""return [...document.querySelectorAll('body *')].filter((e) =>
            !e.closest('pre, .hidden, .skip, dialog') && e.getBoundingClientRect().right > 360.5).map((e) => e.outerHTML.slice(0, 80))""")
        self.assertEqual(beyond, [])
        self.script("scrollTo(0, 0)")
        if PICTURES:
            self.picture("narrow")
        self.part("sessions-toggle").click()
        self.assertTrue(self.part("session-new").is_displayed())
        self.assertLessEqual(self.sideways()[0], 360)
        self.part("session-new").click()
        self.wait(lambda: not self.part("session-new").is_displayed(), "closed")

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

    def test_light_and_dark_have_contrast(self):
        self.fill()
        backs = {}
        for scheme in ("light", "dark"):
            self.media(prefers_color_scheme=scheme)
            self.assertEqual(self.script(self.CONTRAST), [], scheme)
            backs[scheme] = self.script("return getComputedStyle(document.body).backgroundColor")
            if PICTURES:
                ActionChains(self.driver).move_to_element(self.part("strip")).perform()
                self.picture(scheme)
        self.assertEqual(backs, {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"})

    def test_the_strip_is_drawn_anew_in_dark(self):
        self.fill()
        self.log_allowed = ("willReadFrequently",)  # the test reads, the page does not
        colours = []
        for scheme in ("light", "dark"):
            self.media(prefers_color_scheme=scheme)
            time.sleep(1.2)  # newly condensed groups have faded
            colours.append(tuple(self.script("""const c = document.getElementById('strip');
                return [...c.getContext('2d').getImageData(17, 3, 1, 1).data]""")))
        self.assertEqual(colours, [(0x2f, 0x6f, 0xb5, 255), (0x6a, 0xa9, 0xe9, 255)])

    def test_axe_finds_nothing(self):
        try:
            import axe_core_python
        except ImportError:
            self.skipTest("axe-core-python is not installed")
        source = next(pathlib.Path(axe_core_python.__file__).parent.glob("**/axe.min.js")).read_text()
        self.fill()
        self.script(source)

        def check(what):
            found = self.script("return axe.run().then((result) => result.violations.map((one) =>"
                                " [one.id, one.nodes.map((node) => node.html.slice(0, 120))]))")
            self.assertEqual(found, [], what)

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

    def test_everything_is_done_without_a_pointer(self):
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "question")
        self.tab_to(lambda one: one.text == "Skip to the question", back=True)
        self.press(Keys.ENTER)
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "question")
        self.press("First question", Keys.ENTER)
        self.wait(lambda: self.replies(), "reply")
        self.finished()
        self.press("A long", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "one", Keys.ENTER)
        self.wait(lambda: len(self.replies()) == 2 and "word5 " in self.replies()[1], "words")
        self.press(Keys.ESCAPE)
        self.finished()
        self.assertIn("Stopped.", self.text(".message.assistant .foot"))
        self.server.rate = 5000
        self.tab_to(lambda one: one.text == "Continue", back=True)
        self.press(Keys.ENTER)
        self.wait(lambda: "word399." in self.replies()[1], "the end")
        self.finished()
        strip = self.tab_to(lambda one: one.get_attribute("id") == "strip", back=True)
        self.press(Keys.HOME, Keys.ARROW_RIGHT)
        self.wait(lambda: "Condensed group 1" in strip.get_attribute("aria-valuetext"), "group")
        self.assertNotEqual(self.script("return getComputedStyle(document.activeElement).outlineStyle"), "none")
        self.tab_to(lambda one: one.get_attribute("aria-label") == "Fork after this reply")
        self.press(Keys.ENTER)
        self.wait(lambda: len(self.replies()) == 1, "fork")
        self.wait(lambda: self.driver.switch_to.active_element.get_attribute("id") == "question", "focus")
        self.tab_to(lambda one: "session-delete" in (one.get_attribute("class") or ""), back=True)
        self.press(Keys.ENTER)
        self.tab_to(lambda one: one.text == "Keep")
        self.press(Keys.ESCAPE)
        self.wait(lambda: not self.part("delete-dialog").is_displayed(), "closed")
        self.assertIn("session-delete", self.driver.switch_to.active_element.get_attribute("class"))
