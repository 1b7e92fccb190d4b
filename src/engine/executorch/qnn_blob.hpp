/*
 * The compiled part that ExecuTorch's QNN backend executes, and its compile spec: what must hold before that backend may see
 * them, since it checks nothing itself.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_SRC_EXECUTORCH_QNN_BLOB_HPP
#define ETGENAI_SRC_EXECUTORCH_QNN_BLOB_HPP

#include "program.hpp"

#include <cstddef>
#include <cstdint>

namespace etgenai::executorch {

/** Name under which ExecuTorch knows the QNN backend. */
inline constexpr char kQnnBackend[] = "QnnBackend";

/** A QNN delegate whose header and compile spec are in order. */
struct QnnBlob {
    /** The context binary, as a range of the file. */
    Range binary;
    /** How the backend binds arguments: by position in the binary (true), or by number in the names. */
    bool from_context_binary = false;
};

/** Checks magic and sizes of the blob, that there is exactly one compile spec of the right name, that all its tables are
 *  there, that it asks for the HTP of a known processor, and that its enumerations are in range.
 *  Throws Failure that names `method`, the field and its value. */
QnnBlob check_qnn_delegate(const std::uint8_t *file, const Delegate &delegate, const Method &method);

/** Writes the signature of a QNN blob anew. It is a key of the whole process: two programs with one signature share a
 *  context, which ends with the first of them. */
void sign_qnn_blob(std::uint8_t *blob);

} // namespace etgenai::executorch

#endif
