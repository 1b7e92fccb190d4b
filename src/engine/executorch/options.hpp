/*
 * Options of the engine library: the JSON object that etg_engine_open is given.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_OPTIONS_HPP
#define ETGENAI_SRC_EXECUTORCH_OPTIONS_HPP

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace etgenai::executorch {

/** How a program file gets into memory. */
enum class LoadMode {
    /** Mapped; pages are read when they are needed. The file must not be cut off meanwhile. */
    mmap,
    /** Read as a whole. */
    file,
};

struct Options {
    /** `library_dir`: where the kernel and backend libraries of ExecuTorch are. Empty: beside the runtime. */
    std::string library_dir;
    /** `libraries`: further kernel and backend libraries, opened before the first program is loaded. */
    std::vector<std::string> libraries;
    /** `qnn_library_dir`: where libQnnHtp.so and libQnnSystem.so are. Empty: ETGENAI_QNN_LIBRARY_DIR of the environment;
     *  without that the system's search for libraries. */
    std::string qnn_library_dir;
    /** `load_mode`: `mmap` or `file`. */
    LoadMode load_mode = LoadMode::mmap;
    /** `log_level`: `off`, `error`, `warning`, `info`, `debug` or `trace`, as a level of etg_engine_host::log. */
    std::int32_t log_level = 2;
    /** `handle_aborts`: make failed checks of the runtime errors (see hook_runtime). */
    bool handle_aborts = true;
};

/** Reads options; an empty text gives the defaults.
 *  Throws Failure (invalid argument) that names the key, or the byte. */
Options parse_options(std::string_view json);

} // namespace etgenai::executorch

#endif
