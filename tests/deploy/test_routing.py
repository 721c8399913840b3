"""Which replica a request belongs to (deploy/ray/lca_ray/routing.py)."""

import collections
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy" / "ray"))
from lca_ray import metrics  # noqa: E402
from lca_ray.routing import rank, routing_key  # noqa: E402

CHAT = "/v1/chat/completions"


def key(body, path=CHAT, headers=(), method="POST", first="message"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return routing_key(method, path, dict(headers), data, first)


def say(role, text):
    return {"role": role, "content": text}


class KeyTest(unittest.TestCase):
    def test_a_session_is_the_key_wherever_it_is_named(self):
        keys = {key({"messages": [say("user", "hi")], "metadata": {"session": "ada"}}),
                key({"messages": [say("user", "other")]}, headers={"x-smg-routing-key": "ada"}),
                key(b"", "/v1/sessions/ada", method="DELETE"),
                key({"to": "eve"}, "/v1/sessions/ada/fork"),
                key(b"", "/cache/ada", method="GET"),
                key({"prompt": "x", "metadata": {"session": "ada"}}, "/v1/completions"),
                key({"input": "x", "metadata": {"session": "ada"}}, "/v1/responses"),
                key({"messages": [say("user", "hi")], "metadata": {"session": "ada"}}, "/v1/messages")}
        self.assertEqual(keys, {"session:ada"})

    def test_turns_of_one_conversation_have_one_key(self):
        turns = [say("system", "Be brief."), say("user", "One?")]
        first = key({"messages": turns})
        turns = turns + [say("assistant", "1"), say("user", "Two?")]
        self.assertEqual(first, key({"messages": turns, "temperature": 1}))
        self.assertEqual(key({"messages": turns[:2]}, first="user"), key({"messages": turns}, first="user"))

    def test_conversations_differ_by_their_first_message(self):
        self.assertNotEqual(key({"messages": [say("user", "a")]}), key({"messages": [say("user", "b")]}))
        shared = say("system", "A long text.")
        questions = [{"messages": [shared, say("user", word)]} for word in ("a", "b")]
        self.assertEqual(key(questions[0]), key(questions[1]))
        self.assertNotEqual(key(questions[0], first="user"), key(questions[1], first="user"))

    def test_anthropics_system_and_the_instructions_of_responses_count(self):
        body = {"messages": [say("user", "a")]}
        self.assertNotEqual(key(body, "/v1/messages"), key({**body, "system": "s"}, "/v1/messages"))
        self.assertNotEqual(key({"input": "a"}, "/v1/responses"),
                            key({"input": "a", "instructions": "s"}, "/v1/responses"))

    def test_a_prompt_that_grows_keeps_its_key(self):
        text = "word " * 400
        self.assertEqual(key({"prompt": text}, "/v1/completions"), key({"prompt": text + "more"}, "/v1/completions"))
        ids = list(range(2000))
        self.assertEqual(key({"prompt": ids}, "/v1/completions"), key({"prompt": ids + [7]}, "/v1/completions"))
        self.assertEqual(key({"prompt": [text, "other"]}, "/v1/completions"), key({"prompt": text}, "/v1/completions"))

    def test_what_belongs_nowhere_has_no_key(self):
        for body, path, method in [(b"", "/v1/models", "GET"), (b"", "/v1/sessions", "GET"), (b"", "/health", "GET"),
                                   (b"{", CHAT, "POST"), (b"[1]", CHAT, "POST"), ({"messages": []}, CHAT, "POST"),
                                   ({"messages": 3, "metadata": 4}, CHAT, "POST"), (b"[" * 100000, CHAT, "POST"),
                                   ({"content": "x"}, "/tokenize", "POST")]:
            self.assertIsNone(key(body, path, method=method), (path, method))

    def test_a_lone_surrogate_does_no_harm(self):
        self.assertIsNotNone(key(b'{"messages": [{"role": "user", "content": "\\ud800"}]}'))
        self.assertTrue(rank(key(b'{"messages": [1], "metadata": {"session": "\\ud800"}}'), ["a", "b"]))


class RankTest(unittest.TestCase):
    replicas = [f"replica{number}" for number in range(8)]
    keys = [f"session:{number}" for number in range(4000)]

    def test_the_order_of_the_replicas_does_not_matter(self):
        for one in self.keys[:50]:
            self.assertEqual(rank(one, self.replicas), rank(one, self.replicas[::-1]))

    def test_keys_spread_evenly(self):
        counts = collections.Counter(rank(one, self.replicas)[0] for one in self.keys)
        mean = len(self.keys) / len(self.replicas)
        self.assertEqual(len(counts), len(self.replicas))
        self.assertLess(max(counts.values()), 1.2 * mean)
        self.assertGreater(min(counts.values()), 0.8 * mean)

    def test_a_replica_that_leaves_moves_its_own_keys_alone_and_spreads_them(self):
        gone, left = self.replicas[3], [name for name in self.replicas if name != self.replicas[3]]
        heirs = collections.Counter()
        for one in self.keys:
            before, after = rank(one, self.replicas), rank(one, left)
            if before[0] == gone:
                self.assertEqual(after[0], before[1])
                heirs[after[0]] += 1
            else:
                self.assertEqual(after[0], before[0])
        self.assertEqual(len(heirs), len(left))

    def test_a_replica_that_comes_takes_its_share_and_no_key_moves_elsewhere(self):
        more = [*self.replicas, "new"]
        moved = [one for one in self.keys if rank(one, more)[0] != rank(one, self.replicas)[0]]
        self.assertTrue(all(rank(one, more)[0] == "new" for one in moved))
        self.assertAlmostEqual(len(moved) / len(self.keys), 1 / len(more), delta=0.03)


class MetricsTest(unittest.TestCase):
    def test_each_replicas_samples_get_a_label_and_a_family_is_described_once(self):
        page = (b"# HELP a Things.\n# TYPE a counter\na 1\n# HELP t Time.\n# TYPE t histogram\n"
                b't_bucket{le="1"} 2\nt_sum 0.5\nt_count 2\n')
        status, _, text = metrics.merge({"r1": (200, [], page), "r2": (200, [], page)})
        self.assertEqual(status, 200)
        self.assertEqual(text.decode().splitlines(), [
            "# HELP a Things.", "# TYPE a counter", 'a{replica="r1"} 1', 'a{replica="r2"} 1',
            "# HELP t Time.", "# TYPE t histogram", 't_bucket{replica="r1",le="1"} 2', 't_sum{replica="r1"} 0.5',
            't_count{replica="r1"} 2', 't_bucket{replica="r2",le="1"} 2', 't_sum{replica="r2"} 0.5',
            't_count{replica="r2"} 2'])

    def test_a_refusal_is_passed_on(self):
        self.assertEqual(metrics.merge({"r1": (401, [("a", "b")], b"no")}), (401, [("a", "b")], b"no"))

    def test_no_replica_is_an_empty_page(self):
        self.assertEqual(metrics.merge({})[2], b"")


if __name__ == "__main__":
    unittest.main()
