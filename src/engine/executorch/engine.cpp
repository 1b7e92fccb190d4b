/*
 * The engine library: etg_engine_open, and the functions behind it. Conversions and guards only.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "etgenai_engine.h"

#include "etgenai_executorch.hpp"
#include "libraries.hpp"
#include "loaded_program.hpp"
#include "options.hpp"
#include "program_file.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace etgenai::executorch {

namespace {

constexpr char kName[] = "executorch";

/** Loading and unloading change tables of the process: registered kernels, the QNN backend's contexts. */
std::mutex &registry_mutex()
{
    static std::mutex mutex;
    return mutex;
}

struct Engine {
    Options options;
    LogTarget log;
};

struct Component {
    const Engine &engine;
    LoadedProgram program;
};

ProgramFile open_source(const etg_engine_source &source, LoadMode mode)
{
    if (source.bytes != nullptr) {
        return ProgramFile::borrow(source.bytes, source.bytes_length);
    }
    const std::string path(source.path, source.path_length);
    if (path.empty() || path.find('\0') != std::string::npos) {
        throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT, "neither bytes nor a path are given");
    }
    return ProgramFile::open(path, mode);
}

/** What messages call a source. */
std::string source_name(const etg_engine_source &source)
{
    if (source.bytes != nullptr || source.path_length == 0) {
        return "component '" + std::string(source.component, source.component_length) + "'";
    }
    return std::string(source.path, source.path_length);
}

std::unique_ptr<Component> load_component(const Engine &engine, const etg_engine_source &source)
{
    try {
        ProgramFile file = open_source(source, engine.options.load_mode);
        const std::lock_guard<std::mutex> lock(registry_mutex());
        return std::unique_ptr<Component>(new Component{engine, {std::move(file), engine.options}});
    } catch (const Failure &failure) {
        throw Failure(failure.status(), source_name(source) + ": " + failure.what());
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &exception) {
        // Aborts of the runtime and exceptions of its backends: on the way here they were met by a program that is at fault.
        const std::string &line = detail::call_state.last_error;
        throw Failure(ETG_ENGINE_ERROR_FAILED,
                      source_name(source) + ": " + exception.what() + (line.empty() ? "" : ": " + line));
    }
}

void tell(const Engine &engine, std::int32_t level, const std::string &line)
{
    if (engine.log.log != nullptr && level <= engine.log.max_level) {
        engine.log.log(engine.log.user_data, level, line.data(), line.size());
    }
}

std::int32_t load(void *user_data, const etg_engine_source *source, etg_engine_component *out, etg_engine_error *error)
{
    const auto &engine = *static_cast<const Engine *>(user_data);
    return detail::guarded(&engine.log, error, [&] {
        std::unique_ptr<Component> component = load_component(engine, *source);
        for (const std::string &method : component->program.left_out()) {
            tell(engine, 2, source_name(*source) + ": method left out: " + method);
        }
        component->program.describe(*out);
        out->handle = component.release();
    });
}

std::int32_t execute(void *, void *handle, const etg_engine_call *call, etg_engine_error *error)
{
    auto &component = *static_cast<Component *>(handle);
    return detail::guarded(&component.engine.log, error, [&] { component.program.execute(*call); });
}

void close(void *user_data, void *handle)
{
    detail::guarded(&static_cast<const Engine *>(user_data)->log, nullptr, [&] {
        const std::lock_guard<std::mutex> lock(registry_mutex());
        delete static_cast<Component *>(handle);
    });
}

#if defined(__ANDROID__)
std::int32_t allocate(void *, void *handle, size_t bytes, size_t alignment, void **out, etg_engine_error *error)
{
    auto &component = *static_cast<Component *>(handle);
    return detail::guarded(&component.engine.log, error,
                           [&] { *out = component.program.shared_memory().allocate(bytes, alignment); });
}

void release(void *, void *handle, void *memory)
{
    static_cast<Component *>(handle)->program.shared_memory().release(memory);
}
#endif

void destroy(void *user_data)
{
    delete static_cast<Engine *>(user_data);
}

std::unique_ptr<Engine> make_engine(const etg_engine_host *host, std::string_view options)
{
    if (host != nullptr && host->abi_version / 1000 != ETG_ENGINE_ABI_MAJOR) {
        throw Failure(ETG_ENGINE_ERROR_UNSUPPORTED,
                      "the host speaks version " + std::to_string(host->abi_version / 1000) +
                          " of the engine plug-in ABI, this engine version " + std::to_string(ETG_ENGINE_ABI_MAJOR));
    }
    auto engine = std::make_unique<Engine>();
    engine->options = parse_options(options);
    engine->log.max_level = engine->options.log_level;
    if (host != nullptr) {
        engine->log.log = host->log;
        engine->log.user_data = host->user_data;
    }
    if (engine->options.handle_aborts) {
        hook_runtime();
    } else {
        runtime::runtime_init();
    }
    const std::lock_guard<std::mutex> lock(registry_mutex());
    open_extra_libraries(engine->options);
    return engine;
}

} // namespace

} // namespace etgenai::executorch

int32_t etg_engine_open(const etg_engine_host *host, const char *options, size_t options_length,
                        etg_engine_functions *functions_out, etg_engine_error *error)
{
    using namespace etgenai::executorch;
    return detail::guarded(nullptr, error, [&] {
        std::unique_ptr<Engine> engine = make_engine(host, std::string_view(options, options_length));
        const uint32_t struct_size = functions_out->struct_size;
        *functions_out = {};
        functions_out->struct_size = struct_size;
        functions_out->abi_version = ETG_ENGINE_ABI_VERSION;
        functions_out->name = kName;
        functions_out->name_length = sizeof kName - 1;
        functions_out->load = load;
        functions_out->execute = execute;
        functions_out->close = close;
#if defined(__ANDROID__)
        functions_out->allocate = allocate;
        functions_out->release = release;
#endif
        functions_out->destroy = destroy;
        functions_out->user_data = engine.release();
    });
}
