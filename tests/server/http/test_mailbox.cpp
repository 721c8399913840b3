// A box outlives the executor on which its items were received.

#include <gtest/gtest.h>

#include <boost/asio/strand.hpp>
#include <memory>
#include <thread>

#include "server/http/mailbox.h"

namespace lca::server::test {
namespace {

using Box = Mailbox<std::unique_ptr<int>>;

asio::awaitable<void> receive(asio::any_io_executor executor, std::shared_ptr<Box>& sender,
                              int& received) {
  const auto inbox = Box::make(executor);
  sender = inbox.box();
  while (co_await inbox.pop(std::chrono::hours(1))) ++received;
}

TEST(Mailboxes, ABoxMayOutliveTheReceiversExecutor) {
  std::shared_ptr<Box> sender;
  int received = 0;
  {
    asio::io_context io;
    const asio::any_io_executor executor = asio::make_strand(io);
    asio::co_spawn(executor, receive(executor, sender, received), asio::detached);
    io.run_for(std::chrono::milliseconds(1));
    ASSERT_NE(sender, nullptr);
    std::jthread([&] { sender->push(std::make_unique<int>(1)); }).join();
    io.restart();
    io.run_for(std::chrono::milliseconds(50));
    EXPECT_EQ(received, 1);
  }  // with the coroutine, which still waits
  sender->push(std::make_unique<int>(2));
  sender->close();
  EXPECT_TRUE(sender->closed());
  sender.reset();
}

TEST(Mailboxes, WhatIsThereWhenTheBoxIsClosedIsReceived) {
  std::shared_ptr<Box> sender;
  int received = 0;
  asio::io_context io;
  asio::co_spawn(io, receive(io.get_executor(), sender, received), asio::detached);
  io.run_for(std::chrono::milliseconds(1));
  sender->push(std::make_unique<int>(1));
  sender->push(std::make_unique<int>(2));
  sender->close();
  sender->push(std::make_unique<int>(3));
  io.restart();
  io.run();
  EXPECT_EQ(received, 2);
}

}  // namespace
}  // namespace lca::server::test
