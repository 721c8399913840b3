# Writes the files of the page as a C++ source.
#
#   cmake -DFOLDER=src/server/page -DOUTPUT=page_files.cpp "-DNAMES=index.html,app.js,…" -P embed.cmake

string(REPLACE "," ";" NAMES "${NAMES}")
set(type_html "text/html; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_svg "image/svg+xml")

# Chars, not a string literal: those have a longest length.
function(array_write variable file)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," chars "${hex}")
  file(APPEND ${OUTPUT}.new "constexpr char ${variable}[] = {\n${chars}\n};\n")
endfunction()

file(WRITE ${OUTPUT}.new "// Written by embed.cmake.\n#include \"server/page/page_files.h\"\n\nnamespace lca::server {\nnamespace {\n")
set(table "")
set(number 0)
foreach(name IN LISTS NAMES)
  array_write(page_bytes_${number} ${FOLDER}/${name})
  file(SHA256 ${FOLDER}/${name} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(REGEX REPLACE "^.*\\." "" kind ${name})
  if(NOT type_${kind})
    message(FATAL_ERROR "${name}: no content type for .${kind}; add one to embed.cmake")
  endif()
  string(APPEND table "    {\"${name}\", \"${type_${kind}}\", \"\\\"${hash}\\\"\", "
                      "{page_bytes_${number}, sizeof page_bytes_${number}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
array_write(page_headers ${FOLDER}/headers.txt)
file(APPEND ${OUTPUT}.new "constexpr PageFile page_table[] = {\n${table}};\n}  // namespace\n
std::span<const PageFile> embedded_files() { return page_table; }
std::string_view embedded_headers() { return {page_headers, sizeof page_headers}; }\n
}  // namespace lca::server\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
