# Of the area host, relative to src/server/host.
set(lca_server_host_sources
  host.cpp host_job.cpp host_reply.cpp prefix_cache.cpp prompt_cuts.cpp reply_book.cpp
  session_store.cpp)
