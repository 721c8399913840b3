"""What the tests of the page share: `lca serve`, a Chromium, and waiting for what a user would see.

The server is the real program. On the tiny checkpoint a token is a byte, and a greedy reply is an endless row of
letters, so a reply runs until it is stopped or has its longest length. Faults that a server does not make on demand
are answers put in place of its own, in the browser (PageTest.fault).
"""

import contextlib
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import numpy
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "server" / "live"))
from serving import Serving  # noqa: E402
from tiny_checkpoints import SLOW, checkpoint_make, safetensors_bytes, safetensors_read  # noqa: E402

DRIVER = "/usr/bin/chromedriver"
PATIENCE = 120  # seconds, for states that must come; no test asks how fast
DOCUMENT = "# The lighthouse\n\n" + "\n\n".join(
    f"Entry {day}. The lamp was lit at dusk, the wind stood in the west, and {day * 7} ships went by."
    for day in range(1, 101))

# In every page before its own scripts: fresh storage with a user's settings, what violates the policy, what is sent,
# and answers put in place of the server's.
INJECTED = """
const [run, settings] = ARGUMENTS;
if (location.protocol === 'http:' && sessionStorage.getItem('test.run') !== run) {
  sessionStorage.clear();
  sessionStorage.setItem('test.run', run);
  if (localStorage.getItem('test.run') !== run) {  // a second tab has its own session storage only
    localStorage.clear();
    localStorage.setItem('test.run', run);
    localStorage.setItem('lca.settings', JSON.stringify(settings));
  }
}
window.violations = [];
addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI));
const kept = (name) => JSON.parse(sessionStorage.getItem(name) ?? '[]');
const fetch_real = window.fetch;
window.fetch = (resource, options = {}) => {
  if (options.method === 'POST') {
    const sent = {path: String(resource), body: JSON.parse(options.body)};
    sessionStorage.setItem('test.sent', JSON.stringify([...kept('test.sent'), sent]));
  }
  const faults = kept('test.faults');
  const fault = faults.find((one) => String(resource).startsWith(one.path));
  if (!fault) return fetch_real(resource, options);
  if (fault.once) sessionStorage.setItem('test.faults', JSON.stringify(faults.filter((one) => one !== fault)));
  return Promise.resolve(new Response(fault.body, {status: fault.status}));
};
"""


def browser_missing():
    """Why there is no browser to test with, or None."""
    missing = [name for name in ("chromium", DRIVER) if not shutil.which(name)]
    return f"{missing[0]} not found; scripts/setup.sh test installs it" if missing else None


def driver_make():
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1024",
                 "--force-device-scale-factor=1"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def checkpoint_of_letters(folder):
    """The tiny llama whose likeliest token is always a letter or a space: its greedy replies are plain and endless."""
    checkpoint_make(folder, "llama", context=65536, **SLOW)
    path = folder / "model.safetensors"
    tensors = {name: numpy.array(values) for name, values in safetensors_read(path).items()}
    head = tensors["lm_head.weight"]
    letters = numpy.array([row < 256 and (chr(row).islower() and row < 128 or chr(row) == " ")
                           for row in range(len(head))])
    head[~letters] = 0
    path.write_bytes(safetensors_bytes(tensors))
    return folder


class Shared:
    """One browser and one checkpoint for all tests of a process."""

    driver = folder = None

    @classmethod
    def get(cls):
        if cls.driver is None:
            cls.folder = tempfile.mkdtemp()
            cls.driver = driver_make()
        return cls.driver

    @classmethod
    def checkpoint(cls):
        path = pathlib.Path(cls.folder, "tiny")
        return path if path.exists() else checkpoint_of_letters(path)

    @classmethod
    def close(cls):
        if cls.driver is not None:
            cls.driver.quit()
            shutil.rmtree(cls.folder)
            cls.driver = None


class PageTest(unittest.TestCase):
    """A fresh server on a fresh port, so fresh storage, for each test; no console error unless a test allows it."""

    flags = ()
    sessions = True
    opens = True  # the page, before each test
    settings = {"temperature": 0, "max_tokens": 24}  # as a user would have set them

    @classmethod
    def setUpClass(cls):
        if browser_missing():
            raise unittest.SkipTest(browser_missing())
        cls.driver = Shared.get()

    def model(self):
        return Shared.checkpoint()

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.talks = self.folder / "talks"
        self.log_allowed = ()  # substrings of console entries a test brings about on purpose
        self.serve(*self.flags)
        self.addCleanup(self.driver.get, "about:blank")  # else the page asks a server that is gone
        self.driver.get_log("browser")
        if self.opens:
            self.open()

    def serve(self, *flags):
        kept = ("--sessions", self.talks) if self.sessions else ()
        self.server = Serving(self.model(), *kept, *flags, log=self.folder / "server.log").start()
        self.addCleanup(self.server_stop, self.server)
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": self.server.url, "storageTypes": "all"})
        self.inject()

    def inject(self):
        """Into every page that this tab opens from now on."""
        source = INJECTED.replace("ARGUMENTS", json.dumps([self.id(), self.settings]))
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        self.addCleanup(self.driver.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", added)

    @staticmethod
    def server_stop(server):
        if server.process.poll() is None:
            server.kill()

    def tearDown(self):
        entries = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        wrong = [entry["message"] for entry in entries
                 if not any(allowed in entry["message"] for allowed in self.log_allowed)]
        violations = self.script("return window.violations ?? []")
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertEqual(wrong, [], "console")
        self.assertEqual(violations, [], "CSP")

    # --- reading the page ---
    def open(self, ready=True):
        self.driver.get(self.server.url)
        if ready:
            self.ready()

    def reload(self):
        self.driver.refresh()
        self.ready()

    def ready(self):
        self.wait(lambda: self.script("return document.body?.dataset.ready === 'true'"), "ready")

    def wait(self, condition, what, seconds=PATIENCE):
        try:
            WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())
        except TimeoutException:
            shown = self.script("return document.body.innerText")
            log = [entry["message"] for entry in self.driver.get_log("browser")]
            raise AssertionError(f"{what}: not within {seconds} s; page:\n{shown}\nconsole: {log}") from None

    def part(self, name):
        return self.driver.find_element(By.ID, name)

    def shown(self, name):
        return self.part(name).is_displayed()

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

    def questions(self):
        return self.script("return [...document.querySelectorAll('.message.user .text')].map(e => e.textContent)")

    def buttons(self):
        return self.script("return [...document.querySelectorAll('button')].filter(e => e.offsetParent)"
                           ".map(e => e.textContent)")

    def count(self, name):
        """The number that an element shows; 0 where it shows none."""
        text = self.part(name).text.replace(",", "")
        return float(text) if text.replace(".", "").isdigit() else 0

    def session(self):
        return self.script("return location.hash").removeprefix("#")

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
        self.wait(lambda: self.questions() and self.questions()[-1] == question, "sent")

    def finished(self):
        self.wait(lambda: not self.shown("stop") and self.part("send").is_enabled(), "finished")

    def ask(self, question):
        self.send(question)
        self.finished()

    def written(self, index=0, least=5):
        """Waits until the stream has brought some letters of a reply."""
        self.wait(lambda: len(self.replies()) > index and len(self.replies()[index]) >= least, "letters")

    def longest(self, tokens):
        """The setting: the longest reply; None: none."""
        self.script("""const input = document.getElementById('max-tokens');
            input.value = arguments[0] ?? '';
            input.dispatchEvent(new Event('change', {bubbles: true}));""", tokens)

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def drop(self, name, text):
        self.script("""
            const data = new DataTransfer();
            data.items.add(new File([arguments[1]], arguments[0]));
            for (const type of ['dragover', 'drop'])
              document.body.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
            """, name, text)
        self.wait(lambda: self.shown("attached") or self.part("notice").text, "document")

    def watch(self, name, attribute=None):
        """Keeps every value that an element's text, or attribute, has from now on; for `watched`."""
        self.script("""
            const [name, attribute] = arguments;
            const element = document.getElementById(name);
            const seen = (window.watched ??= {})[name] = new Set();
            new MutationObserver(() => seen.add(attribute ? element.getAttribute(attribute) : element.textContent))
              .observe(element, {attributes: true, childList: true, characterData: true, subtree: true});""",
                    name, attribute)

    def watched(self, name):
        return self.script("return [...window.watched[arguments[0]]]", name)

    # --- what went to the server, and what came instead of its answers ---
    def sent(self, path):
        sent = json.loads(self.script("return sessionStorage.getItem('test.sent') ?? '[]'"))
        return [one["body"] for one in sent if one["path"].endswith(path)]

    def chats(self):
        return self.sent("/v1/chat/completions")

    def fault(self, path, status, body, once=False):
        self.script("""const faults = JSON.parse(sessionStorage.getItem('test.faults') ?? '[]');
            sessionStorage.setItem('test.faults', JSON.stringify([...faults, arguments[0]]));""",
                    {"path": path, "status": status, "once": once,
                     "body": body if isinstance(body, str) else json.dumps(body)})

    def faults_end(self):
        self.script("sessionStorage.removeItem('test.faults')")

    # --- surroundings ---
    def narrow(self, width=360, height=740):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": True})

    def media(self, **features):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()]})

    def forget(self):
        """As in another browser: no conversation is known."""
        self.script("""return new Promise((done) => {
            const request = indexedDB.open('lca');
            request.onsuccess = () => {
              const change = request.result.transaction('conversations', 'readwrite');
              change.objectStore('conversations').clear();
              change.oncomplete = done;
            };});""")


@contextlib.contextmanager
def streams_open(server, count):
    """Endless replies of other clients, begun."""
    body = {"messages": [{"role": "user", "content": "Another client"}], "temperature": 0, "max_tokens": 60000}
    streams = []
    try:
        for _ in range(count):
            streams.append(server.stream("/v1/chat/completions", body))
        yield streams
    finally:
        for stream in streams:
            stream.leave()
