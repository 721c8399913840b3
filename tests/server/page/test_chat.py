"""Asking: replies, errors, stop, reload, restart, documents, dense beside LCA."""

import tempfile

from selenium.webdriver.common.keys import Keys

from browser import DOCUMENT, PICTURES, PageTest
from mock import SHORT, tokens_of


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
        self.wait(lambda: self.part("question").get_attribute("value") == "Too much?", "question")
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
