# Helpers for CMakeLists.txt.

# Warnings are errors with the compilers that the project is tested with. Another version may warn
# of something new, and that must not keep anyone from building.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\."
    OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^14\\.")
  option(LINESTATE_WERROR "Warnings are errors" ON)
else()
  option(LINESTATE_WERROR "Warnings are errors" OFF)
endif()

# Language level, warnings and sanitizers for every target of ours.
function(linestate_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET default)
  # CMake 3.25 knows no C++20 for CUDA and would quietly build C++17, so the level is spelled out.
  # nvcc's 2810 takes the assignment of a [[nodiscard]] class for a dropped value.
  # -ffp-contract=off: results are a function of the source on every CPU, not of whether the
  # compiler found a fused multiply-add.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-ffp-contract=off>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-diag-suppress=2810;-Xcompiler=-Wall,-Wextra>")
  if(LINESTATE_WERROR)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror>
      "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
  endif()
  if(LINESTATE_SANITIZE)
    target_compile_options(${target} PUBLIC
      -fsanitize=${LINESTATE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    target_link_options(${target} PUBLIC -fsanitize=${LINESTATE_SANITIZE})
  endif()
endfunction()

# Half the compile time, for what is no kernel; what is measured keeps the flags of the library.
function(linestate_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# The standard headers that most sources read, parsed once for the target.
function(linestate_precompile target)
  if(NOT LINESTATE_PCH)
    return()
  endif()
  set(headers algorithm array atomic cmath cstdint cstring functional memory optional span string
    string_view unordered_map utility vector)
  list(TRANSFORM headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
  target_precompile_headers(${target} PRIVATE ${headers} ${ARGN})
endfunction()

# linestate_simd: Google Highway, and which of its targets the sources are compiled for. On x86 that
# is SSE4, AVX2 and AVX3 (AVX-512) above what the compiler's own baseline gives; the others cost
# compile time and would not be faster here.
function(linestate_find_highway)
  find_package(hwy QUIET)
  if(NOT TARGET hwy::hwy)
    message(FATAL_ERROR
      "Google Highway (hwy) not found: install libhwy-dev (tools/setup.sh build does), or set "
      "hwy_DIR to the folder of hwy-config.cmake.")
  endif()
  set(disabled HWY_SSSE3 HWY_AVX3_DL HWY_SVE HWY_SVE2 HWY_SVE_256 HWY_SVE2_128)
  if(hwy_VERSION VERSION_GREATER_EQUAL 1.1)
    list(APPEND disabled HWY_AVX3_ZEN4 HWY_AVX3_SPR)
  endif()
  list(JOIN disabled "|" disabled)
  add_library(linestate_simd INTERFACE)
  target_link_libraries(linestate_simd INTERFACE hwy::hwy)
  target_compile_definitions(linestate_simd INTERFACE "HWY_DISABLED_TARGETS=(${disabled})")
endfunction()

# One precompiled header for all test programs, GoogleTest in it.
function(linestate_precompile_test name)
  if(NOT LINESTATE_PCH)
    return()
  endif()
  if(NOT TARGET linestate_test_headers)
    # A program too: gcc takes no header that was compiled as -fPIC where it compiles as -fPIE.
    file(WRITE ${PROJECT_BINARY_DIR}/generated/test_headers.cc "int main() { return 0; }\n")
    add_executable(linestate_test_headers ${PROJECT_BINARY_DIR}/generated/test_headers.cc)
    linestate_configure_target(linestate_test_headers)
    linestate_compile_quickly(linestate_test_headers)
    target_link_libraries(linestate_test_headers PRIVATE linestate_testing linestate_simd
      GTest::gtest)
    linestate_precompile(linestate_test_headers
      "$<$<COMPILE_LANGUAGE:CXX>:<gtest/gtest.h$<ANGLE-R>>")
  endif()
  target_precompile_headers(${name} REUSE_FROM linestate_test_headers)
endfunction()

# One executable per *_test.cc, named like the file. *_gpu_test.cc need a device and belong to the
# suites of linestate_add_gpu_suite.
function(linestate_add_test source)
  get_filename_component(name ${source} NAME_WE)
  if(name MATCHES "_gpu_test$" OR LINESTATE_GPU_TESTS_ONLY)
    return()
  endif()
  # ThreadSanitizer's own operator new is linked statically and cannot be replaced; and each program
  # under it starts with a file of its own, which a limit on the size of files cuts short.
  file(STRINGS ${source} not_with_tsan REGEX "operator new|failing_memory_case.h|RLIMIT_FSIZE")
  if(LINESTATE_SANITIZE MATCHES "thread" AND not_with_tsan)
    file(STRINGS ${source} tests REGEX "^TEST(_[FP])?\\(")
    list(LENGTH tests count)
    file(APPEND ${PROJECT_BINARY_DIR}/left_out.txt "${name} ${count}\n")
    return()
  endif()
  add_executable(${name} ${source})
  linestate_configure_target(${name})
  linestate_compile_quickly(${name})
  linestate_precompile_test(${name})
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PRIVATE linestate_testing linestate_simd GTest::gtest
    GTest::gtest_main)
  if(TARGET linestate_cli)
    target_link_libraries(${name} PRIVATE linestate_cli)
    target_compile_definitions(${name} PRIVATE
      LINESTATE_COMMAND="$<TARGET_FILE:linestate_command>")
    add_dependencies(${name} linestate_command)
  endif()
  target_compile_definitions(${name} PRIVATE
    LINESTATE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300 LABELS cpu)
endfunction()

# gpu_x: the operator tests that the globs name, run on a GPU by tests/gpu/gpu_main.cc, as one test
# gpu.x with the label "gpu". One program a family, because each links the whole library.
function(linestate_add_gpu_suite name)
  if(NOT LINESTATE_CUDA)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${ARGN})
  add_executable(gpu_${name} tests/gpu/gpu_main.cc ${sources})
  linestate_configure_target(gpu_${name})
  linestate_compile_quickly(gpu_${name})
  target_include_directories(gpu_${name} PRIVATE src)
  target_link_libraries(gpu_${name} PRIVATE linestate_testing GTest::gtest CUDA::cudart_static)
  target_compile_definitions(gpu_${name} PRIVATE LINESTATE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(NOT TARGET gpu_suites)
    add_custom_target(gpu_suites)  # what tools/gpu_check builds
  endif()
  add_dependencies(gpu_suites gpu_${name})
  add_test(NAME gpu.${name} COMMAND gpu_${name})
  set_tests_properties(gpu.${name} PROPERTIES TIMEOUT 900 LABELS gpu SKIP_RETURN_CODE 77)
endfunction()

# fuzz/fuzz_x.cc: the fuzzer fuzz_x with LINESTATE_FUZZ, and with LINESTATE_TESTS fuzz_x_replay,
# which runs over tests/fuzz_corpus/fuzz_x as the test fuzz_x.corpus.
function(linestate_add_fuzz_target source)
  get_filename_component(name ${source} NAME_WE)
  set(targets "")
  if(LINESTATE_FUZZ)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    list(APPEND targets ${name})
  endif()
  if(LINESTATE_TESTS)
    add_executable(${name}_replay ${source} fuzz/replay_corpus.cc)
    add_test(NAME ${name}.corpus
      COMMAND ${name}_replay ${PROJECT_SOURCE_DIR}/tests/fuzz_corpus/${name})
    set_tests_properties(${name}.corpus PROPERTIES TIMEOUT 120 LABELS cpu)
    list(APPEND targets ${name}_replay)
  endif()
  foreach(target IN LISTS targets)
    linestate_configure_target(${target})
    target_include_directories(${target} PRIVATE src)
    target_link_libraries(${target} PRIVATE linestate_testing)
    if(TARGET linestate_cli)
      target_link_libraries(${target} PRIVATE linestate_cli)
    endif()
  endforeach()
endfunction()

# A program in C over the C interface, run as a test: tests/x_test.c, examples/c/x.c. More sources
# may follow.
function(linestate_add_c_program source)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${name} PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF LINKER_LANGUAGE CXX)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-pedantic>)
  if(LINESTATE_WERROR)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Werror>)
  endif()
  target_link_libraries(${name} PRIVATE linestate)
  add_test(NAME c.${name} COMMAND ${name})
  set_tests_properties(c.${name} PROPERTIES TIMEOUT 120 LABELS cpu)
endfunction()

# The checks of tools/ are tools that can be wrong too: their own tests run with all others.
function(linestate_add_tool_tests)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  file(GLOB sources CONFIGURE_DEPENDS tools/tests/*_test.py)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_test(NAME tools.${name} COMMAND ${Python3_EXECUTABLE} -B ${source})
    set_tests_properties(tools.${name} PROPERTIES TIMEOUT 120 LABELS cpu
      ENVIRONMENT "PYTHONPATH=${PROJECT_SOURCE_DIR}/tools;CXX=${CMAKE_CXX_COMPILER}")
  endforeach()
endfunction()

# A new operator is one folder: every src/ops/**/<op>_kernels.h declares
# `const OpTable<SomeParams>& <op>_table();`, and this writes the functions that know them all.
function(linestate_write_kernel_list out_file)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ops/*_kernels.h)
  list(SORT headers)
  set(includes "")
  set(calls "")
  set(names "")
  set(all_params "")
  foreach(header IN LISTS headers)
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR}/src ${header})
    get_filename_component(name ${header} NAME_WE)
    string(REGEX REPLACE "_kernels$" "" op ${name})
    string(APPEND includes "#include \"${relative}\"\n")
    string(APPEND calls "  append_kernel_infos(${op}_table(), infos);\n")
    string(APPEND names
      "  if (op == \"${op}\") return kernel_names_if(${op}_table(), params, names);\n")
    file(READ ${header} text)
    if(NOT text MATCHES "OpTable<([A-Za-z0-9_]+)>&[ \n]+${op}_table\\(\\)")
      message(FATAL_ERROR "${relative}: expected `const OpTable<Params>& ${op}_table();`")
    endif()
    list(APPEND all_params ${CMAKE_MATCH_1})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  endforeach()
  list(REMOVE_DUPLICATES all_params)
  set(instances "")
  foreach(params IN LISTS all_params)
    string(APPEND instances
      "template std::shared_ptr<const ExternalRows<${params}>> external_rows(std::string_view);\n"
      "template Status register_kernel(std::string_view, const ExternalKernel<${params}>&);\n")
  endforeach()
  set(file ${PROJECT_BINARY_DIR}/generated/kernel_list.cc)
  file(GENERATE OUTPUT ${file} CONTENT "// Written by CMake from src/ops/**/*_kernels.h.
#include \"dispatch/external_registry.h\"
#include \"dispatch/kernel_table.h\"
${includes}
namespace linestate {

std::vector<KernelInfo> list_kernels() {
  std::vector<KernelInfo> infos;
  append_external_kernel_infos(infos);
${calls}  return infos;
}

bool builtin_kernel_names(std::string_view op, std::type_index params,
                          std::vector<std::string>& names) {
${names}  return false;
}

${instances}
}  // namespace linestate
")
  set(${out_file} ${file} PARENT_SCOPE)
endfunction()

# build_description() and version_string().
function(linestate_write_build_info target)
  if(LINESTATE_CUDA)
    list(JOIN CMAKE_CUDA_ARCHITECTURES " sm_" archs)
    set(devices "cpu+cuda sm_${archs}")
  else()
    set(devices "cpu")
  endif()
  set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  set(file ${PROJECT_BINARY_DIR}/generated/build_info.cc)
  file(GENERATE OUTPUT ${file} CONTENT "// Written by CMake.
#include \"linestate/version.h\"

namespace linestate {

const char* version_string() { return \"${PROJECT_VERSION}\"; }
const char* build_description() {
  return \"${devices}, ${compiler}, ${CMAKE_BUILD_TYPE}\";
}

}  // namespace linestate
")
  target_sources(${target} PRIVATE ${file})
endfunction()

# build_flags() and build_commit() of cli/bench, looked up again at every build.
function(linestate_write_build_stamp target)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}" flags)
  set(file ${PROJECT_BINARY_DIR}/generated/build_stamp.cc)
  add_custom_target(${target}_stamp
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUT=${file} "-DFLAGS=${flags}"
      -P ${PROJECT_SOURCE_DIR}/cmake/BuildStamp.cmake
    BYPRODUCTS ${file} VERBATIM)
  target_sources(${target} PRIVATE ${file})
  add_dependencies(${target} ${target}_stamp)
endfunction()
