"""What the tests of the page share: a Chromium, a server, and waiting for what a user would see.

run.sh runs them all. The pictures docs/images/serve-*.png are made where PAGE_PICTURES is set.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import time
import unittest

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from mock import MockServer

IMAGES = pathlib.Path(__file__).resolve().parents[3] / "docs" / "images"
PICTURES = bool(os.environ.get("PAGE_PICTURES"))
DOCUMENT = "# The lighthouse\n\n" + "\n\n".join(
    f"Entry {day}. The lamp was lit at dusk, the wind stood in the west, and {day * 7} ships went by."
    for day in range(1, 331))


def driver_make():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900",
                 "--force-device-scale-factor=1"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


class PageTest(unittest.TestCase):
    """A fresh server and a fresh profile's storage for each test; no console error unless a test allows it."""

    server_options = {}
    log_allowed = ()  # substrings of console entries a test brings about on purpose

    @classmethod
    def setUpClass(cls):
        cls.driver = driver_make()
        cls.addClassCleanup(cls.driver.quit)

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.server = MockServer(**{"sessions": self.folder, **self.server_options}).start()
        self.addCleanup(self.server_stop)
        self.addCleanup(self.driver.get, "about:blank")  # else the page asks a server that is gone
        self.log_allowed = ()
        self.driver.get_log("browser")
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": (
            "window.violations = []; addEventListener('securitypolicyviolation',"
            " (event) => violations.push(event.violatedDirective + ' ' + event.blockedURI));")})
        self.open()

    def server_stop(self):
        with contextlib.suppress(OSError):
            self.server.stop()

    def tearDown(self):
        entries = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        wrong = [entry["message"] for entry in entries
                 if not any(allowed in entry["message"] for allowed in self.log_allowed)]
        self.assertEqual(wrong, [], "console")
        self.assertEqual(self.driver.execute_script("return window.violations ?? []"), [], "CSP")
        self.assertEqual(self.server.unknown, [], "routes")
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    # --- reading the page ---
    def open(self, ready=True):
        self.driver.get(self.server.address)
        if ready:
            self.ready()

    def ready(self):
        self.wait(lambda: self.script("return document.body?.dataset.ready === 'true'"), "ready")

    def wait(self, condition, what, seconds=15):
        try:
            WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())
        except TimeoutException:
            shown = self.script("return document.body.innerText")
            log = [entry["message"] for entry in self.driver.get_log("browser")]
            raise AssertionError(f"{what}: not within {seconds} s; page:\n{shown}\nconsole: {log}") from None

    def part(self, name):
        return self.driver.find_element(By.ID, name)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def text(self, selector):
        return self.script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent).join('|')",
                           selector)

    def replies(self):
        return self.script("return [...document.querySelectorAll('.message.assistant .column:not(.column + .column) .text')]"
                           ".map(e => e.textContent)")

    def buttons(self):
        return self.script("return [...document.querySelectorAll('button')].filter(e => e.offsetParent)"
                           ".map(e => e.textContent)")

    def click(self, selector, index=0, label=None):
        """The list of sessions is made anew after every reply; an element may be replaced before the click."""
        def try_click():
            try:
                found = [one for one in self.all(selector) if label is None or one.text == label]
                found = [one for one in found if one.is_displayed()]
                if len(found) <= index:
                    return False
                found[index].click()
                return True
            except StaleElementReferenceException:
                return False
        self.wait(try_click, f"click {label or selector}")

    def press_button(self, label, within=""):
        self.click(f"{within} button".strip(), label=label)

    # --- using it ---
    def send(self, question):
        self.part("question").send_keys(question + Keys.ENTER)

    def finished(self, seconds=15):
        self.wait(lambda: not self.part("stop").is_displayed() and self.part("send").is_enabled(), "finished", seconds)

    def ask(self, question):
        self.send(question)
        self.wait(lambda: self.part("stop").is_displayed() or self.replies(), "begun")
        self.finished()

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def drop(self, name, text):
        self.script("""
            const data = new DataTransfer();
            data.items.add(new File([arguments[1]], arguments[0]));
            for (const type of ['dragover', 'drop'])
              document.body.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
            """, name, text)
        self.wait(lambda: self.part("attached").is_displayed() or self.part("notice").text, "document")

    def chats(self):
        return [body for method, path, body in self.server.requests if path == "/v1/chat/completions"]

    def narrow(self, width=360, height=740):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": True})

    def media(self, **features):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()]})

    def picture(self, name, settle=1.0):
        """After `settle` seconds newly condensed groups have faded."""
        time.sleep(settle)
        self.driver.save_screenshot(str(IMAGES / f"serve-{name}.png"))

    def forget(self):
        """As in another browser: no conversation is known."""
        self.script("""return new Promise((done) => {
            const request = indexedDB.open('lca');
            request.onsuccess = () => {
              const change = request.result.transaction('conversations', 'readwrite');
              change.objectStore('conversations').clear();
              change.oncomplete = done;
            };});""")

    def storage(self):
        return json.loads(self.script("return JSON.stringify({...localStorage})"))
