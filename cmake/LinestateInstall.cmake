# The shared library, the CMake and pkg-config packages, and `make package`.
#
# Whatever a program that links the static library needs is listed here, once for each way to find
# it; include this file after the lists are complete.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

option(LINESTATE_INSTALL "Install rules and packages" ${PROJECT_IS_TOP_LEVEL})

# Arguments of find_dependency(), and the linker's words for the same.
list(APPEND LINESTATE_STATIC_DEPENDENCIES "OpenMP REQUIRED COMPONENTS CXX")
list(APPEND LINESTATE_STATIC_LIBRARIES -lstdc++ -lgomp -lm -lpthread)
if(LINESTATE_CUDA)
  list(APPEND LINESTATE_STATIC_DEPENDENCIES "CUDAToolkit REQUIRED")
  list(APPEND LINESTATE_STATIC_LIBRARIES
    -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl)
endif()

if(TARGET hwy::hwy)
  list(APPEND LINESTATE_STATIC_DEPENDENCIES "hwy REQUIRED")
  list(PREPEND LINESTATE_STATIC_LIBRARIES -lhwy)
endif()

# Before 1.0 every minor version may break the C++ interface.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(LINESTATE_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(LINESTATE_COMPATIBILITY SameMinorVersion)
else()
  set(LINESTATE_SOVERSION ${PROJECT_VERSION_MAJOR})
  set(LINESTATE_COMPATIBILITY SameMajorVersion)
endif()

# The same objects as the static library's, so it costs a link and no second compilation. What it
# exports is cmake/linestate.map and nothing else; tools/symbols.py keeps that file.
set(LINESTATE_SYMBOL_MAP ${PROJECT_SOURCE_DIR}/cmake/linestate.map)
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/shared.cc CONTENT "")
add_library(linestate_shared SHARED ${PROJECT_BINARY_DIR}/generated/shared.cc)
set_target_properties(linestate_shared PROPERTIES
  OUTPUT_NAME linestate
  EXPORT_NAME shared
  VERSION ${PROJECT_VERSION}
  SOVERSION ${LINESTATE_SOVERSION}
  INSTALL_RPATH $ORIGIN
  BUILD_WITH_INSTALL_RPATH ON
  LINK_DEPENDS ${LINESTATE_SYMBOL_MAP})
target_include_directories(linestate_shared INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(linestate_shared PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,linestate>)
target_link_options(linestate_shared PRIVATE
  "LINKER:--version-script=${LINESTATE_SYMBOL_MAP}" LINKER:--as-needed)
if(LINESTATE_SANITIZE)
  set_target_properties(linestate_shared PROPERTIES EXCLUDE_FROM_ALL ON)
else()
  target_link_options(linestate_shared PRIVATE LINKER:--no-undefined)
endif()

# Both libraries, or with BUILD_SHARED_LIBS only the one it asks for. A project that adds this
# folder gets the same names as one that finds the installed package.
set(LINESTATE_INSTALLED linestate linestate_shared)
set(LINESTATE_MAIN linestate)
if(DEFINED BUILD_SHARED_LIBS AND BUILD_SHARED_LIBS)
  set(LINESTATE_INSTALLED linestate_shared)
  set(LINESTATE_MAIN linestate_shared)
elseif(DEFINED BUILD_SHARED_LIBS)
  set(LINESTATE_INSTALLED linestate)
  set_target_properties(linestate_shared PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
foreach(name linestate cxx c)
  add_library(linestate::${name} ALIAS ${LINESTATE_MAIN})
endforeach()

if(LINESTATE_TESTS AND NOT LINESTATE_SANITIZE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  foreach(target IN ITEMS linestate linestate_shared)
    add_test(NAME install.symbols_${target} COMMAND ${CMAKE_COMMAND} -E env NM=${CMAKE_NM}
      ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tools/symbols.py $<TARGET_FILE:${target}>)
    set_tests_properties(install.symbols_${target} PROPERTIES TIMEOUT 60 LABELS cpu)
  endforeach()
endif()

if(NOT LINESTATE_INSTALL OR LINESTATE_SANITIZE)
  return()
endif()

set_target_properties(linestate PROPERTIES
  EXPORT_NAME static
  INTERFACE_INCLUDE_DIRECTORIES
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>;$<INSTALL_INTERFACE:include>")
if(TARGET linestate_simd AND "linestate" IN_LIST LINESTATE_INSTALLED)
  set_target_properties(linestate_simd PROPERTIES EXPORT_NAME simd)
  install(TARGETS linestate_simd EXPORT linestate_static)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/linestate)
foreach(target IN LISTS LINESTATE_INSTALLED)
  get_target_property(kind ${target} EXPORT_NAME)
  install(TARGETS ${target} EXPORT linestate_${kind}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lib NAMELINK_COMPONENT dev
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  install(EXPORT linestate_${kind} NAMESPACE linestate:: DESTINATION ${package_dir}
    COMPONENT dev FILE linestate-${kind}.cmake)
endforeach()
install(DIRECTORY include/linestate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT lib)
if(TARGET linestate_command)
  install(TARGETS linestate_command DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT bin)
endif()

list(TRANSFORM LINESTATE_STATIC_DEPENDENCIES REPLACE "(.+)" "\"\\1\""
  OUTPUT_VARIABLE quoted)
list(JOIN quoted " " LINESTATE_STATIC_DEPENDENCY_LIST)
configure_package_config_file(cmake/linestate-config.cmake.in
  ${PROJECT_BINARY_DIR}/linestate-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/linestate-config-version.cmake
  COMPATIBILITY ${LINESTATE_COMPATIBILITY})
install(FILES ${PROJECT_BINARY_DIR}/linestate-config.cmake
  ${PROJECT_BINARY_DIR}/linestate-config-version.cmake DESTINATION ${package_dir} COMPONENT dev)

list(JOIN LINESTATE_STATIC_LIBRARIES " " LINESTATE_PC_PRIVATE)
# Where the library is, seen from the .pc file: an install tree may be moved.
file(RELATIVE_PATH LINESTATE_PC_PREFIX
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/linestate.pc.in ${PROJECT_BINARY_DIR}/linestate.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/linestate.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# `make package`: a tarball and a Debian package.
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME linestate)
set(CPACK_PACKAGE_VENDOR linestate)
set(CPACK_PACKAGE_CONTACT "the linestate authors <linestate@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Linear-attention layers of an LLM engine")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libgomp1, libstdc++6")
if(TARGET hwy::hwy)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libhwy1")
endif()
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
