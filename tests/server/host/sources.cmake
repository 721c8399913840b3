#Of the area host, relative to tests / server / host.
set(lca_server_host_tests test_host.cpp test_prefix.cpp test_sessions.cpp)
