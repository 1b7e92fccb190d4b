/*
 * The kernel and backend libraries of ExecuTorch, opened when a program needs them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_LIBRARIES_HPP
#define ETGENAI_SRC_EXECUTORCH_LIBRARIES_HPP

#include "options.hpp"
#include "program.hpp"

namespace etgenai::executorch {

/** Sees to it that every operator and every backend of `program` is registered: opens the libraries of the ExecuTorch package
 *  that have them, unless this process has such kernels already, since registering a kernel twice ends the process.
 *  One call at a time.
 *  Throws Failure (unsupported) that names operators and backends that nobody has. */
void provide_libraries(const Program &program, const Options &options);

/** Opens the libraries that the options name. One call at a time.
 *  Throws Failure (unsupported) that names the library. */
void open_extra_libraries(const Options &options);

} // namespace etgenai::executorch

#endif
