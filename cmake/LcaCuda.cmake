# The CUDA half of the library. Two kinds of sources, by name:
#   *_sm90.cu  Hopper's own instructions (TMA, wgmma): sm_90a alone
#   other .cu  every GPU since sm_80: machine code for LCA_CUDA_PORTABLE, PTX for what comes later

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "LCA_CUDA needs nvcc: install the CUDA toolkit (13.0) and put nvcc on PATH, "
                      "or build without CUDA: make build")
endif()
if(lca_launcher AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${lca_launcher})
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # each source says its own
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit 12.8 REQUIRED)

set(LCA_CUDA_PORTABLE "80;90" CACHE STRING
    "GPUs with machine code of the portable kernels; the last has PTX for what comes later")

set(lca_cutlass "${PROJECT_SOURCE_DIR}/.cache/cutlass/include" CACHE PATH "CuTe's headers")
if(NOT EXISTS ${lca_cutlass}/cute/arch/mma_sm90_gmma.hpp)
  message(FATAL_ERROR "CuTe's headers are not in ${lca_cutlass}: run scripts/cutlass.py, or make cuda")
endif()

file(GLOB_RECURSE lca_cuda_sources CONFIGURE_DEPENDS src/*.cu)
file(GLOB_RECURSE lca_cuda_hosts CONFIGURE_DEPENDS src/*.cpp)
list(FILTER lca_cuda_hosts INCLUDE REGEX "/src/[a-z]+/cuda/")
list(FILTER lca_cuda_hosts EXCLUDE REGEX "/absent\\.cpp$")

# Objects of their own, so that every other source is compiled with the flags of a build without
# CUDA, to the letter: the compiler cache then has them already.
function(lca_cuda_objects target)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_sm90\\.cu$")
      set(targets "-gencode=arch=compute_90a,code=sm_90a")
    elseif(source MATCHES "\\.cu$")
      set(targets "")
      foreach(number IN LISTS LCA_CUDA_PORTABLE)
        list(APPEND targets "-gencode=arch=compute_${number},code=sm_${number}")
      endforeach()
      list(GET LCA_CUDA_PORTABLE -1 number)
      list(APPEND targets "-gencode=arch=compute_${number},code=compute_${number}")
    else()
      continue()
    endif()
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
      "${targets};--expt-relaxed-constexpr;-Xcompiler=-Wno-psabi")
  endforeach()
  add_library(${target} OBJECT ${ARGN})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  lca_compile_in_batches(${target})  # of C++; a .cu has options of its own and stays alone
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(${target} SYSTEM PRIVATE ${lca_cutlass} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE fmt::fmt)
  # Without -Wshadow: GCC counts the type bf16 as shadowed by enumerators that are called so.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wnon-virtual-dtor;-Woverloaded-virtual>"
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-psabi;-Wno-restrict>"
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${LCA_WERROR}>>:-Werror>")
endfunction()

lca_cuda_objects(lca-cuda ${lca_cuda_sources} ${lca_cuda_hosts})
target_sources(lca PRIVATE $<TARGET_OBJECTS:lca-cuda>)

# Benchmarks are part of the program, not of the library that is installed: apps/ adds them.
set(lca_bench_folder ${PROJECT_SOURCE_DIR}/bench/cuda)
file(GLOB lca_cuda_bench CONFIGURE_DEPENDS ${lca_bench_folder}/*.cu ${lca_bench_folder}/*.cpp)
list(FILTER lca_cuda_bench EXCLUDE REGEX "/absent\\.cpp$")
lca_cuda_objects(lca-cuda-bench ${lca_cuda_bench})
target_include_directories(lca-cuda-bench PRIVATE ${PROJECT_SOURCE_DIR})

# CUDA's runtime goes into the program, so that it starts where there is no driver and can say so.
# cuBLASLt stays a shared library: it is larger than everything else together.
target_link_libraries(lca PRIVATE $<LINK_ONLY:CUDA::cudart_static> $<LINK_ONLY:CUDA::cublasLt>)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # where cuBLASLt lies
