# Tests of the documents: the code in them, and pages that are written from something.
if(NOT TARGET serve_step)
  add_executable(serve_step examples/cpp/serve_step.cc)
  linestate_configure_target(serve_step)
  target_link_libraries(serve_step PRIVATE linestate)
  add_test(NAME examples.serve_step COMMAND serve_step)
  set_tests_properties(examples.serve_step PROPERTIES TIMEOUT 60 LABELS cpu)
endif()

add_executable(decay_demo examples/cmake_consumer/decay_demo.cc)
linestate_configure_target(decay_demo)
target_link_libraries(decay_demo PRIVATE linestate)
add_test(NAME examples.decay_demo COMMAND decay_demo)
set_tests_properties(examples.decay_demo PROPERTIES TIMEOUT 60 LABELS cpu)

# The rest needs the command and a shared library without sanitizers.
if(NOT LINESTATE_CLI OR LINESTATE_CUDA OR LINESTATE_SANITIZE)
  return()
endif()
add_test(NAME docs.support_matrix
  COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tools/support_matrix.py
    $<TARGET_FILE:linestate_command> --check)
add_test(NAME docs.blocks
  COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tools/doc_blocks.py c cpp sh
    --build ${PROJECT_BINARY_DIR})
set_tests_properties(docs.support_matrix docs.blocks PROPERTIES TIMEOUT 300 LABELS cpu
  ENVIRONMENT "CC=${CMAKE_C_COMPILER};CXX=${CMAKE_CXX_COMPILER}")
