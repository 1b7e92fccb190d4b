/*
 * A .pte file, validated and loaded.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_LOADED_PROGRAM_HPP
#define ETGENAI_SRC_EXECUTORCH_LOADED_PROGRAM_HPP

#include "etgenai_executorch.hpp"
#include "id_ranges.hpp"
#include "options.hpp"
#include "program.hpp"
#include "program_file.hpp"

#include <executorch/extension/data_loader/buffer_data_loader.h>

#include <memory>
#include <string>
#include <vector>

namespace etgenai::executorch {

/** One loaded component of the engine library. */
class LoadedProgram {
  public:
    /** Validates the program in `file`, opens the libraries it needs and loads its methods. One construction or destruction at
     *  a time in a process: the QNN backend keeps tables of its own.
     *  Throws Failure. */
    LoadedProgram(ProgramFile file, const Options &options);

    LoadedProgram(const LoadedProgram &) = delete;
    LoadedProgram &operator=(const LoadedProgram &) = delete;

    /** Fills in everything but `struct_size` and `handle`; refers to this object. */
    void describe(etg_engine_component &component) const noexcept;

    /** Executes a graph. Throws Failure. */
    void execute(const etg_engine_call &call);

    /** Memory that QNN shares with the processor (Android only). */
    detail::SharedMemory &shared_memory() noexcept
    {
        return component_->shared_memory();
    }

    /** Methods that the plug-in ABI cannot express, and why. */
    const std::vector<std::string> &left_out() const noexcept
    {
        return component_->left_out();
    }

  private:
    void load_program();
    void load_methods(const Program &program);

    // In the order in which each refers to the ones before.
    ProgramFile file_;
    std::unique_ptr<extension::BufferDataLoader> loader_;
    std::shared_ptr<runtime::Program> program_;
    std::unique_ptr<extension::Module> module_;
    std::unique_ptr<ModuleComponent> component_;

    std::vector<std::vector<IdRange>> id_ranges_;
    std::string description_;
    std::uint64_t weight_bytes_ = 0;
};

} // namespace etgenai::executorch

#endif
