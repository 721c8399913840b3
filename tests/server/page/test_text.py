"""A document and a model that answers: SmolLM2 on the report in assets/demo. Makes the pictures of the page.

PAGE_PICTURES=1 writes docs/images/serve-*.png. The model is the one that `make model` fetches.
"""

import os
import pathlib
import re
import sys
import unittest

from selenium.webdriver.common.action_chains import ActionChains

from browser import ROOT, PageTest

sys.path.insert(0, str(ROOT / "scripts"))
import model  # noqa: E402

IMAGES = ROOT / "docs" / "images"
PICTURES = bool(os.environ.get("PAGE_PICTURES"))
REPORT = (ROOT / "assets" / "demo" / "lighthouse.txt").read_text()
FIRST = "What does the group recommend for the light on Tarn Skerry? Answer in one sentence."
SECOND = "What is the supply boat called?"


class TextTest(PageTest):
    settings = {"temperature": 0, "max_tokens": 96}
    flags = ("--compare", "--threads", "2")

    @classmethod
    def setUpClass(cls):
        if not pathlib.Path(model.home(), model.NAME).exists():
            raise unittest.SkipTest("SmolLM2 is not there; `make model` fetches it")
        super().setUpClass()

    def model(self):
        return "smollm2"

    def picture(self, name):
        if PICTURES:
            self.calm()
            self.driver.save_screenshot(str(IMAGES / f"serve-{name}.png"))

    def calm(self):
        """Two frames after the last group has faded."""
        self.script("""return new Promise((done) => setTimeout(() =>
            requestAnimationFrame(() => requestAnimationFrame(done)), 1000));""")

    def numbers(self, name):
        return [float(text.replace(",", "")) for text in re.findall(r"[\d.,]*\d", self.part(name).text)]

    def point_at(self, x, y):
        """At a place of the strip, in shares of its width and height; the text of the cell there."""
        canvas = self.part("strip")
        size = canvas.rect
        ActionChains(self.driver).move_to_element_with_offset(
            canvas, int((x - 0.5) * size["width"]), int((y - 0.5) * size["height"])).perform()
        self.wait(lambda: self.shown("strip-text") and self.part("strip-text").text not in ("", "…"), "text")
        return self.part("strip-text").text

    def document_read(self):
        self.drop("lighthouse.txt", REPORT)
        self.watch("progress-text")
        self.watch("cache-bytes")
        self.send(FIRST)

    def test_a_document_is_read_once_and_the_strip_shows_its_groups(self):
        self.document_read()
        self.wait(lambda: self.script("return document.getElementById('progress-bar').value") > 0.4 or self.replies()[0],
                  "progress")
        self.picture("light")
        self.finished()
        self.assertTrue(any(re.match(r"Reading [\d,]+ of 6,\d+ tokens, .* left", text)
                            for text in self.watched("progress-text")), self.watched("progress-text"))
        self.assertGreater(len(self.watched("cache-bytes")), 3)  # live
        small, dense = self.numbers("cache-bytes")
        self.assertRegex(self.part("cache-bytes").text, r"^\d+ MB instead of \d+ MB$")
        self.assertLess(small * 4, dense)
        self.ask(SECOND)
        self.assertGreater(len(self.replies()[1]), 10)
        self.wait(lambda: self.count("figure-cached") > 6000, "the document is in the cache")
        group = self.point_at(0.30, 0.35)
        self.assertIn("Condensed group", self.part("strip-title").text)
        self.assertIn(group.split(" ↵ ")[0][:30], REPORT)
        self.picture("document")
        self.media(prefers_color_scheme="dark")
        self.picture("dark")
        self.media(prefers_color_scheme="light")
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True})
        self.script("document.activeElement.blur(); scrollTo(0, 0)")
        self.assertLessEqual(self.script("return document.documentElement.scrollWidth"), 360)
        self.picture("narrow")

    def test_dense_beside_it_reads_the_same_document(self):
        self.part("compare").click()
        self.document_read()
        self.finished()
        self.ask(SECOND)
        texts = self.script("return [...document.querySelectorAll('.column .text')].map(e => e.textContent)")
        self.assertEqual(len(texts), 4)
        self.assertTrue(all(len(text) > 10 for text in texts), texts)
        self.picture("compare")
