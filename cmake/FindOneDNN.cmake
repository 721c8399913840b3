# Finds oneDNN (CPU, OpenMP threads) as OneDNN::OneDNN.
#
# oneDNN's own package file is not used: where the library is built with OpenCL it wants the OpenCL
# headers too, which nobody needs for the CPU.

find_path(OneDNN_INCLUDE_DIR dnnl.hpp)
find_library(OneDNN_LIBRARY dnnl)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)

if(OneDNN_INCLUDE_DIR)
  foreach(lca_header oneapi/dnnl/dnnl_version.h dnnl_version.h)
    if(EXISTS "${OneDNN_INCLUDE_DIR}/${lca_header}")
      file(STRINGS "${OneDNN_INCLUDE_DIR}/${lca_header}" lca_lines
           REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      if(lca_lines MATCHES "MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+)")
        set(OneDNN_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
        break()
      endif()
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN
  REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
  VERSION_VAR OneDNN_VERSION
  REASON_FAILURE_MESSAGE "install libdnnl-dev, or run scripts/setup.sh")

if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN::OneDNN PROPERTIES
    IMPORTED_LOCATION "${OneDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}"
    # The team of threads oneDNN uses is GNU OpenMP's, whichever compiler builds our side.
    INTERFACE_LINK_LIBRARIES gomp)
endif()
