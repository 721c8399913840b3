# Installs a build, then configures, builds and runs the consumers against what was installed.
#
#   cmake -D BUILD=… -D SOURCE=… -D COMPILER=… -P check.cmake
#
# `ask` is the program of the README, byte for byte; on a tiny checkpoint it must stream the text
# that `lca run` gives. `layer` checks one attention layer by itself.

set(work ${BUILD}/consumer)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Runs a program; the bytes it writes to standard output, without line ends at the end, as
# hexadecimal digits.
function(text_of result)
  execute_process(COMMAND ${ARGN} OUTPUT_FILE ${work}/stdout COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${work}/stdout text HEX)
  string(REGEX REPLACE "(0a)+$" "" text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# Runs a program that must fail with the code and one line on standard error that holds the words.
function(must_fail code words)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
    ERROR_VARIABLE error)
  if(NOT result STREQUAL "${code}" OR NOT output STREQUAL "" OR
     NOT error MATCHES "^ask: [^\n]*${words}[^\n]*\n$")
    message(FATAL_ERROR "${ARGN}: expected exit code ${code} and a line about \"${words}\"; got "
      "${result}, \"${output}\", \"${error}\"")
  endif()
endfunction()

# --- the README's program is the one that is built ---------------------------------------------
file(READ ${SOURCE}/../../README.md readme)
file(READ ${SOURCE}/ask.cpp program)
string(FIND "${readme}" "```cpp\n${program}```\n" at)
if(at EQUAL -1)
  message(FATAL_ERROR "README.md does not show tests/consumer/ask.cpp as it is")
endif()
string(REGEX MATCHALL "\n" lines "${program}")
list(LENGTH lines count)
if(count GREATER 25)
  message(FATAL_ERROR "tests/consumer/ask.cpp has ${count} lines; the README promises 25 at most")
endif()

# --- install, build, run -------------------------------------------------------------------------
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${work}/build -G Ninja
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/layer)

find_program(python NAMES python3 REQUIRED)
run(${python} -B ${SOURCE}/make_model.py ${SOURCE}/../golden/tokenizers/qwen2.json ${work}/model)
set(model ${work}/model)
set(document ${work}/model/document.txt)
set(question "How many ships came on the third day?")
text_of(answer ${work}/build/ask ${model} ${document} ${question})
string(LENGTH "${answer}" digits)
if(digits LESS 100)
  message(FATAL_ERROR "the answer of a model that does not end by itself has ${digits}/2 bytes")
endif()
must_fail(2 "no/such/model" ${work}/build/ask no/such/model ${document} ${question})
must_fail(2 "no/such/document" ${work}/build/ask ${model} no/such/document ${question})
must_fail(2 "QUESTION" ${work}/build/ask ${model})

# The command line is installed only where it was built.
if(EXISTS ${BUILD}/bin/lca)
  run(${work}/prefix/bin/lca --version)
  text_of(wanted ${work}/prefix/bin/lca run ${model} --file ${document} -p ${question})
  if(NOT answer STREQUAL wanted)
    message(FATAL_ERROR "ask streams another text than lca run:\n${answer}\n${wanted}")
  endif()
endif()
