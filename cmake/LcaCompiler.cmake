# Compiler settings: flags for the whole build, and lca_compile(target) for our own targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Kind of build" FORCE)
endif()

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LCA_CCACHE ccache)
  mark_as_advanced(LCA_CCACHE)
  if(LCA_CCACHE)
    set(lca_launcher ${LCA_CCACHE})
    if(NOT DEFINED ENV{CCACHE_BASEDIR})
      # Paths below it are taken relative to the build folder, so that presets with the same flags
      # share objects: cuda takes all of C++ from release.
      set(lca_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${LCA_CCACHE})
    endif()
    set(CMAKE_CXX_COMPILER_LAUNCHER ${lca_launcher})
  endif()
endif()

if(LCA_SANITIZE)
  set(lca_sanitize ${LCA_SANITIZE})
elseif(LCA_FUZZ)
  set(lca_sanitize address,undefined)
endif()
if(lca_sanitize)
  add_compile_options(-fsanitize=${lca_sanitize} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${lca_sanitize})
  add_compile_definitions(_GLIBCXX_ASSERTIONS LCA_SANITIZED)
  # For code that parses flags and prints tables: nothing in it is hot, and its arithmetic is the library's.
  set(lca_glue_options -O0)
  if(lca_sanitize MATCHES "undefined")
    list(APPEND lca_glue_options -fno-sanitize=undefined)
    # The address sanitizer reports these too, as accesses to address 0, beyond an object or to a
    # freed one; checked twice at every pointer they are a quarter of the build's time.
    add_compile_options(-fno-sanitize=null,vptr,object-size)
  endif()
endif()
if(LCA_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "LCA_FUZZ needs clang++: use the preset 'fuzz' or -DCMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
  # Fuzzers read files; of the kernels the plainest will do. The other presets have them all.
  add_compile_definitions(HWY_COMPILE_ONLY_STATIC)
endif()

# Several files at once: headers and templates take most of the time. `make lint` and the preset debug
# take each file alone, so that none leans on another's includes.
function(lca_compile_in_batches target)
  if(LCA_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")
  endif()
endfunction()

# The same with a batch for each folder of the sources.
function(lca_compile_by_folders target)
  if(LCA_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
    foreach(source IN LISTS ARGN)
      cmake_path(GET source PARENT_PATH folder)
      cmake_path(GET folder STEM folder)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
    endforeach()
  endif()
endfunction()

# Warnings, and the two freedoms the compiler may take with floating point. Nothing that changes a
# result (no -ffast-math), nothing that ties the binary to this machine (no -march).
function(lca_compile target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
    -fno-math-errno -fno-trapping-math
    # Notes about old ABIs, and false alarms about std::string in GCC 12.
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-psabi;-Wno-restrict>"
    $<$<BOOL:${LCA_WERROR}>:-Werror>)
  target_link_options(${target} PRIVATE -Wl,--as-needed)
  lca_compile_in_batches(${target})
  get_target_property(type ${target} TYPE)
  if(lca_sanitize AND type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/sanitizers/defaults.cpp)
  endif()
endfunction()
