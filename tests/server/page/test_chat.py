"""Asking: replies, errors, stop, reload, restart, documents, dense beside LCA."""

import json
import tempfile

import pytest
from selenium.webdriver.common.keys import Keys

from browser import DOCUMENT, PageTest, streams_open


def stream_text(*pieces):
    """A stream of a reply as the server writes it."""
    events = [json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}) if isinstance(piece, str)
              else json.dumps(piece) for piece in pieces]
    return "".join(f"data: {event}\n\n" for event in (*events, "[DONE]"))


class ChatTest(PageTest):
    @pytest.mark.short
    def test_a_reply_is_shown_and_the_next_turn_finds_the_cache(self):
        self.ask("First question")
        first = self.replies()[0]
        self.assertRegex(first, r"^[a-z ]{20,24}$")
        self.assertGreater(self.count("figure-rate"), 0)
        body = self.chats()[0]
        self.assertEqual(body["messages"], [{"role": "user", "content": "First question"}])
        self.assertEqual(body["metadata"]["session"], self.session())
        self.ask("Second question")
        messages = self.chats()[1]["messages"]
        self.assertEqual([one["role"] for one in messages], ["user", "assistant", "user"])
        self.assertEqual(messages[1]["content"].strip(), first.strip())
        self.wait(lambda: self.count("figure-cached") > len("First question"), "cached tokens")

    @pytest.mark.short
    def test_a_reply_is_streamed_stop_keeps_what_was_written_and_continue_goes_on(self):
        self.longest(None)
        self.send("A long one")
        self.written()
        self.written(least=len(self.replies()[0]) + 1)  # it grows
        self.assertTrue(self.shown("stop"))
        self.part("stop").click()
        self.finished()
        self.wait(self.server.is_idle, "the server sees that the client is gone")
        self.assertIn("Stopped.", self.text(".message.assistant .foot"))
        shown = self.replies()[0]
        self.longest(24)
        self.press_button("Continue")
        self.finished()
        body = self.chats()[1]
        self.assertTrue(body["continue_final_message"])
        self.assertEqual(body["messages"][-1]["content"].strip(), shown.strip())
        self.assertTrue(self.replies()[0].startswith(shown))
        self.assertGreater(len(self.replies()[0]), len(shown))

    @pytest.mark.short
    def test_a_reload_in_the_middle_of_a_stream_shows_what_was_written(self):
        self.longest(None)
        self.send("A long one")
        self.written(least=30)
        seen = self.replies()[0]
        self.reload()
        self.wait(lambda: self.replies(), "reply")
        shown = self.replies()[0]
        self.assertTrue(shown.startswith(seen), (seen, shown))
        self.assertIn("interrupted", self.text(".message.assistant .foot"))
        self.longest(24)
        self.press_button("Continue")
        self.finished()
        whole = self.replies()[0]
        self.assertTrue(whole.startswith(shown) and len(whole) > len(shown), (shown, whole))
        self.reload()
        self.assertEqual(self.replies(), [whole])

    @pytest.mark.short
    def test_a_server_restart_is_survived(self):
        self.log_allowed = ("ERR_", "net::")
        self.ask("First question")
        self.longest(None)
        self.send("A long one")
        self.written(1)
        self.server.kill()
        self.wait(lambda: "does not answer" in self.part("server-state").text, "the loss is seen")
        self.assertIn("The connection was lost.", self.text(".message.assistant .foot"))
        self.assertFalse(self.part("send").is_enabled())
        self.server.start()
        self.wait(lambda: self.part("server-state").text == "", "the return is seen")
        shown = self.replies()[1]
        self.longest(24)
        self.press_button("Continue")
        self.finished()
        self.assertTrue(self.replies()[1].startswith(shown) and len(self.replies()[1]) > len(shown))
        self.ask("Third question")
        self.assertEqual(len(self.chats()[-1]["messages"]), 5)
        self.wait(lambda: self.count("figure-cached") > len(shown), "the session's cache")

    def test_a_session_resumes_after_a_restart_of_the_server_and_the_browser(self):
        self.log_allowed = ("ERR_", "net::")
        self.ask("First question")
        name, reply = self.session(), self.replies()
        self.assertEqual(self.server.stop(), 0)
        self.server.start()
        self.driver.get("about:blank")
        self.driver.get(f"{self.server.url}/#{name}")
        self.ready()
        self.assertEqual(self.replies(), reply)
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "its cache")
        self.ask("Second question")
        self.wait(lambda: self.count("figure-cached") > len("First question"), "cached tokens")

    def test_markup_in_a_reply_stays_text(self):
        self.log_allowed = ("status of 404",)  # the server never heard of this session
        self.fault("/v1/chat", 200, stream_text("<img src=x onerror=alert(1)> <script>alert(2)</script> ",
                                                "[bad](javascript:alert(3)) is **only** text."))
        self.ask("Markup please")
        self.assertIn("<img src=x onerror=alert(1)> <script>", self.replies()[0])
        self.assertEqual(self.all(".message.assistant .text :is(img, script, a)"), [])
        self.assertEqual(self.text(".message.assistant strong"), "only")

    def test_an_error_inside_the_stream_is_shown(self):
        self.log_allowed = ("status of 404",)  # the server never heard of this session
        self.fault("/v1/chat", 200, stream_text("Half of ", {"error": {"message": "the step failed"}}))
        self.ask("Fail in the middle")
        self.assertEqual(self.part("notice").text, "the step failed")
        self.assertEqual(self.replies(), ["Half of "])
        self.assertIn("Continue", self.buttons())

    def test_the_error_of_a_healthy_server_stays_to_be_read(self):
        self.log_allowed = ("status of 503", "status of 404")
        self.fault("/v1/chat", 503, {"error": {"message": "memory ran out"}}, once=True)
        self.ask("First question")
        self.wait(lambda: self.script("return performance.getEntriesByType('resource')"
                                      ".filter((one) => one.name.endsWith('/page-config')).length") > 1, "asked again")
        self.wait(lambda: self.part("send").is_enabled(), "ready")
        self.assertEqual(self.part("notice").text, "memory ran out")
        self.press_button("Try again")
        self.finished()
        self.assertEqual(self.part("notice").text, "")
        self.written()

    def test_where_the_server_cannot_continue_the_reply_is_written_again(self):
        config = self.server.get("/page-config").json()
        self.assertTrue(config["continues"])
        self.fault("/page-config", 200, {**config, "continues": False})
        self.open()
        self.ask("A long one")
        reply = self.replies()
        self.press_button("Write again")
        self.wait(lambda: len(self.chats()) == 2, "sent")
        self.finished()
        self.assertEqual(self.replies(), reply)
        self.assertNotIn("continue_final_message", self.chats()[1])

    def test_a_model_that_loads_is_waited_for(self):
        self.ask("First question")
        name = self.session()
        self.forget()
        loading = {"error": {"message": "the model is being loaded"}}
        for path in ("/health", "/page-config", "/v1/"):
            self.fault(path, 503, loading)
        self.driver.refresh()
        self.wait(lambda: self.part("server-state").text == "The model is loading…", "state")
        self.assertFalse(self.part("send").is_enabled())
        self.faults_end()
        self.wait(lambda: self.replies(), "the session that only the server has")
        self.assertEqual(self.session(), name)
        self.wait(lambda: self.part("send").is_enabled(), "ready")
        self.ask("Second question")

    def test_settings_are_sent_and_kept(self):
        self.click("#settings summary")
        self.part("system").send_keys("Be brief.")
        self.part("temperature").clear()
        self.part("temperature").send_keys("0.7")
        self.part("max-tokens").clear()
        self.part("max-tokens").send_keys("5" + Keys.TAB)
        self.reload()
        self.ask("First question")
        body = self.chats()[0]
        self.assertEqual((body["temperature"], body["max_tokens"]), (0.7, 5))
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertIn("longest length", self.text(".message.assistant .foot"))
        self.click("[aria-label='Fork here: after this reply']")
        self.wait(lambda: self.sent("/fork"), "fork")
        self.assertEqual(self.sent("/fork")[0]["at_message"], 3)  # the system message counts
        self.wait(lambda: self.session().startswith("fork-"), "in the fork")

    def test_two_tabs_see_the_same_conversation(self):
        self.ask("First question")
        first, address = self.driver.current_window_handle, self.driver.current_url
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


class ContextTest(PageTest):
    flags = ("--context", "400")

    def test_a_prompt_beyond_the_context_says_both_numbers_and_can_be_edited(self):
        self.log_allowed = ("status of 400",)
        self.drop("big.txt", "many words " * 200)
        self.ask("Too much?")
        self.assertRegex(self.part("notice").text, r"2,?\d\d\d.*400")
        self.press_button("Edit")
        self.wait(lambda: self.part("question").get_attribute("value") == "Too much?", "question")
        self.part("attached-remove").click()
        self.part("question").send_keys(Keys.ENTER)
        self.written()
        self.finished()
        self.assertEqual(self.part("notice").text, "")


class BusyTest(PageTest):
    flags = ("--batch", "1", "--queue", "1")

    def test_a_request_that_waits_says_so_and_one_too_many_when_to_try_again(self):
        self.log_allowed = ("status of 429",)
        with streams_open(self.server, 1) as streams:
            next(streams[0].chunks())
            self.send("First question")
            self.wait(lambda: self.part("progress-text").text.startswith("Waiting"), "waiting")
            self.part("stop").click()
            self.finished()
            self.press_button("Try again")
            self.wait(lambda: self.server.metrics()["lca_requests_queued"] == 1, "in the queue again")
            first = self.driver.current_window_handle
            self.driver.switch_to.new_window("tab")
            try:
                self.open()
                self.send("One too many")
                self.wait(lambda: "Try again in" in self.part("notice").text, "refused")
            finally:
                self.driver.close()
                self.driver.switch_to.window(first)
        self.written()
        self.finished()
        self.assertFalse(self.shown("progress"))


class DocumentTest(PageTest):
    flags = ("--progress", "0")  # a fast machine reads the document within the usual quarter of a second

    @pytest.mark.short
    def test_a_dropped_document_is_read_with_progress_and_found_again(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.assertIn("lighthouse.md", self.part("attached-name").text)
        self.watch("progress-text")
        self.ask("How many ships?")
        seen = [text for text in self.watched("progress-text") if text.startswith("Reading")]
        self.assertGreaterEqual(len(seen), 2, seen)
        self.assertTrue(any("left" in text for text in seen), seen)
        self.assertFalse(self.shown("progress"))
        content = self.chats()[0]["messages"][0]["content"]
        self.assertIn(DOCUMENT, content)
        self.assertTrue(content.endswith("How many ships?"))
        self.ask("And who lit the lamp?")
        self.wait(lambda: self.count("figure-cached") > len(DOCUMENT), "cached tokens")

    def test_a_file_that_is_no_text_is_refused(self):
        self.drop("picture.txt", "PNG\0\0\0")
        self.assertEqual(self.part("notice").text, "picture.txt is not a text file.")
        self.assertFalse(self.shown("attached"))

    def test_a_document_can_be_chosen_and_removed(self):
        with tempfile.NamedTemporaryFile(suffix=".md", mode="w") as file:
            file.write("Some text.")
            file.flush()
            self.part("file").send_keys(file.name)
            self.wait(lambda: self.shown("attached"), "document")
        self.part("attached-remove").click()
        self.assertFalse(self.shown("attached"))


class CompareTest(PageTest):
    flags = ("--compare",)

    @pytest.mark.short
    def test_the_same_question_is_answered_in_two_columns(self):
        self.part("compare").click()
        self.ask("What is kept?")
        columns = self.script("return [...document.querySelectorAll('.column')].map(e => e.innerText)")
        self.assertEqual(len(columns), 2)
        self.assertTrue(columns[0].startswith("LCA") and columns[1].startswith("Dense"), columns)
        dense = self.server.get("/page-config").json()["compare"]["model"]
        self.assertEqual({body["model"] for body in self.chats()}, {self.server.get("/page-config").json()["model"], dense})
        texts = self.script("return [...document.querySelectorAll('.column .text')].map(e => e.textContent)")
        self.assertTrue(all(texts), texts)
        self.ask("And then?")
        second = next(body for body in self.chats()[2:] if body["model"] == dense)
        self.assertEqual(second["messages"][1]["content"].strip(), texts[1].strip())
        self.assertNotIn("metadata", second)
        self.assertEqual(len(self.server.get("/v1/sessions").json()["data"]), 1)

    def columns(self):
        """Text and figures of each column."""
        return self.script("""return [...document.querySelectorAll('.column')].map((one) =>
            [one.querySelector('.text').textContent, one.querySelector('.foot').textContent]);""")

    @pytest.mark.short
    def test_a_reload_while_one_column_writes_leaves_the_other_whole(self):
        self.log_allowed = ("status of 404",)  # the server never heard of the first column's session
        self.part("compare").click()
        self.longest(None)
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
        self.fault("/v1/chat", 200, stream_text("A whole", " reply.", {"choices": [], "usage": usage}), once=True)
        self.send("What is kept?")
        self.wait(lambda: len(self.columns()) == 2 and len(self.columns()[1][0]) > 30, "letters")
        whole, (seen, _) = self.columns()
        self.assertEqual(whole[0], "A whole reply.")
        self.assertIn("5 tokens · 3 of 9 prompt tokens cached", whole[1])
        self.reload()
        self.wait(lambda: len(self.columns()) == 2, "reply")
        kept, (shown, foot) = self.columns()
        self.assertEqual(kept, whole)
        self.assertTrue(shown.startswith(seen), (seen, shown))
        self.assertIn("interrupted", foot)
        self.longest(24)
        self.press_button("Continue")
        self.wait(lambda: len(self.chats()) == 3, "sent")
        self.finished()
        self.assertEqual(self.chats()[2]["model"], self.server.get("/page-config").json()["compare"]["model"])
        self.assertTrue(self.chats()[2]["continue_final_message"])
        kept, (longer, _) = self.columns()
        self.assertEqual(kept, whole)
        self.assertTrue(longer.startswith(shown) and len(longer) > len(shown), (shown, longer))

    def test_continue_goes_on_with_what_broke_off_before_what_reached_its_length(self):
        self.part("compare").click()
        self.ask("What is kept?")  # both reach their longest length
        before = self.columns()
        self.press_button("Continue")
        self.wait(lambda: len(self.chats()) == 4, "both")
        self.finished()
        after = self.columns()
        for (shorter, _), (longer, _) in zip(before, after):
            self.assertTrue(longer.startswith(shorter) and len(longer) > len(shorter))
        self.longest(None)
        self.fault("/v1/chat", 200, stream_text(" and on", {"choices": [{"index": 0, "delta": {},
                                                                         "finish_reason": "length"}]}), once=True)
        self.press_button("Continue")
        self.wait(lambda: len(self.columns()[1][0]) > len(after[1][0]) + 10, "letters")
        self.part("stop").click()
        self.finished()
        first = self.columns()[0][0]
        self.longest(24)
        self.press_button("Continue")
        self.wait(lambda: len(self.chats()) == 7, "one")
        self.finished()
        self.assertEqual(len(self.chats()), 7)
        self.assertEqual(self.columns()[0][0], first)


class KeyTest(PageTest):
    flags = ("--api-key", "secret")
    opens = False

    @pytest.mark.short
    def test_the_key_is_asked_for_until_it_is_right(self):
        self.log_allowed = ("status of 401",)  # Chromium itself writes a line for each
        self.open(ready=False)
        self.wait(lambda: self.shown("key-dialog"), "dialog")
        self.part("key").send_keys("wrong" + Keys.ENTER)
        self.wait(lambda: "does not accept" in self.part("key-text").text, "asked again")
        self.part("key").send_keys("secret" + Keys.ENTER)
        self.ready()
        self.ask("First question")
        self.written()
        self.assertIsNone(self.script("return localStorage.getItem('lca.key')"))
        self.reload()
        self.assertFalse(self.shown("key-dialog"))
