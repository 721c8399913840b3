#include "eval/key_words.h"

#include <array>

namespace lca::eval {
namespace {

constexpr std::array<std::string_view, 120> kKeyAdjectives = {
    "able",   "amber",  "ancient", "annual", "awake",   "basic",  "bitter",  "blank",  "bold",
    "brave",  "brief",  "bright",  "broad",  "busy",    "calm",   "careful", "cheap",  "cheerful",
    "clean",  "clever", "cloudy",  "cold",   "common",  "crisp",  "curious", "curly",  "daily",
    "damp",   "dark",   "dear",    "deep",   "distant", "dizzy",  "double",  "dry",    "dusty",
    "eager",  "early",  "easy",    "elder",  "empty",   "equal",  "exact",   "faint",  "fair",
    "famous", "fancy",  "fast",    "fierce", "final",   "firm",   "flat",    "fluffy", "formal",
    "frail",  "free",   "fresh",   "funny",  "gentle",  "giant",  "glad",    "grand",  "great",
    "green",  "happy",  "harsh",   "heavy",  "hidden",  "hollow", "honest",  "humble", "hungry",
    "icy",    "idle",   "jolly",   "keen",   "kind",    "large",  "late",    "lazy",   "little",
    "lively", "lonely", "loud",    "loyal",  "lucky",   "mild",   "modern",  "narrow", "neat",
    "noisy",  "odd",    "patient", "plain",  "polite",  "proud",  "purple",  "quick",  "quiet",
    "rapid",  "rare",   "ripe",    "rough",  "round",   "rusty",  "salty",   "secret", "shallow",
    "sharp",  "shiny",  "silent",  "simple", "sleepy",  "slow",   "smooth",  "solid",  "strange",
    "sweet",  "tidy",   "young"};

constexpr std::array<std::string_view, 160> kKeyNouns = {
    "actor",    "airport", "album",    "apple",    "apron",    "artist",  "atlas",    "autumn",
    "badge",    "bakery",  "balcony",  "banana",   "banjo",    "bar",     "barrel",   "battery",
    "beach",    "bicycle", "biscuit",  "blanket",  "blossom",  "board",   "bottle",   "bowl",
    "bread",    "bridge",  "brother",  "brush",    "bucket",   "button",  "cabin",    "cable",
    "cactus",   "camera",  "candle",   "carpet",   "carrot",   "ceiling", "chair",    "cheese",
    "cherry",   "chimney", "circus",   "clock",    "cloud",    "coffee",  "comet",    "cookie",
    "corner",   "cottage", "cousin",   "cradle",   "crayon",   "cricket", "crown",    "curtain",
    "dancer",   "desk",    "dinner",   "doctor",   "dolphin",  "donkey",  "door",     "drawer",
    "drum",     "eagle",   "elbow",    "engine",   "farmer",   "feather", "festival", "finger",
    "flute",    "forest",  "fountain", "fridge",   "garden",   "ghost",   "giraffe",  "glove",
    "grape",    "guitar",  "hammer",   "harbor",   "helmet",   "hotel",   "insect",   "island",
    "jacket",   "jungle",  "kettle",   "kitchen",  "kitten",   "ladder",  "lamp",     "lantern",
    "lawyer",   "lemon",   "letter",   "lizard",   "magnet",   "market",  "melon",    "mirror",
    "monkey",   "museum",  "napkin",   "needle",   "notebook", "ocean",   "office",   "onion",
    "orange",   "oven",    "painter",  "palace",   "parrot",   "pencil",  "pepper",   "piano",
    "picnic",   "pillow",  "pilot",    "planet",   "pocket",   "potato",  "puzzle",   "rabbit",
    "radio",    "railway", "ribbon",   "river",    "robot",    "rocket",  "sailor",   "salad",
    "sandwich", "saucer",  "school",   "scissors", "shadow",   "singer",  "soldier",  "spider",
    "spoon",    "stadium", "station",  "summer",   "sweater",  "teacher", "temple",   "tiger",
    "tomato",   "tractor", "trumpet",  "tunnel",   "umbrella", "valley",  "violin",   "wallet"};

}  // namespace

std::span<const std::string_view> key_adjectives() { return kKeyAdjectives; }
std::span<const std::string_view> key_nouns() { return kKeyNouns; }

std::string key_draw(Draw& draw) {
  std::string key(kKeyAdjectives[draw.below(kKeyAdjectives.size())]);
  key += '-';
  return key += kKeyNouns[draw.below(kKeyNouns.size())];
}

}  // namespace lca::eval
