# C++ tests of the page, relative to tests/server/. run.sh runs the tests in a browser.
set(lca_server_page_tests page/test_page_files.cpp)
