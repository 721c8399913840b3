// The code of Asio that its headers leave out under BOOST_ASIO_SEPARATE_COMPILATION.

#include "server/http/asio.h"

#include <boost/asio/impl/src.hpp>
