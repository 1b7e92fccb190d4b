/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "fallback_kernel.hpp"

#include "etgenai_executorch.hpp"

#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <cstring>

namespace etgenai::executorch {

namespace {

/** Arguments: input, output, and the output again as what is returned. */
void copy_tensor(runtime::KernelRuntimeContext &context, runtime::Span<runtime::EValue *> arguments)
{
    if (arguments.size() < 2 || !arguments[0]->isTensor() || !arguments[1]->isTensor()) {
        context.fail(runtime::Error::InvalidArgument);
        return;
    }
    const auto &input = arguments[0]->toTensor();
    auto &output = arguments[1]->toTensor();
    if (input.scalar_type() != output.scalar_type() ||
        runtime::resize_tensor(output, input.sizes()) != runtime::Error::Ok || input.nbytes() != output.nbytes()) {
        context.fail(runtime::Error::InvalidArgument);
        return;
    }
    // The memory plan may have given both the same place.
    if (input.nbytes() > 0) {
        std::memmove(output.mutable_data_ptr(), input.const_data_ptr(), input.nbytes());
    }
}

} // namespace

void register_fallback_kernel()
{
    detail::check(runtime::register_kernel(runtime::Kernel(kFallbackOperator, copy_tensor)),
                  std::string("the operator ") + kFallbackOperator + " cannot be registered");
}

} // namespace etgenai::executorch
