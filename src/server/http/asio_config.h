#pragma once
/// How Asio is compiled, the same in every file.

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
