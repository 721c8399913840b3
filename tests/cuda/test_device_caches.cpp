// Sequences on the GPU that join, leave, go back and fork, with other settings in every layer.

#include "models/cuda/device_caches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cuda/cache/random_fill.h"
#include "cuda/resident.h"
#include "cuda/resident_specs.h"

namespace lca::test {
namespace {

std::vector<std::vector<std::byte>> saved(const cuda::DeviceCaches& caches) {
  std::vector<std::vector<std::byte>> bytes;
  for (const Cache& cache : caches.to_host()) bytes.push_back(cache.save());
  return bytes;
}

std::unique_ptr<cuda::DeviceCaches> device_caches(std::unique_ptr<SequenceCaches> caches) {
  return std::unique_ptr<cuda::DeviceCaches>(static_cast<cuda::DeviceCaches*>(caches.release()));
}

/// Bit for bit, up to where both are: steps that were rolled back left outputs behind that.
void expect_same_outputs(const Talk& one, const Talk& other, const std::string& what) {
  ASSERT_EQ(one.position(), other.position()) << what;
  const auto same = [&](const std::vector<float>& a, const std::vector<float>& b,
                        std::int64_t width) {
    return std::memcmp(a.data(), b.data(),
                       static_cast<std::size_t>(one.position() * width) * sizeof(float)) == 0;
  };
  for (std::size_t l = 0; l < one.paths.size(); ++l) {
    const Path &a = one.paths[l], &b = other.paths[l];
    const AttentionShape& shape = a.tokens.shape;
    EXPECT_TRUE(same(a.out, b.out, shape.heads * shape.d_value)) << what << ": out, layer " << l;
    EXPECT_TRUE(same(a.lse, b.lse, shape.heads)) << what << ": lse, layer " << l;
  }
}

void expect_same(const Talk& one, const Talk& other, const std::string& what) {
  expect_same_outputs(one, other, what);
  EXPECT_TRUE(saved(*one.caches) == saved(*other.caches)) << what << ": caches";
}

class CudaCachesOf : public ::testing::TestWithParam<CachesShape> {
 protected:
  void SetUp() override {
    LCA_NEEDS_GPU();
    model_.emplace(mixed_specs(shape()), random);
  }
  const AttentionShape& shape() const { return GetParam().shape; }
  std::string name() const { return GetParam().name; }
  Resident& model() { return *model_; }

  Random random{9500};

 private:
  std::optional<Resident> model_;
};

TEST_P(CudaCachesOf, SequencesJoinAndLeaveABatchInAnyOrder) {
  Tally tally{.tolerance = 8e-3};
  std::vector<Talk> talks;
  constexpr std::size_t kTalks = 6;
  constexpr std::int64_t kEach = 180;
  for (std::size_t i = 0; i < kTalks; ++i) talks.push_back(model().talk(60, kEach, random));
  while (true) {
    std::vector<Talk*> waiting;
    for (Talk& talk : talks) {
      if (talk.position() < kEach) waiting.push_back(&talk);
    }
    if (waiting.empty()) break;
    // Some of them, in any order: a chunk of different sizes, or a step.
    for (std::size_t i = waiting.size(); i > 1; --i) {
      std::swap(
          waiting[i - 1],
          waiting[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
    }
    waiting.resize(
        static_cast<std::size_t>(random.integer(1, static_cast<std::int64_t>(waiting.size()))));
    if (random.chance(0.2)) {
      std::vector<std::int64_t> counts;
      for (const Talk* talk : waiting) {
        counts.push_back(random.integer(1, std::min<std::int64_t>(40, kEach - talk->position())));
      }
      model().chunk(waiting, counts, random.chance(0.8));
    } else {
      model().decode(waiting, random.chance(0.9));
    }
  }
  for (std::size_t i = 0; i < kTalks; ++i) {
    model().check(talks[i], fmt::format("{} sequence {}", name(), i), tally);
  }
  finish(tally);
}

TEST_P(CudaCachesOf, AStepThatIsRolledBackChangesNothing) {
  Talk talk = model().talk(70, 150, random);
  Talk straight{model().open(), talk.paths};
  const auto both = [&](const auto& step) {
    step(talk);
    step(straight);
  };
  for (const std::int64_t count : {5, 33, 32}) {
    const auto before = saved(*talk.caches);
    model().chunk(talk, count + 20, false);
    model().chunk(talk, count, false);
    if (talk.position() > 0) model().decode(talk, 1, false);
    EXPECT_TRUE(saved(*talk.caches) == before) << name();
    both([&](Talk& one) { model().chunk(one, count); });
  }
  for (int i = 0; i < 40; ++i) {
    model().decode(talk, 1, false);
    if (i % 7 == 0) model().chunk(talk, 25, false);
    both([&](Talk& one) { model().decode(one); });
  }
  expect_same(talk, straight, name());
}

TEST_P(CudaCachesOf, ForksShareRepresentativesAndGoTheirOwnWays) {
  constexpr std::int64_t kShared = 190;  // groups end inside a page in both layers
  Talk talk = model().talk(kShared, 300, random);
  Talk other = model().talk(kShared, 300, random);
  model().chunk(talk, kShared);
  const int pages = talk.caches->store().pages_held();
  EXPECT_EQ(talk.caches->shared_bytes(), 0u);
  Talk fork{device_caches(talk.caches->fork()), talk.paths};
  EXPECT_EQ(talk.caches->store().pages_held(), pages) << "a fork copies no page by itself";
  EXPECT_GT(fork.caches->shared_bytes(), 0u);
  EXPECT_EQ(fork.caches->bytes(), talk.caches->bytes());
  EXPECT_TRUE(saved(*fork.caches) == saved(*talk.caches));
  // Another fork goes on with other tokens, in between.
  Talk stranger{device_caches(talk.caches->fork()), other.paths};
  stranger.back_to(kShared);
  model().decode(talk, 10);
  model().decode(stranger, 30);
  model().decode(fork, 10);
  model().chunk(stranger, 40);
  model().chunk(talk, 50);
  model().chunk(fork, 50);
  expect_same(talk, fork, name());
  stranger.caches.reset();
  fork.caches.reset();
  EXPECT_EQ(talk.caches->shared_bytes(), 0u) << "the others are gone";
  Tally tally{.tolerance = 8e-3};
  model().decode(talk, 50);
  model().check(talk, name(), tally);
}

TEST_P(CudaCachesOf, ASequenceReturnsToItsMarks) {
  Talk talk = model().talk(100, 300, random);
  Talk other = model().talk(100, 300, random);
  model().chunk(talk, 100);
  const auto first = talk.caches->mark();
  const auto first_saved = saved(*talk.caches);
  model().decode(talk, 30);
  const auto second = talk.caches->mark();
  const auto second_saved = saved(*talk.caches);
  EXPECT_EQ(second->position(), 130);
  EXPECT_GT(second->bytes(), 0u);
  model().chunk(talk, 100);
  const Talk straight{nullptr, talk.paths};
  const auto end = saved(*talk.caches);

  // A fork at the first mark, which goes another way, and back to the second.
  Talk fork{device_caches(talk.caches->fork_at(*first)), other.paths};
  EXPECT_TRUE(saved(*fork.caches) == first_saved);
  fork.back_to(100);
  model().decode(fork, 60);

  talk.caches->rewind(*second);
  EXPECT_TRUE(saved(*talk.caches) == second_saved);
  talk.back_to(130);
  model().chunk(talk, 100);
  EXPECT_TRUE(saved(*talk.caches) == end) << name();
  expect_same_outputs(talk, straight, name());
  talk.caches->rewind(*first);
  EXPECT_TRUE(saved(*talk.caches) == first_saved);
  talk.back_to(100);
  model().decode(talk, 30);
  EXPECT_TRUE(saved(*talk.caches) == second_saved) << name();
}

TEST_P(CudaCachesOf, MarksGoToTheHostAndBack) {
  Talk talk = model().talk(100, 220, random);
  model().chunk(talk, 100);
  const auto mark = talk.caches->mark();
  const auto marked = saved(*talk.caches);
  model().chunk(talk, 60);
  const auto kept = talk.caches->mark_to_host(*mark);
  EXPECT_FALSE(kept[1]) << "a dense layer is cut back";

  // Another sequence with the same contents, by way of the host, as a file does it.
  const cuda::DeviceCaches loaded(model().stores(), talk.caches->to_host());
  EXPECT_TRUE(saved(loaded) == saved(*talk.caches));
  std::vector<std::optional<Cache>> given(kept.size());
  for (std::size_t l = 0; l < kept.size(); ++l) {
    if (kept[l]) given[l] = kept[l]->clone();
  }
  const auto again = loaded.mark_from_host(100, std::move(given));
  Talk fork{device_caches(loaded.fork_at(*again)), talk.paths};
  EXPECT_TRUE(saved(*fork.caches) == marked);
  fork.back_to(100);
  model().decode(fork, 60);
  talk.caches->rewind(*mark);
  talk.back_to(100);
  model().decode(talk, 60);
  expect_same(talk, fork, name());
}

TEST_P(CudaCachesOf, ACutSequenceGoesOnAsIfItHadNeverBeenLonger) {
  std::vector<LayerSpec> specs = mixed_specs(shape());
  specs.pop_back();  // a sliding window can never be cut
  Resident model(specs, random);
  Talk talk = model.talk(100, 260, random);
  Talk straight{model.open(), talk.paths};
  Talk other = model.talk(100, 260, random);
  model.chunk(talk, 100);
  model.chunk(straight, 100);
  int cuts = 0;
  while (talk.position() < 250) {
    // On with other tokens, as far as can be cut back.
    const std::int64_t length = talk.position();
    const auto can_return = [&](std::int64_t more) {
      return std::ranges::all_of(specs, [&](const LayerSpec& spec) {
        const Layout layout(spec.settings);
        return layout.shortest_prefix(layout.dropped(length + more)) <= length;
      });
    };
    std::int64_t more = 0;
    while (can_return(more + 1) && more < 5) ++more;
    std::swap(talk.paths, other.paths);
    talk.back_to(length);
    if (more > 1 && cuts % 2 == 0) {
      model.chunk(talk, more);
    } else {
      model.decode(talk, more);
    }
    std::swap(talk.paths, other.paths);
    talk.back_to(length);
    EXPECT_THROW(talk.caches->truncate(length + more + 1), Error);
    talk.caches->truncate(length);
    EXPECT_EQ(talk.caches->length(), length);
    cuts += more > 0 ? 1 : 0;
    for (Talk* one : {&talk, &straight}) {
      if (length % 3 == 0) {
        model.chunk(*one, 7);
      } else {
        model.decode(*one, 1);
      }
    }
    if (talk.caches->truncate_floor() > 0) {
      EXPECT_THROW(talk.caches->truncate(talk.caches->truncate_floor() - 1), Error);
    }
  }
  EXPECT_GT(cuts, 5);
  expect_same_outputs(talk, straight, name());
}

/// One sequence, its forks and marks, at random: wherever they have been, every one of them ends
/// where the reference does.
TEST_P(CudaCachesOf, AnyHistoryLeadsToTheSameSequence) {
  Tally tally{.tolerance = 8e-3};
  constexpr std::int64_t kEnd = 240;
  struct Branch {
    Talk talk;
    std::vector<std::shared_ptr<const SequenceMark>> marks;
  };
  std::vector<Branch> branches;
  branches.push_back({model().talk(40, kEnd, random), {}});
  for (int i = 0; i < 250; ++i) {
    Branch& branch =
        branches[static_cast<std::size_t>(random.integer(0, std::ssize(branches) - 1))];
    Talk& talk = branch.talk;
    const std::int64_t left = kEnd - talk.position();
    const double what = random.unit();
    if (what < 0.15 && left > 0) {
      model().chunk(talk, random.integer(1, std::min<std::int64_t>(left, 45)), random.chance(0.8));
    } else if (what < 0.6 && left > 0) {
      model().decode(talk, random.integer(1, std::min<std::int64_t>(left, 4)));
    } else if (what < 0.65 && left > 0) {
      model().decode(talk, 1, false);
    } else if (what < 0.75) {
      branch.marks.push_back(talk.caches->mark());
    } else if (what < 0.83 && !branch.marks.empty()) {
      const auto at = static_cast<std::size_t>(random.integer(0, std::ssize(branch.marks) - 1));
      talk.caches->rewind(*branch.marks[at]);
      talk.back_to(branch.marks[at]->position());
      const std::int64_t position = talk.position();
      std::erase_if(branch.marks, [&](const auto& m) { return m->position() > position; });
    } else if (what < 0.88) {
      const std::int64_t floor = talk.caches->truncate_floor();
      const std::int64_t to = random.integer(floor, talk.position());
      talk.caches->truncate(to);
      talk.back_to(to);
      std::erase_if(branch.marks, [&](const auto& m) { return m->position() > to; });
    } else if (what < 0.94 && branches.size() < 6) {
      Branch fork{{nullptr, talk.paths}, branch.marks};
      if (!branch.marks.empty() && random.chance(0.5)) {
        fork.talk.caches = device_caches(talk.caches->fork_at(*branch.marks.back()));
        fork.talk.back_to(branch.marks.back()->position());
        const std::int64_t position = fork.talk.position();
        std::erase_if(fork.marks, [&](const auto& m) { return m->position() > position; });
      } else {
        fork.talk.caches = device_caches(talk.caches->fork());
      }
      branches.push_back(std::move(fork));
    } else if (what < 0.97) {
      talk.caches = std::make_unique<cuda::DeviceCaches>(model().stores(), talk.caches->to_host());
      branch.marks.clear();
    } else if (branches.size() > 2) {
      branches.erase(branches.begin());
    }
  }
  for (std::size_t i = 0; i < branches.size(); ++i) {
    Talk& talk = branches[i].talk;
    while (talk.position() < kEnd) model().decode(talk);
    model().check(talk, fmt::format("{} branch {}", name(), i), tally);
  }
  finish(tally);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCachesOf, ::testing::ValuesIn(caches_shapes()),
                         [](const auto& one) { return "Shape" + std::to_string(one.index); });

TEST(CudaCaches, RandomContentsAreFiniteAndEachSequencesOwn) {
  LCA_NEEDS_GPU();
  for (const cuda::GroupType type : {cuda::GroupType::bf16, cuda::GroupType::fp8}) {
    Random random(9980);
    Resident model(mixed_specs(caches_shapes()[0].shape), random,
                   {.sequences = 8, .longest = 400, .poison = true}, cuda::Kernels::fast, type);
    Talk one = model.talk(1, 250, random);
    Talk two{model.open(), one.paths};
    cuda::cache_fill_random(one.caches->sequence(), 200, 1, model.stream().queue());
    cuda::cache_fill_random(two.caches->sequence(), 200, 2, model.stream().queue());
    EXPECT_EQ(one.caches->length(), 200);
    EXPECT_FALSE(saved(*one.caches) == saved(*two.caches));
    for (Talk* talk : {&one, &two}) {
      talk->back_to(200);
      model.decode(*talk, 25);
      model.chunk(*talk, 25);
      for (std::size_t l = 0; l < talk->paths.size(); ++l) {
        const Path& path = talk->paths[l];
        const auto from =
            path.out.begin() + 200 * path.tokens.shape.heads * path.tokens.shape.d_value;
        EXPECT_TRUE(std::all_of(from, path.out.end(), [](float x) { return std::isfinite(x); }))
            << "layer " << l;
      }
    }
    EXPECT_NE(one.paths[0].out.back(), two.paths[0].out.back());
  }
}

TEST(CudaCaches, DifferentSettingsGetStoresOfTheirOwn) {
  LCA_NEEDS_GPU();
  Random random(9990);
  std::vector<LayerSpec> specs = mixed_specs(caches_shapes()[1].shape);
  Resident model(specs, random);
  const auto one = model.open();
  const auto two = model.open();
  EXPECT_EQ(&one->store(), &two->store());
  EXPECT_EQ(one->store().kind(0), 0);
  EXPECT_EQ(one->store().kind(3), 3);
  const std::uint64_t id = one->store().id();
  specs[0].settings.group = 5;
  {
    const cuda::DeviceCaches other(model.stores(), specs);
    EXPECT_NE(other.store().id(), id);
  }
  const std::uint64_t other = cuda::DeviceCaches(model.stores(), specs).store().id();
  EXPECT_EQ(cuda::DeviceCaches(model.stores(), specs).store().id(), other)
      << "an idle store is kept";
  specs.pop_back();
  EXPECT_THROW(cuda::DeviceCaches(model.stores(), specs), Error);
}

}  // namespace
}  // namespace lca::test
