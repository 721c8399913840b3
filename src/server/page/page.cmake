# lca_server_page_generated: a source with the files of the page as bytes. Include it from the directory that makes the
# target.
file(GLOB lca_page_files CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_LIST_DIR}/*.html ${CMAKE_CURRENT_LIST_DIR}/*.js ${CMAKE_CURRENT_LIST_DIR}/*.css
  ${CMAKE_CURRENT_LIST_DIR}/*.svg)
set(lca_page_names "")
foreach(lca_page_file IN LISTS lca_page_files)
  get_filename_component(lca_page_name ${lca_page_file} NAME)
  list(APPEND lca_page_names ${lca_page_name})
endforeach()
string(REPLACE ";" "," lca_page_names "${lca_page_names}")
set(lca_server_page_generated ${CMAKE_CURRENT_BINARY_DIR}/page_files.cpp)
add_custom_command(
  OUTPUT ${lca_server_page_generated}
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_CURRENT_LIST_DIR} -DOUTPUT=${lca_server_page_generated}
          -DNAMES=${lca_page_names} -P ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  DEPENDS ${lca_page_files} ${CMAKE_CURRENT_LIST_DIR}/headers.txt ${CMAKE_CURRENT_LIST_DIR}/embed.cmake
  COMMENT "Embedding the page" VERBATIM)
