/*
 * The QNN libraries, as far as they are asked before a program is loaded: their versions, and what a context binary contains.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_QNN_SYSTEM_HPP
#define ETGENAI_SRC_EXECUTORCH_QNN_SYSTEM_HPP

#include "program.hpp"
#include "qnn_blob.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace etgenai::executorch {

struct QnnSystemInterface;

/** libQnnHtp.so and libQnnSystem.so, open for the rest of the process: the QNN backend opens them by bare name, and gets these
 *  then. */
class QnnLibraries {
  public:
    /** Opens both in `directory`, or by name if it is empty. The first call decides for the whole process. One call at a time.
     *  Throws Failure (unsupported) if a library is missing, or has a core API other than version 2. */
    static const QnnLibraries &open(const std::string &directory);

    /** Checks that the context binary of a delegate was made for a core API that the libraries have, that it has a graph of
     *  the method's name, and that this graph takes the arguments of `call` with their shapes and sizes in bytes.
     *  Throws Failure that names method, argument and values. */
    void check_graph(const std::uint8_t *file, const QnnBlob &blob, const Method &method, const Call &call) const;

    /** Where the libraries were opened; empty: by name. */
    const std::string &directory() const noexcept
    {
        return directory_;
    }

  private:
    explicit QnnLibraries(const std::string &directory);

    std::string directory_;
    const QnnSystemInterface *system_ = nullptr;
    std::uint32_t core_version_[3] = {};
};

} // namespace etgenai::executorch

#endif
