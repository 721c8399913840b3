#include "where_flags.h"

#include "core/cpu_level.h"
#include "core/cuda/device_name.h"
#include "core/error.h"
#include "core/kernel_choice.h"
#include "core/text.h"

namespace lca::cli {
namespace {

enum class Kernels { fast, portable, reference };

Kernels kernels_parse(const TextFlag& flag) {
  static constexpr std::string_view kNames[] = {"fast", "portable", "reference"};
  return static_cast<Kernels>(choice_parse("--kernels", flag.text, kNames));
}

/// Whether `--device` names a GPU; throws Error if it names no device.
bool device_is_cuda(const TextFlag& flag) {
  if (flag.text == "cuda" || flag.text.starts_with("cuda:")) return true;
  if (flag.text == "cpu" || flag.text == "auto") return false;
  fail_input("--device must be cpu, cuda, cuda:N or auto, not \"{}\"", text_printable(flag.text));
}

int device_ordinal(const TextFlag& flag) {
  try {
    return cuda::device_parse(flag.text);
  } catch (const Error& error) {
    throw Error(error.kind(),
                fmt::format("--device {}: {}", text_printable(flag.text), error.what()));
  }
}

constexpr const char* kKernelsHelp =
    "fast: the fastest for this machine; portable: runs on every machine of its kind; reference: "
    "double precision, one layer only";

}  // namespace

void WhereFlags::add(CLI::App& app, const std::string& fallback) {
  device.add(app, "--device", "cpu|cuda|cuda:N|auto", "where it runs", fallback);
  kernels.add(app, "--kernels", "fast|portable|reference", kKernelsHelp, "fast");
}

void WhereFlags::apply() const {
  if (device_is_cuda(device)) device_ordinal(device);
  switch (kernels_parse(kernels)) {
    case Kernels::fast:
      break;
    case Kernels::portable:
      cpu_level_lower(CpuLevel::scalar);
      cuda::kernels_portable();
      break;
    case Kernels::reference:
      fail_incompatible(
          "--kernels reference: only a single layer has reference kernels (lca op attention); use "
          "portable");
  }
}

void LayerWhereFlags::add(CLI::App& app, Reference reference) {
  has_reference_ = reference == Reference::yes;
  backend.add(app, "--backend", has_reference_ ? "reference|cpu|cuda" : "cpu|cuda",
              "which implementation; follows --device and --kernels unless given");
  WhereFlags::add(app, "cpu");
  groups.add(app, "--groups", "bf16|fp8|int8", "cuda: how representatives are stored", "bf16");
}

LayerWhereFlags::Choice LayerWhereFlags::read() const {
  static constexpr std::string_view kGroups[] = {"bf16", "fp8", "int8"};
  const Kernels code = kernels_parse(kernels);
  bool on_cuda = device_is_cuda(device);
  if (device.text == "auto") on_cuda = cuda::device_count() > 0 && code != Kernels::reference;
  Choice choice;
  choice.cuda.portable = code == Kernels::portable;
  choice.cuda.groups =
      static_cast<cuda::GroupStorage>(choice_parse("--groups", groups.text, kGroups));
  choice.backend = code == Kernels::reference ? Backend::reference
                   : on_cuda                  ? Backend::cuda
                                              : Backend::cpu;
  if (on_cuda && code == Kernels::reference) {
    fail_input("--kernels reference runs on the CPU; leave --device out");
  }
  if (backend.given()) {
    static constexpr std::string_view kNames[] = {"reference", "cpu", "cuda"};
    const std::span<const std::string_view> names(kNames);
    const std::size_t skipped = has_reference_ ? 0 : 1;
    const auto asked = static_cast<Backend>(
        skipped + choice_parse("--backend", backend.text, names.subspan(skipped)));
    const bool contradicts =
        (device.given() && device.text != "auto" && on_cuda != (asked == Backend::cuda)) ||
        (kernels.given() && (code == Kernels::reference) != (asked == Backend::reference));
    if (contradicts) {
      fail_input("--backend {} contradicts {}; leave one of them out", backend.text,
                 device.given() ? "--device " + device.text : "--kernels " + kernels.text);
    }
    choice.backend = asked;
  }
  if (choice.backend == Backend::reference && !has_reference_) {
    fail_input("--kernels reference: there is nothing to measure; use fast or portable");
  }
  cuda_only_check(groups, "--groups", choice.backend == Backend::cuda);
  if (choice.backend == Backend::cuda) {
    choice.cuda.device = device_is_cuda(device) ? device_ordinal(device) : 0;
    if (!cuda::unavailable().empty()) fail_incompatible("{}", cuda::unavailable());
  } else if (code == Kernels::portable) {
    cpu_level_lower(CpuLevel::scalar);
  }
  return choice;
}

void cuda_only_check(const TextFlag& flag, const char* name, bool on_cuda) {
  if (flag.given() && !on_cuda) {
    fail_input("{} is for the GPU; add --device cuda, or leave it out", name);
  }
}

}  // namespace lca::cli
