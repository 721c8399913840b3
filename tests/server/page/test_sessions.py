"""Sessions and the cache strip."""

import pathlib
import re
import time

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import DOCUMENT, PageTest
from mock import SHORT


class SessionTest(PageTest):
    def names(self):
        return self.script("return [...document.querySelectorAll('.session-open')].map(e => e.dataset.key)")

    def test_a_session_is_listed_resumed_and_deleted(self):
        self.ask("First question")
        self.wait(lambda: "MB" in self.text(".session-open small") or "kB" in self.text(".session-open small"), "size")
        self.part("session-new").click()
        self.wait(lambda: self.replies() == [], "empty")
        self.ask("Another question")
        self.wait(lambda: len(self.names()) == 2, "two sessions")
        self.click(".session-open", 1)
        self.wait(lambda: self.text(".message.user .text") == "First question", "resumed")
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "its cache")
        self.click(".session-delete", 1)
        self.press_button("Keep", "#delete-dialog")
        self.assertEqual(len(self.names()), 2)
        self.click(".session-delete", 1)
        self.press_button("Delete", "#delete-dialog")
        self.wait(lambda: len(self.names()) == 1, "one session")
        self.assertEqual(len(list(pathlib.Path(self.folder).glob("*.json"))), 1)
        self.assertEqual(self.replies(), [])
        self.driver.back()

    def test_a_fork_at_a_message_leaves_the_original_alone(self):
        self.ask("First question")
        self.ask("Second question")
        origin = self.chats()[0]["metadata"]["session"]
        self.click("[aria-label='Fork after this reply']", 0)
        self.wait(lambda: len(self.replies()) == 1 and origin not in self.script("return location.hash"), "fork")
        fork = next(body for _, path, body in self.server.requests if path.endswith("/fork"))
        self.assertEqual(fork["at_message"], 2)
        self.ask("Another way")
        self.assertEqual(self.chats()[-1]["metadata"]["session"], fork["to"])
        self.assertEqual([one["content"] for one in self.chats()[-1]["messages"]],
                         ["First question", SHORT, "Another way"])
        self.wait(lambda: len(self.names()) == 2, "two sessions")
        self.driver.get(f"{self.server.address}/#{origin}")
        self.wait(lambda: self.text(".message.user .text") == "First question|Second question", "the original")

    def test_a_fork_the_server_cannot_make_is_one_of_the_text(self):
        self.log_allowed = ("status of 400",)
        self.ask("First question")
        self.server.forks = False
        self.click("[aria-label='Fork after this reply']")
        self.wait(lambda: "#fork-" in self.script("return location.hash"), "fork")
        self.assertEqual(self.part("notice").text, "")
        self.ask("Second question")
        self.assertEqual([one["role"] for one in self.chats()[1]["messages"]], ["user", "assistant", "user"])

    def test_a_fork_before_a_question_takes_the_question_along(self):
        self.ask("First question")
        self.ask("Second question")
        self.click("[aria-label='Fork before this question']", 1)
        self.wait(lambda: len(self.replies()) == 1, "fork")
        self.wait(lambda: self.part("question").get_attribute("value") == "Second question", "question")

    def test_a_session_of_another_browser_is_resumed_from_the_server(self):
        self.ask("First question")
        name = self.chats()[0]["metadata"]["session"]
        self.forget()
        self.driver.refresh()
        self.ready()
        self.wait(lambda: self.replies() and "small file" in self.replies()[0], name)
        self.ask("Second question")
        self.assertEqual(len(self.chats()[-1]["messages"]), 3)

    def test_a_conversation_is_exported_as_markdown(self):
        self.ask("First question")
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": self.folder})
        self.part("export").click()
        self.wait(lambda: list(pathlib.Path(self.folder).glob("*.md")), "file")
        text = next(pathlib.Path(self.folder).glob("*.md")).read_text()
        self.assertEqual(text, f"# First question\n\n## You\n\nFirst question\n\n## Model\n\n{SHORT}\n")


class NoSessionsTest(PageTest):
    server_options = {"sessions": None}

    def test_without_a_session_folder_the_browser_keeps_conversations(self):
        self.ask("First question")
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "cache")
        self.assertIn("in this browser only", self.text(".session-open small"))
        self.driver.refresh()
        self.ready()
        self.assertIn("small file", self.replies()[0])
        self.assertEqual([path for _, path, _ in self.server.requests if "sessions" in path], [])


class CacheTest(PageTest):
    def test_the_strip_shows_every_group_and_its_text(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.ask("How many ships?")
        session = self.chats()[0]["metadata"]["session"]
        tokens = self.server.caches[session]
        self.wait(lambda: f"{len(tokens):,} tokens: 4 sink" in self.part("strip-summary").text, "summary")
        self.assertRegex(self.part("cache-bytes").text, r"^\d+(\.\d)? MB instead of \d+ MB$")
        canvas = self.part("strip")
        self.assertEqual(int(canvas.get_attribute("aria-valuemax")),
                         1 + (len(tokens) - 68) // 16 + -(-(64 + (len(tokens) - 68) % 16) // 16))
        box = canvas.rect
        ActionChains(self.driver).move_to_element_with_offset(
            canvas, -int(box["width"] / 2) + 3, -int(box["height"] / 2) + 3).perform()
        expected = re.sub(r"\s*\n\s*", " ↵ ", "".join(tokens[:4]).strip())
        self.wait(lambda: self.part("strip-text").text == expected, "text of the sink")
        self.assertEqual(self.part("strip-title").text, "Sink 1 of 1, tokens 0–3")
        self.script("arguments[0].focus()", canvas)
        self.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        ActionChains(self.driver).move_to_element(self.part("question")).perform()
        expected = "".join(tokens[20:36])
        self.wait(lambda: expected in canvas.get_attribute("aria-valuetext"), "text of group 2")
        self.assertIn("Condensed group 2 of", canvas.get_attribute("aria-valuetext"))
        self.press(Keys.END)
        self.wait(lambda: tokens[-1].strip() in canvas.get_attribute("aria-valuetext"), "text of the window's end")
        self.assertIn("Window", canvas.get_attribute("aria-valuetext"))

    def test_the_strip_grows_while_a_reply_is_written(self):
        self.server.rate = 150
        self.send("A long one")
        seen = set()
        self.wait(lambda: self.replies(), "reply")
        while self.part("stop").is_displayed():
            seen.add(self.part("strip").get_attribute("aria-valuemax"))
            time.sleep(0.1)
        self.assertGreaterEqual(len(seen - {None}), 3)

    def test_twenty_thousand_groups_are_drawn_quickly(self):
        self.ask("What is kept?")
        took = self.script("""
            return (async () => {
              const {CacheStrip} = await import('/page/strip.js');
              const part = (id) => document.getElementById(id);
              const strip = new CacheStrip({canvas: part('strip'), box: part('strip-box'), title: part('strip-title'),
                text: part('strip-text'), summary: part('strip-summary')}, async () => ({first: 0, tokens: []}));
              const begin = performance.now();
              strip.show({tokens: 320068, groups: 20000, window: 64, sink: 4});
              await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
              return performance.now() - begin;
            })();""")
        self.assertLess(took, 1000)
        self.assertLessEqual(self.part("strip-box").rect["height"], 180)
