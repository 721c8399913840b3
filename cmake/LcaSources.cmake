# Settings of single files of lca_sources, in the library's build and in tests/arm.

# The files that are compiled for newer processors than the rest; the code that calls them asks the
# processor first. Everything else is dispatched by Highway at run time.
set(lca_src "${CMAKE_CURRENT_LIST_DIR}/../src")
cmake_path(NORMAL_PATH lca_src)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # GCC's own intrinsics begin with variables that are nowhere set, on purpose.
  set(lca_intrinsics "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>")
  set(lca_avx512 "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq")
  set_source_files_properties("${lca_src}/attention/cpu/avx512bf16.cpp" PROPERTIES COMPILE_OPTIONS
    "${lca_avx512};-mavx512bf16;${lca_intrinsics}")
  set_source_files_properties("${lca_src}/attention/cpu/avx512int8.cpp" PROPERTIES COMPILE_OPTIONS
    "${lca_avx512};-mavx512vnni;-mfma;${lca_intrinsics}")
  set_source_files_properties("${lca_src}/ops/cpu/avx512vnni.cpp" PROPERTIES COMPILE_OPTIONS
    "${lca_avx512};-mavx512vnni;-mfma;-mf16c;${lca_intrinsics}")
  set_source_files_properties("${lca_src}/ops/cpu/avx2.cpp" PROPERTIES COMPILE_OPTIONS
    "-mavx2;-mfma;-mf16c;${lca_intrinsics}")
  set(lca_newer_sources avx2.cpp avx512bf16.cpp avx512int8.cpp avx512vnni.cpp)
  set(lca_foreign "neon")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set_source_files_properties("${lca_src}/ops/cpu/neon_dotprod.cpp" PROPERTIES COMPILE_OPTIONS
    "-march=armv8.2-a+dotprod")
  set(lca_newer_sources neon_dotprod.cpp)
  set(lca_foreign "avx")
else()
  set(lca_newer_sources "")
  set(lca_foreign "(avx|neon)")
endif()
list(FILTER lca_sources EXCLUDE REGEX "/cpu/${lca_foreign}[^/]*\\.cpp$")

# Weights are packed and unpacked as ggml does, to the bit: no fused multiply-add.
set_source_files_properties("${lca_src}/ops/cpu/pack.cpp" "${lca_src}/ops/cpu/unpack.cpp"
  PROPERTIES COMPILE_OPTIONS -ffp-contract=off)

# Highway includes such a file once for each instruction set: no two of them in one unit. Those that
# stand for CUDA's are alone too, so that batches are the same with CUDA and without.
foreach(source IN LISTS lca_sources)
  file(STRINGS ${source} lca_simd_lines REGEX "hwy/|HWY_" LIMIT_COUNT 1)
  if(lca_simd_lines OR source MATCHES "/absent\\.cpp$")
    set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endforeach()
