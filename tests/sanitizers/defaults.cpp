// Options and suppressions of the sanitizers, linked into every program of a sanitized build. The
// environment (ASAN_OPTIONS and so on) overrides them.

extern "C" {

// Not detect_stack_use_after_return: GCC 12 does not align 64-byte vectors on the fake stack that
// it needs, and the kernels crash on them.
const char* __asan_default_options() { return "strict_string_checks=1"; }

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

const char* __tsan_default_options() { return "halt_on_error=1"; }

// Uninstrumented libraries that keep memory until the process ends, by design.
const char* __lsan_default_suppressions() {
  return "leak:libdnnl.so\n"
         "leak:libgomp.so\n"
         "leak:libOpenCL.so\n";
}

// Uninstrumented libraries, whose synchronisation is invisible to the sanitizer.
const char* __tsan_default_suppressions() {
  return "called_from_lib:libdnnl.so\n"
         "called_from_lib:libgomp.so\n"
         "race:libdnnl.so\n"
         "race:libgomp.so\n";
}

const char* __lsan_default_options() { return "print_suppressions=0"; }

}  // extern "C"
