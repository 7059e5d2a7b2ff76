# cmake -DSOURCE_DIR= -DOUT= -DFLAGS= -P BuildStamp.cmake: writes the definitions of
# cli/bench/build_stamp.h. Runs at every build, so that the commit is that of the sources and not of
# the day they were configured; the file changes only when its content does.
set(commit "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --match=
    WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE text RESULT_VARIABLE failed
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND text)
    set(commit "${text}")
  endif()
endif()
set(content "// Written by cmake/BuildStamp.cmake.
#include \"cli/bench/build_stamp.h\"

namespace linestate::cli {

const char* build_flags() { return \"${FLAGS}\"; }
const char* build_commit() { return \"${commit}\"; }

}  // namespace linestate::cli
")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL content)
  file(WRITE ${OUT} "${content}")
endif()
