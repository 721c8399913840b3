# Tests of the metrics, relative to tests/server/.
set(lca_server_metrics_tests metrics/test_registry.cpp)
