#!/usr/bin/env python3
"""The page in a real Chromium, against mock.py.

    python -m unittest discover -s tests/server/page          (needs selenium, chromium, chromium-driver)

The pictures docs/images/serve-*.png are made by it where PAGE_PICTURES is set.
"""

import os
import pathlib
import re
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from browser import PageTest  # noqa: E402
from mock import SHORT, tokens_of  # noqa: E402

DOCUMENT = "# The lighthouse\n\n" + "\n\n".join(
    f"Entry {day}. The lamp was lit at dusk, the wind stood in the west, and {day * 7} ships went by."
    for day in range(1, 331))
PICTURES = bool(os.environ.get("PAGE_PICTURES"))


class ChatTest(PageTest):
    def test_a_reply_is_streamed_and_shown_as_markdown(self):
        self.send("What is kept?")
        self.wait(lambda: self.replies() and "newest" in self.replies()[0], "first words")
        self.assertLess(len(self.replies()[0]), len(SHORT) - 20)
        self.finished()
        self.assertEqual(self.text(".message.assistant strong"), "newest tokens exact")
        self.assertEqual(len(self.all(".message.assistant li")), 3)
        self.assertIn("cached", self.text(".message.assistant .foot"))
        self.assertGreater(float(self.part("figure-rate").text), 5)
        body = self.chats()[0]
        self.assertEqual(body["messages"], [{"role": "user", "content": "What is kept?"}])
        self.assertEqual(f"#{body['metadata']['session']}", self.script("return location.hash"))

    def test_the_next_turn_carries_the_conversation_and_is_cached(self):
        self.ask("First question")
        self.ask("Second question")
        messages = self.chats()[1]["messages"]
        self.assertEqual([one["role"] for one in messages], ["user", "assistant", "user"])
        self.assertEqual(messages[1]["content"], SHORT)
        self.assertGreater(int(self.part("figure-cached").text), 20)

    def test_stop_keeps_what_was_written_and_continue_goes_on(self):
        self.send("A long one")
        self.wait(lambda: self.replies() and "word9 " in self.replies()[0], "words")
        self.part("stop").click()
        self.finished()
        self.wait(lambda: self.server.gone >= 1, "the server sees that the client is gone")
        self.assertIn("Stopped.", self.text(".message.assistant .foot"))
        self.server.rate = 5000
        self.press_button("Continue")
        self.wait(lambda: "word399." in self.replies()[0], "the end")
        self.finished()
        self.assertEqual(self.replies()[0], " ".join(f"word{number}" for number in range(400)) + ".")
        self.assertTrue(self.chats()[1]["continue_final_message"])
        self.assertNotIn("Continue", self.buttons())

    def test_where_the_server_cannot_continue_the_reply_is_written_again(self):
        self.server.continues = False
        self.open()
        self.send("A long one")
        self.wait(lambda: self.replies() and "word9 " in self.replies()[0], "words")
        self.part("stop").click()
        self.finished()
        self.server.rate = 5000
        self.press_button("Write again")
        self.wait(lambda: "word399." in self.replies()[0], "the end")
        self.finished()
        self.assertEqual(self.replies()[0].count("word0 "), 1)
        self.assertNotIn("continue_final_message", self.chats()[1])

    def test_markup_in_a_reply_stays_text(self):
        self.ask("markup please")
        self.assertIn("<img src=x onerror=alert(1)> <script>", self.replies()[0])
        self.assertEqual(self.all(".message.assistant .text :is(img, script, a)"), [])

    def test_an_error_inside_the_stream_is_shown(self):
        self.ask("fail in the middle")
        self.assertEqual(self.part("notice").text, "the step failed")
        self.assertIn("Continue", self.buttons())

    def test_a_prompt_beyond_the_context_says_both_numbers_and_can_be_edited(self):
        self.log_allowed = ("status of 400",)
        self.server.context = 100
        self.drop("big.txt", "many words " * 200)
        self.ask("Too much?")
        self.assertRegex(self.part("notice").text, r"the prompt has 4\d\d tokens, the context 100")
        self.press_button("Edit")
        self.assertEqual(self.part("question").get_attribute("value"), "Too much?")
        self.part("attached-remove").click()
        self.part("question").send_keys(Keys.ENTER)
        self.wait(lambda: self.replies() and "small file" in self.replies()[-1], "reply")
        self.finished()

    def test_a_reload_in_the_middle_of_a_stream_shows_what_was_written(self):
        self.send("A long one")
        self.wait(lambda: self.replies() and "word30 " in self.replies()[0], "words")
        self.driver.refresh()
        self.ready()
        self.wait(lambda: self.replies(), "reply")
        shown = self.replies()[0]
        self.assertIn("word30 ", shown)
        self.assertIn("interrupted", self.text(".message.assistant .foot"))
        self.server.rate = 5000
        self.press_button("Continue")
        self.wait(lambda: "word399." in self.replies()[0], "the end")
        self.finished()
        self.assertEqual(self.chats()[1]["messages"][1]["content"], shown)
        self.driver.refresh()
        self.ready()
        self.assertTrue(self.replies()[0].endswith("word399."))

    def test_a_server_restart_is_survived(self):
        self.log_allowed = ("ERR_", "net::")
        self.ask("First question")
        self.send("A long one")
        self.wait(lambda: len(self.replies()) == 2 and "word9 " in self.replies()[1], "words")
        self.server.stop()
        self.wait(lambda: "does not answer" in self.part("server-state").text, "the loss is seen")
        self.assertIn("The connection was lost.", self.text(".message.assistant .foot"))
        self.assertFalse(self.part("send").is_enabled())
        self.server.rate = 5000
        self.server.start()
        self.wait(lambda: self.part("server-state").text == "", "the return is seen")
        self.press_button("Continue")
        self.wait(lambda: "word399." in self.replies()[1], "the end")
        self.finished()
        self.ask("Third question")
        self.assertEqual(len(self.chats()[-1]["messages"]), 5)


    def test_a_busy_server_says_when_to_try_again(self):
        self.log_allowed = ("status of 429",)
        self.server.busy = 1
        self.ask("First question")
        self.assertEqual(self.part("notice").text, "too many requests wait Try again in 3 s.")
        self.press_button("Try again")
        self.wait(lambda: "small file" in self.replies()[0], "reply")
        self.finished()
        self.assertEqual(self.chats()[1]["messages"], [{"role": "user", "content": "First question"}])

    def test_a_request_that_waits_says_so(self):
        self.server.delay, self.server.queue = 1.5, 2
        self.send("First question")
        for text in ("Waiting for the server…", "Waiting, 2 requests before this one", "Waiting, 1 request before this one"):
            self.wait(lambda: self.text("#progress-text") == text and self.part("progress").is_displayed(), text)
        self.wait(lambda: self.replies() and "small" in self.replies()[0], "reply")
        self.finished()
        self.assertFalse(self.part("progress").is_displayed())

    def test_a_model_that_loads_is_waited_for(self):
        self.log_allowed = ("status of 503",)
        self.server.loading = True
        self.open()
        self.wait(lambda: self.part("server-state").text == "The model is loading…", "state")
        self.assertFalse(self.part("send").is_enabled())
        self.server.loading = False
        self.wait(lambda: self.part("send").is_enabled(), "ready")
        self.ask("First question")

    def test_a_session_of_the_server_opens_once_the_model_is_loaded(self):
        self.log_allowed = ("status of 503",)
        self.ask("First question")
        name = self.chats()[0]["metadata"]["session"]
        self.forget()
        self.server.loading = True
        self.driver.refresh()
        self.wait(lambda: self.part("server-state").text == "The model is loading…", "state")
        self.server.loading = False
        self.wait(lambda: self.replies() and "small file" in self.replies()[0], "resumed")
        self.assertEqual(self.script("return location.hash"), f"#{name}")

    def test_settings_are_sent_and_kept(self):
        self.click("#settings summary")
        self.part("system").send_keys("Be brief.")
        self.part("temperature").send_keys("0.7")
        self.part("max-tokens").send_keys("5" + Keys.TAB)
        self.driver.refresh()
        self.ready()
        self.ask("First question")
        body = self.chats()[0]
        self.script("localStorage.clear()")
        self.assertEqual((body["temperature"], body["max_tokens"]), (0.7, 5))
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertIn("longest length", self.text(".message.assistant .foot"))
        self.click("[aria-label='Fork after this reply']")
        self.wait(lambda: any(path.endswith("/fork") for _, path, _ in self.server.requests), "fork")
        fork = next(body for _, path, body in self.server.requests if path.endswith("/fork"))
        self.assertEqual(fork["at_message"], 3)  # the system message counts

    def test_two_tabs_see_the_same_conversation(self):
        self.ask("First question")
        first = self.driver.current_window_handle
        address = self.driver.current_url
        self.driver.switch_to.new_window("tab")
        try:
            self.driver.get(address)
            self.ready()
            self.wait(lambda: self.replies(), "reply")
            self.ask("Second question")
        finally:
            self.driver.close()
            self.driver.switch_to.window(first)
        self.wait(lambda: len(self.replies()) == 2, "the other tab's turn")


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


class ModuleTest(PageTest):
    def test_a_stream_may_be_cut_anywhere(self):
        text = (': reading 1 of 2 tokens, 0.5 s left\r\n\r\ndata: {"a":\ndata:1}\n\n'
                "event: x\ndata: ü\n\n:\n\ndata: not ended\n")
        seen = self.script("""
            return (async () => {
              const [text] = arguments;
              const {SseReader} = await import('/page/sse.js');
              const read = (...parts) => {
                const seen = [];
                const reader = new SseReader((name, data) => seen.push([name, data]), (comment) => seen.push(comment));
                parts.forEach((part) => reader.feed(part));
                return seen;
              };
              const all = [read(...text)];
              for (let cut = 0; cut <= text.length; ++cut) all.push(read(text.slice(0, cut), text.slice(cut)));
              return all;
            })();""", text)
        self.assertEqual(len(seen), len(text) + 2)
        for one in seen:
            self.assertEqual(one, ["reading 1 of 2 tokens, 0.5 s left", ["", '{"a":\n1}'], ["x", "ü"], ""])

    def test_progress_is_read_from_comments(self):
        self.assertEqual(self.script("""
            return (async () => {
              const {progress_parse} = await import('/page/sse.js');
              return arguments[0].map(progress_parse);
            })();""", ["reading 12 of 70 tokens, 3.5 s left", "reading 0 of 70 tokens", "keep-alive", "", "reading x of y tokens"]),
            [{"done": 12, "total": 70, "seconds_left": 3.5}, {"done": 0, "total": 70, "seconds_left": None},
             None, None, None])

    def test_markdown_becomes_elements(self):
        html = self.script("""
            return (async () => {
              const {markdown_show} = await import('/page/markdown.js');
              return arguments[0].map((text) => {
                const element = document.createElement('div');
                for (let end = 1; end <= text.length; ++end) markdown_show(element, text.slice(0, end));
                return element.innerHTML;
              });
            })();""", [
                "# One\ntwo **three *four*** `a*b*c`",
                "3. a\n4. b\n   more",
                "> quoted\n> text\n\n```py\nx = '<b>'\n\ny\n```\nafter",
                "[a](https://b.c/d) [e](javascript:f) 2 * 3 * 4"])
        self.assertEqual(html, [
            "<h3>One</h3><p>two <strong>three <em>four</em></strong> <code>a*b*c</code></p>",
            '<ol start="3"><li>a</li><li>b\nmore</li></ol>',
            '<blockquote>quoted\ntext</blockquote><pre tabindex="0" role="region" aria-label="Code py"><code>'
            "x = '&lt;b&gt;'\n\ny</code></pre><p>after</p>",
            '<p><a href="https://b.c/d" rel="noopener noreferrer" target="_blank">a</a> [e](javascript:f) 2 * 3 * 4</p>'])

    def test_numbers_read_well(self):
        self.assertEqual(self.script("""
            return (async () => {
              const {bytes_text, seconds_text, plural} = await import('/page/format.js');
              return [bytes_text(34e6), bytes_text(189.4e6), bytes_text(999), bytes_text(999.6e3), bytes_text(1.25e9),
                      seconds_text(3.21), seconds_text(59.7), seconds_text(61), seconds_text(7300), plural(1, 'token')];
            })();"""), ["34 MB", "189 MB", "999 B", "1.0 MB", "1.3 GB", "3.2 s", "60 s", "1 min 1 s", "2 h 1 min", "1 token"])


class DocumentTest(PageTest):
    server_options = {"prefill_rate": 4000}

    def test_a_dropped_document_is_read_with_progress_and_time_left(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.assertIn("lighthouse.md", self.part("attached-name").text)
        self.send("How many ships?")
        self.wait(lambda: "left" in self.text("#progress-text"), "progress")
        if PICTURES:
            self.wait(lambda: self.script("return document.getElementById('progress-bar').value") > 0.3, "progress")
            self.picture("document", settle=0)
        seen = set()
        while self.part("stop").is_displayed() and not self.replies()[0]:
            seen.add(self.text("#progress-text"))
        self.finished()
        self.assertGreaterEqual(len(seen), 3, seen)
        self.assertTrue(any("left" in one and "of 6," in one for one in seen), seen)
        self.assertFalse(self.part("progress").is_displayed())
        content = self.chats()[0]["messages"][0]["content"]
        self.assertIn(DOCUMENT, content)
        self.assertTrue(content.endswith("How many ships?"))
        self.ask("And who lit the lamp?")
        cached = int(self.part("figure-cached").text.replace(",", ""))
        self.assertGreater(cached, len(tokens_of(DOCUMENT)))

    def test_a_file_that_is_no_text_is_refused(self):
        self.drop("picture.txt", "PNG\0\0\0")
        self.assertEqual(self.part("notice").text, "picture.txt is not a text file.")
        self.assertFalse(self.part("attached").is_displayed())

    def test_a_document_can_be_chosen_and_removed(self):
        with tempfile.NamedTemporaryFile(suffix=".md", mode="w") as file:
            file.write("Some text.")
            file.flush()
            self.part("file").send_keys(file.name)
            self.wait(lambda: self.part("attached").is_displayed(), "document")
        self.part("attached-remove").click()
        self.assertFalse(self.part("attached").is_displayed())


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


class KeyTest(PageTest):
    server_options = {"key": "secret"}
    # Chromium itself writes a line for each 401.

    def setUp(self):
        self.open, opened = lambda: None, self.open
        super().setUp()
        self.open = opened
        self.log_allowed = ("status of 401",)
        self.driver.get(self.server.address)
        self.script("sessionStorage.clear(); localStorage.clear()")
        self.open(ready=False)
        self.wait(lambda: self.part("key-dialog").is_displayed(), "dialog")

    def test_the_key_is_asked_for_until_it_is_right(self):
        self.part("key").send_keys("wrong" + Keys.ENTER)
        self.wait(lambda: "does not accept" in self.part("key-text").text, "asked again")
        self.part("key").send_keys("secret" + Keys.ENTER)
        self.ready()
        self.ask("First question")
        self.assertIn("small file", self.replies()[0])
        self.assertNotIn("lca.key", self.storage())
        self.driver.refresh()
        self.ready()
        self.assertFalse(self.part("key-dialog").is_displayed())


class CompareTest(PageTest):
    server_options = {"compare": True}

    def test_the_same_question_is_answered_in_two_columns(self):
        self.part("compare").click()
        self.ask("What is kept?")
        columns = self.script("return [...document.querySelectorAll('.column')].map(e => e.innerText)")
        self.assertEqual(len(columns), 2)
        self.assertTrue(columns[0].startswith("LCA") and columns[1].startswith("Dense"))
        self.assertIn("Dense says: The cache keeps", columns[1])
        self.assertEqual({body["model"] for body in self.chats()}, {"mock", "mock-dense"})
        self.ask("And then?")
        dense = next(body for body in self.chats()[2:] if body["model"] == "mock-dense")
        self.assertTrue(dense["messages"][1]["content"].startswith("Dense says: "))
        self.assertNotIn("metadata", dense)


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


if __name__ == "__main__":
    unittest.main()
