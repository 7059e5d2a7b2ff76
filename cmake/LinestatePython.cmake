# The shared library inside the Python package (pyproject.toml): target linestate_python and the
# install component python. LINESTATE_PYTHON_LIBRARY names one that is built already.
set(LINESTATE_PYTHON_LIBRARY "" CACHE FILEPATH "Shared library to put into the Python package")

if(LINESTATE_PYTHON_LIBRARY)
  add_custom_target(linestate_python)
  file(REAL_PATH ${LINESTATE_PYTHON_LIBRARY} library)  # not a link
else()
  add_custom_target(linestate_python DEPENDS linestate_shared)
  set(library $<TARGET_FILE:linestate_shared>)
endif()
set(executable PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
  WORLD_EXECUTE)
install(FILES ${library} DESTINATION linestate RENAME liblinestate.so COMPONENT python
  ${executable})

# A wheel brings what it links besides the C++ runtime; the library looks beside itself for it.
if(TARGET hwy::hwy)
  get_target_property(kind hwy::hwy TYPE)
  if(NOT kind STREQUAL "STATIC_LIBRARY")
    install(FILES $<TARGET_FILE:hwy::hwy> DESTINATION linestate
      RENAME $<TARGET_SONAME_FILE_NAME:hwy::hwy> COMPONENT python ${executable})
  endif()
endif()
