#pragma once
/// Asio, compiled once (asio_impl.cpp) and not in every file. Include this, or asio_config.h,
/// before any header of Boost: the macros must be the same everywhere.

#include "server/http/asio_config.h"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#if defined(__GNUC__) && !defined(__clang__)
// A false alarm of GCC 12 about the frames of coroutines, which have operators of their own.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace lca::server {
namespace asio = boost::asio;
}
