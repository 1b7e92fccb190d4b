/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "loaded_program.hpp"

#include "libraries.hpp"
#include "qnn_blob.hpp"
#include "qnn_system.hpp"

#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <utility>

// Set by CMake; a host that compiles these sources itself may leave it out.
#ifndef ETGENAI_EXECUTORCH_VERSION
#define ETGENAI_EXECUTORCH_VERSION ""
#endif

namespace etgenai::executorch {

namespace {

std::string qnn_directory(const Options &options)
{
    if (!options.qnn_library_dir.empty()) {
        return options.qnn_library_dir;
    }
    const char *const environment = std::getenv("ETGENAI_QNN_LIBRARY_DIR");
    return environment == nullptr ? "" : environment;
}

bool uses_qnn(const Program &program)
{
    for (const Method &method : program.methods) {
        for (const Delegate &delegate : method.delegates) {
            if (delegate.backend == kQnnBackend) {
                return true;
            }
        }
    }
    return false;
}

/** Checks all QNN delegates and gives where their blobs begin, each once. */
std::set<std::size_t> check_qnn(const ProgramFile &file, const Program &program, const Options &options)
{
    std::set<std::size_t> blobs;
    std::map<std::pair<const Method *, std::size_t>, QnnBlob> checked;
    for (const Method &method : program.methods) {
        for (std::size_t i = 0; i < method.delegates.size(); ++i) {
            if (method.delegates[i].backend == kQnnBackend) {
                checked[{&method, i}] = check_qnn_delegate(file.data(), method.delegates[i], method);
                blobs.insert(method.delegates[i].blob.offset);
            }
        }
    }
    const QnnLibraries &libraries = QnnLibraries::open(qnn_directory(options));
    for (const Method &method : program.methods) {
        for (const Call &call : method.delegate_calls) {
            const auto blob = checked.find({&method, call.callee});
            if (blob != checked.end()) {
                libraries.check_graph(file.data(), blob->second, method, call);
            }
        }
    }
    return blobs;
}

} // namespace

LoadedProgram::LoadedProgram(ProgramFile file, const Options &options) : file_(std::move(file))
{
    // The runtime first: its verifier knows more rules than our reader, which then finds an orderly file.
    load_program();
    const Program program = read_program(file_.data(), file_.size());
    if (uses_qnn(program)) {
        const std::set<std::size_t> blobs = check_qnn(file_, program, options);
        const std::uint8_t *const before = file_.data();
        std::uint8_t *const bytes = file_.writable();
        for (const std::size_t offset : blobs) {
            sign_qnn_blob(bytes + offset);
        }
        if (bytes != before) {
            load_program();
        }
    }
    provide_libraries(program, options);
    load_methods(program);
    weight_bytes_ = program.segment_bytes;
}

void LoadedProgram::load_program()
{
    program_.reset();
    loader_ = std::make_unique<extension::BufferDataLoader>(file_.data(), file_.size());
    runtime::Result<runtime::Program> program =
        runtime::Program::load(loader_.get(), runtime::Program::Verification::InternalConsistency);
    if (!program.ok()) {
        // Whatever the runtime calls it: a program that does not get through the verifier is a damaged file.
        throw Failure(ETG_ENGINE_ERROR_FORMAT, detail::runtime_message("it is no intact program", program.error()));
    }
    program_ = std::make_shared<runtime::Program>(std::move(*program));
}

void LoadedProgram::load_methods(const Program &program)
{
    module_ = std::make_unique<extension::Module>(program_);
    component_ = std::make_unique<ModuleComponent>(*module_);
    std::map<std::string_view, const Method *> methods;
    for (const Method &method : program.methods) {
        methods[method.name] = &method;
    }
    etg_engine_component view{};
    component_->describe(view);
    for (std::size_t i = 0; i < view.graph_count; ++i) {
        const auto method = methods.find(std::string_view(view.graphs[i].name, view.graphs[i].name_length));
        id_ranges_.push_back(method == methods.end() ? std::vector<IdRange>() : find_id_ranges(*method->second));
    }
    description_ = "ExecuTorch";
    if (sizeof ETGENAI_EXECUTORCH_VERSION > 1) {
        description_ += " " ETGENAI_EXECUTORCH_VERSION;
    }
    for (const std::string &backend : component_->backends()) {
        description_ += ", " + backend;
    }
}

void LoadedProgram::describe(etg_engine_component &component) const noexcept
{
    component_->describe(component);
    component.weight_bytes = weight_bytes_;
    component.description = description_.data();
    component.description_length = description_.size();
}

void LoadedProgram::execute(const etg_engine_call &call)
{
    if (call.graph < id_ranges_.size()) {
        check_ids(id_ranges_[call.graph], call);
    }
    component_->execute(call);
}

} // namespace etgenai::executorch
