# C++ tests of the page. The Selenium tests (test_page.py) are run by a script: they need a browser.
list(APPEND lca_server_test_sources ${CMAKE_CURRENT_LIST_DIR}/test_page_files.cpp)
