# The version is written once, in include/linestate/version.h. Sets LINESTATE_VERSION.
set(file ${CMAKE_CURRENT_LIST_DIR}/../include/linestate/version.h)
file(STRINGS ${file} lines REGEX "^#define LINESTATE_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
list(TRANSFORM lines REPLACE "^.* " "")
list(JOIN lines "." LINESTATE_VERSION)
if(NOT LINESTATE_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
  message(FATAL_ERROR "${file}: expected MAJOR, MINOR and PATCH, got ${LINESTATE_VERSION}")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
