"""The page's plain modules, by themselves."""

from browser import PageTest


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
            '<blockquote>quoted\ntext</blockquote><pre tabindex="0" role="group" aria-label="Code py"><code>'
            "x = '&lt;b&gt;'\n\ny</code></pre><p>after</p>",
            '<p><a href="https://b.c/d" rel="noopener noreferrer" target="_blank">a</a> [e](javascript:f) 2 * 3 * 4</p>'])

    def test_numbers_read_well(self):
        self.assertEqual(self.script("""
            return (async () => {
              const {bytes_text, seconds_text, plural} = await import('/page/format.js');
              return [bytes_text(34e6), bytes_text(189.4e6), bytes_text(999), bytes_text(999.6e3), bytes_text(1.25e9),
                      seconds_text(3.21), seconds_text(59.7), seconds_text(61), seconds_text(7300), plural(1, 'token')];
            })();"""), ["34 MB", "189 MB", "999 B", "1.0 MB", "1.3 GB", "3.2 s", "60 s", "1 min 1 s", "2 h 1 min", "1 token"])
