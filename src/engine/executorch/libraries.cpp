/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "libraries.hpp"

#include "etgenai_executorch.hpp"
#include "fallback_kernel.hpp"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <dlfcn.h>

#include <set>
#include <string>
#include <string_view>

namespace etgenai::executorch {

namespace {

using Names = std::set<std::string>;

Names registered_operators()
{
    Names names;
    for (const runtime::Kernel &kernel : runtime::get_registered_kernels()) {
        if (kernel.name_ != nullptr) {
            names.emplace(kernel.name_);
        }
    }
    return names;
}

Names missing_operators(const Program &program)
{
    const Names registered = registered_operators();
    Names missing;
    for (const Method &method : program.methods) {
        for (const std::string &name : method.operators) {
            if (registered.count(name) == 0) {
                missing.insert(name);
            }
        }
    }
    return missing;
}

Names missing_backends(const Program &program)
{
    Names missing;
    for (const Method &method : program.methods) {
        for (const Delegate &delegate : method.delegates) {
            if (runtime::get_backend_class(delegate.backend.c_str()) == nullptr) {
                missing.insert(delegate.backend);
            }
        }
    }
    return missing;
}

bool begins_with(std::string_view text, std::string_view prefix)
{
    return text.substr(0, prefix.size()) == prefix;
}

/** Operators that the runtime itself brings, in the namespace of others. */
bool is_built_in(std::string_view name)
{
    return begins_with(name, "aten::sym_") || name == "aten::_local_scalar_dense";
}

/** True if kernels of a namespace are registered, so a library with all of them must not be opened any more. */
bool has_namespace(std::string_view prefix)
{
    for (const std::string &name : registered_operators()) {
        if (begins_with(name, prefix) && !is_built_in(name)) {
            return true;
        }
    }
    return false;
}

/** The folder that the runtime was loaded from. */
std::string runtime_directory()
{
    Dl_info info = {};
    if (dladdr(reinterpret_cast<const void *>(&runtime::get_backend_class), &info) == 0 || info.dli_fname == nullptr) {
        return ".";
    }
    const std::string path = info.dli_fname;
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

void open_library(const std::string &path)
{
    // Libraries register what they have in static initialisers, and dlopen lets no exception through: a failed check there
    // has nowhere to unwind to.
    const int depth = std::exchange(detail::call_state.depth, 0);
    void *const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    detail::call_state.depth = depth;
    if (handle == nullptr) {
        const char *const reason = dlerror();
        throw Failure(ETG_ENGINE_ERROR_UNSUPPORTED,
                      "the library " + path + " cannot be opened: " + (reason == nullptr ? "" : reason));
    }
}

void open_package_library(const char *name, const Options &options)
{
    const std::string &directory = options.library_dir.empty() ? runtime_directory() : options.library_dir;
    open_library(directory + "/" + name);
}

void provide_operators(const Program &program, const Options &options)
{
    bool tensors = false;
    bool quantized = false;
    bool fallback = false;
    for (const std::string &name : missing_operators(program)) {
        quantized = quantized || begins_with(name, "quantized_decomposed::");
        fallback = fallback || name == kFallbackOperator;
        tensors = tensors || begins_with(name, "aten::") || begins_with(name, "dim_order_ops::") ||
                  begins_with(name, "et_copy::");
    }
    if (tensors && !has_namespace("aten::")) {
        open_package_library("libexecutorch_kernels_optimized.so", options);
    }
    if (quantized && !has_namespace("quantized_decomposed::")) {
        open_package_library("libexecutorch_kernels_quantized.so", options);
    }
    if (fallback) {
        register_fallback_kernel();
    }
}

void provide_backends(const Program &program, const Options &options)
{
    for (const std::string &name : missing_backends(program)) {
        if (name == "XnnpackBackend") {
            open_package_library("libexecutorch_backend_xnnpack.so", options);
        } else if (name == "QnnBackend") {
            open_package_library("libexecutorch_backend_qnn.so", options);
        } else if (name == "OpenvinoBackend") {
            open_package_library("libexecutorch_backend_openvino.so", options);
        }
    }
}

void require_none(const char *kind, const Names &missing)
{
    if (missing.empty()) {
        return;
    }
    std::string list;
    for (const std::string &name : missing) {
        list += (list.empty() ? "'" : ", '") + name + "'";
    }
    throw Failure(ETG_ENGINE_ERROR_UNSUPPORTED, std::string("the program needs ") + kind + " that nobody registered: " + list +
                                                    "; name the library that has them with the option libraries");
}

} // namespace

void provide_libraries(const Program &program, const Options &options)
{
    provide_operators(program, options);
    provide_backends(program, options);
    require_none("operators", missing_operators(program));
    require_none("backends", missing_backends(program));
}

void open_extra_libraries(const Options &options)
{
    for (const std::string &library : options.libraries) {
        open_library(library);
    }
}

} // namespace etgenai::executorch
