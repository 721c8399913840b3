#pragma once
/// Asio, compiled once (asio_impl.cpp) and not in every file. Include this and never boost/asio
/// first: the macros must be the same everywhere.

#ifndef BOOST_ASIO_SEPARATE_COMPILATION
#define BOOST_ASIO_SEPARATE_COMPILATION
#endif
#ifndef BOOST_ASIO_NO_DEPRECATED
#define BOOST_ASIO_NO_DEPRECATED
#endif
// Beast asks for none of these, and without Boost.Context there is one library less.
#ifndef BOOST_ASIO_DISABLE_BOOST_COROUTINE
#define BOOST_ASIO_DISABLE_BOOST_COROUTINE
#endif

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
