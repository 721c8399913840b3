# Sources of the metrics, relative to src/server/.
set(lca_server_metrics_sources metrics/registry.cpp)
