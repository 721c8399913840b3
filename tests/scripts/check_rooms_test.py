"""Builds small trees and looks at what scripts/check_rooms.py says about them."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_rooms  # noqa: E402


class CheckRooms(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check_rooms.check(root)

    def test_a_room_may_use_the_rooms_below_itself_and_others_libraries(self):
        self.assertEqual([], self.check({
            "include/lca/a.h": "#include <vector>\n",
            "include/lca/b.h": "#include <lca/a.h>\n#include <cstdint>\n",
            "src/core/x.h": "#include <lca/b.h>\n#include <fmt/format.h>\n",
            "src/attention/cpu/y.cpp": '#include "core/x.h"\n#include "z.h"\n',
            "src/attention/cpu/z.h": "",
        }))

    def test_a_room_may_not_reach_up(self):
        self.assertEqual(["src/core/x.cpp:2: core may not use attention (attention/y.h)"],
                         self.check({"src/core/x.cpp": '\n#include "attention/y.h"\n',
                                     "src/attention/y.h": ""}))

    def test_reaching_up_by_a_relative_path_is_seen(self):
        self.assertEqual(["src/ops/x.cpp:1: ops may not use methods (../methods/y.h)"],
                         self.check({"src/ops/x.cpp": '#include "../methods/y.h"\n',
                                     "src/methods/y.h": ""}))

    def test_the_server_may_not_use_kernels_though_they_are_below_it(self):
        self.assertEqual(["src/server/x.cpp:1: server may not use ops (ops/y.h)"],
                         self.check({"src/server/x.cpp": '#include "ops/y.h"\n',
                                     "src/ops/y.h": ""}))

    def test_the_library_may_not_use_the_program(self):
        found = self.check({"src/core/x.cpp": '#include "../../apps/lca/y.h"\n', "apps/lca/y.h": ""})
        self.assertEqual(["src/core/x.cpp:1: core may not use apps/lca/y.h"], found)

    def test_public_headers_may_not_show_others_types_nor_ours_from_inside(self):
        found = self.check({"include/lca/a.h": '#include <fmt/format.h>\n#include "core/x.h"\n',
                            "src/core/x.h": ""})
        self.assertEqual(2, len(found))
        self.assertTrue(found[0].startswith("include/lca/a.h:1: "))
        self.assertTrue(found[1].startswith("include/lca/a.h:2: "))

    def test_a_quoted_include_that_is_no_file_of_the_project_is_named(self):
        self.assertEqual(1, len(self.check({"src/core/x.cpp": '#include "core/none.h"\n'})))

    def test_a_folder_that_is_no_room_is_named(self):
        self.assertEqual(1, len(self.check({"src/utils/x.cpp": ""})))


if __name__ == "__main__":
    unittest.main()
