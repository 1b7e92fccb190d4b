/*
 * The operator `llama::fallback.out`, which copies its input. Exporters put it between the parts of a program that is too large
 * for one QNN context, and no kernel library has it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_FALLBACK_KERNEL_HPP
#define ETGENAI_SRC_EXECUTORCH_FALLBACK_KERNEL_HPP

namespace etgenai::executorch {

inline constexpr char kFallbackOperator[] = "llama::fallback.out";

/** Registers the operator for the rest of the process. It must not be registered yet. */
void register_fallback_kernel();

} // namespace etgenai::executorch

#endif
