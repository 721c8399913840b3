"""Sessions and the cache strip."""

import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import DOCUMENT, PageTest


class SessionTest(PageTest):
    def names(self):
        return self.script("return [...document.querySelectorAll('.session-open')].map(e => e.dataset.key)")

    def saved(self):
        return {one["name"] for one in self.server.get("/v1/sessions").json()["data"]}

    @pytest.mark.short
    def test_a_session_is_listed_resumed_and_deleted(self):
        self.ask("First question")
        first = self.session()
        self.wait(lambda: re.search(r"\d+ tokens · [\d.]+ [kM]?B", self.text(".session-open small")), "size")
        self.part("session-new").click()
        self.wait(lambda: self.replies() == [], "empty")
        self.ask("Another question")
        self.wait(lambda: len(self.names()) == 2, "two sessions")
        self.assertEqual(len(self.saved()), 2)
        self.click(".session-open", 1)
        self.wait(lambda: self.questions() == ["First question"], "resumed")
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "its cache")
        self.click(".session-delete", 1)
        self.press_button("Keep", "#delete-dialog")
        self.assertEqual(len(self.names()), 2)
        self.click(".session-delete", 1)
        self.press_button("Delete", "#delete-dialog")
        self.wait(lambda: len(self.names()) == 1, "one session")
        self.assertNotIn(first, self.saved())
        self.assertEqual(len(self.saved()), 1)
        self.assertEqual(self.replies(), [])

    @pytest.mark.short
    def test_a_fork_at_a_message_leaves_the_original_alone(self):
        self.ask("First question")
        self.ask("Second question")
        origin, first = self.session(), self.chats()[1]["messages"][1]["content"]
        self.click("[aria-label='Fork here: after this reply']", 0)
        self.wait(lambda: len(self.replies()) == 1 and self.session().startswith("fork-"), "fork")
        fork = self.sent("/fork")[0]
        self.assertEqual(fork, {"to": self.session(), "at_message": 2})
        self.assertEqual(self.saved(), {origin, fork["to"]})
        self.ask("Another way")
        self.assertEqual(self.chats()[-1]["metadata"]["session"], fork["to"])
        self.assertEqual([one["content"] for one in self.chats()[-1]["messages"]],
                         ["First question", first, "Another way"])
        self.wait(lambda: self.count("figure-cached") > len("First question"), "the fork's cache")
        self.wait(lambda: len(self.names()) == 2, "two sessions")
        self.driver.get(f"{self.server.url}/#{origin}")
        self.wait(lambda: self.questions() == ["First question", "Second question"], "the original")

    def test_a_fork_the_server_cannot_make_is_one_of_the_text(self):
        self.ask("First question")
        self.fault(f"/v1/sessions/{self.session()}/fork", 400, {"error": {"message": "nothing marks this message"}})
        self.click("[aria-label='Fork here: after this reply']")
        self.wait(lambda: self.session().startswith("fork-"), "fork")
        self.assertEqual(self.part("notice").text, "")
        self.ask("Second question")
        self.assertEqual([one["role"] for one in self.chats()[1]["messages"]], ["user", "assistant", "user"])

    def test_a_fork_before_a_question_takes_the_question_along(self):
        self.ask("First question")
        self.ask("Second question")
        self.click("[aria-label='Fork here: before this question']", 1)
        self.wait(lambda: len(self.replies()) == 1, "fork")
        self.wait(lambda: self.part("question").get_attribute("value") == "Second question", "question")

    def test_a_session_of_another_browser_is_resumed_from_the_server(self):
        self.ask("First question")
        replies = self.replies()
        self.forget()
        self.reload()
        self.wait(lambda: self.replies() == replies, "resumed")
        self.assertEqual(self.questions(), ["First question"])
        self.ask("Second question")
        self.assertEqual(len(self.chats()[-1]["messages"]), 3)
        self.wait(lambda: self.count("figure-cached") > len("First question"), "cached tokens")

    @pytest.mark.short
    def test_a_conversation_is_exported_as_markdown(self):
        self.ask("First question")
        reply = self.replies()[0]
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior",
                                    {"behavior": "allow", "downloadPath": str(self.folder)})
        self.part("export").click()
        self.wait(lambda: list(self.folder.glob("*.md")), "file")
        text = next(self.folder.glob("*.md")).read_text()
        self.assertTrue(text.startswith("# First question\n\n## You\n\nFirst question\n\n## Model\n\n"), text)
        self.assertIn(reply.strip(), text)


class NoSessionsTest(PageTest):
    sessions = False

    def test_without_a_session_folder_the_browser_keeps_conversations(self):
        self.ask("First question")
        replies = self.replies()
        self.wait(lambda: "tokens:" in self.part("strip-summary").text, "cache")
        self.assertIn("in this browser only", self.text(".session-open small"))
        self.reload()
        self.assertEqual(self.replies(), replies)


class CacheTest(PageTest):
    @pytest.mark.short
    def test_the_strip_shows_every_group_and_its_text(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.ask("How many ships?")
        name = self.session()
        cache = self.server.get(f"/cache/{name}").json()
        self.assertGreater(cache["groups"], 100)
        self.wait(lambda: f"{cache['tokens']:,} tokens:" in self.part("strip-summary").text, "summary")
        self.assertRegex(self.part("cache-bytes").text, r"^[\d.]+ [kM]B instead of [\d.]+ MB")
        size = (cache["tokens"] - cache["sink"] - cache["window"]) // cache["groups"]
        sinks = -(-cache["sink"] // size)
        canvas = self.part("strip")
        self.assertEqual(int(canvas.get_attribute("aria-valuemax")),
                         sinks + cache["groups"] + -(-cache["window"] // size))

        def text_of(first, count):
            found = self.server.get(f"/cache/{name}?text={first}-{first + count - 1}").json()["text"]["tokens"]
            return re.sub(r"\s*\n\s*", " ↵ ", "".join(found).strip())

        box = canvas.rect
        corner = (-int(box["width"] / 2) + 3, -int(box["height"] / 2) + 3)
        ActionChains(self.driver).move_to_element_with_offset(canvas, *corner).perform()
        self.wait(lambda: self.part("strip-text").text == text_of(0, min(size, cache["sink"])), "text of the sink")
        self.assertIn("Sink 1 of", self.part("strip-title").text)
        self.script("arguments[0].focus()", canvas)
        self.press(*[Keys.ARROW_RIGHT] * (sinks + 1))
        ActionChains(self.driver).move_to_element(self.part("question")).perform()
        group = text_of(cache["sink"] + size, size)
        self.wait(lambda: self.part("strip-text").text == group, "text of group 2")
        self.assertIn("Condensed group 2 of", canvas.get_attribute("aria-valuetext"))
        self.assertIn(group.replace(" ↵ ", "")[:4], DOCUMENT)
        self.press(Keys.END)
        self.wait(lambda: "Window" in canvas.get_attribute("aria-valuetext"), "the window's end")
        last = text_of(cache["tokens"] - 2, 2)
        self.wait(lambda: last in canvas.get_attribute("aria-valuetext"), "its text")

    def test_the_strip_grows_while_a_reply_is_written(self):
        self.longest(None)
        self.watch("strip", "aria-valuemax")
        self.send("A long one")
        self.wait(lambda: len(set(self.watched("strip")) - {None}) >= 3, "three lengths")
        self.part("stop").click()
        self.finished()

    def test_twenty_thousand_groups_are_drawn(self):
        self.ask("What is kept?")
        self.script("""
            return (async () => {
              const {CacheStrip} = await import('/page/strip.js');
              const part = (id) => document.getElementById(id);
              const strip = new CacheStrip({canvas: part('strip'), box: part('strip-box'), title: part('strip-title'),
                text: part('strip-text'), summary: part('strip-summary'), detail: part('strip-detail')},
                async () => ({first: 0, tokens: []}));
              strip.show({tokens: 320068, groups: 20000, window: 64, sink: 4});
              await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            })();""")
        self.assertEqual(self.part("strip").get_attribute("aria-valuemax"), "20005")
        self.assertLessEqual(self.part("strip-box").rect["height"], 180)


class WindowTest(PageTest):
    flags = ("--method", "window", "--window", "256", "--sink", "4")

    def test_without_groups_the_window_begins_at_its_own_tokens(self):
        self.drop("lighthouse.md", DOCUMENT)
        self.ask("How many ships?")
        cache = self.server.get(f"/cache/{self.session()}").json()
        tokens, window, sink = cache["tokens"], cache["window"], cache["sink"]
        self.assertEqual(cache["groups"], 0)
        self.assertGreater(tokens, 4 * window)
        summary = f"{tokens:,} tokens: {sink} sink, {tokens - sink - window:,} forgotten, {window} in the window."
        self.wait(lambda: self.part("strip-summary").text == summary, "summary")
        strip = self.part("strip")
        self.script("arguments[0].focus()", strip)
        self.press(Keys.HOME, Keys.ARROW_RIGHT)  # the sink is one cell
        self.assertIn(f"Window 1 of {window // 16}, tokens {tokens - window:,}–{tokens - window + 15:,}",
                      self.part("strip-title").text)
        text = "".join(self.server.get(f"/cache/{self.session()}?text={tokens - window}-{tokens - window + 15}")
                       .json()["text"]["tokens"])
        self.wait(lambda: strip.get_attribute("aria-valuetext").endswith(f": {text}"), "its text")
        self.press(Keys.END)
        self.assertIn(f"–{tokens - 1:,}", self.part("strip-title").text)
