# Find the installed torch, by one question to Python.
#
# Horovod's module of this name imports torch seven times, which takes longer than compiling Gloo. CMake finds this
# file first. It sets the same variables, except for ROCm, where Horovod's own module also adds flags.

execute_process(
  COMMAND "${PY_EXE}" -c "
import sys
sys.stdout = sys.stderr  # torch prints there that it found no GPU
import torch
from torch.utils import cpp_extension
with_cuda = torch.version.cuda is not None and cpp_extension.CUDA_HOME is not None
extension = (cpp_extension.CUDAExtension if with_cuda else cpp_extension.CppExtension)('', [])
for values in (
    [torch.__version__], [with_cuda], [torch.version.hip is not None], [int(torch.compiled_with_cxx11_abi())],
    extension.include_dirs, extension.library_dirs, extension.libraries,
):
    print(*values, sep=';', file=sys.__stdout__)
"
  OUTPUT_VARIABLE _answer OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCH "^([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]+)\n([^\n]+)$" _answered "${_answer}")
set(Pytorch_VERSION "${CMAKE_MATCH_1}")
string(TOUPPER "${CMAKE_MATCH_2}" Pytorch_CUDA)
string(TOUPPER "${CMAKE_MATCH_3}" Pytorch_ROCM)
set(Pytorch_CXX11 "${CMAKE_MATCH_4}")
set(Pytorch_COMPILE_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=${CMAKE_MATCH_4}")
set(Pytorch_INCLUDE_DIRS "${CMAKE_MATCH_5}")
set(Pytorch_LIBRARY_DIRS "${CMAKE_MATCH_6}")
set(_libraries "${CMAKE_MATCH_7}")
set(Pytorch_LIBRARIES "")
foreach(_library IN LISTS _libraries)
  find_library(FOUND_LIB_${_library} NAMES ${_library} HINTS ${Pytorch_LIBRARY_DIRS})
  list(APPEND Pytorch_LIBRARIES ${FOUND_LIB_${_library}})
endforeach()

if(Pytorch_ROCM)
  include("${PROJECT_SOURCE_DIR}/cmake/Modules/FindPytorch.cmake")
  return()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pytorch REQUIRED_VARS Pytorch_VERSION VERSION_VAR Pytorch_VERSION)
