/*
 * etgenai: the engine plug-in ABI.
 *
 * An engine loads components (compiled programs) and executes their graphs on memory of the caller. It knows nothing of
 * conversations. This header is all an engine needs; it is plain C11, has no other header of etgenai in it, and has a
 * version of its own. It is used three ways:
 *
 * - a host hands over its functions: fill in an etg_engine_functions and call etg_engine_from_functions (etgenai.h);
 * - an engine is a shared library of its own that exports etg_engine_open: etg_engine_load_library (etgenai.h);
 * - the engines inside etgenai are reachable as functions too: etg_engine_get_functions (etgenai.h).
 *
 * House rules, true of everything here:
 *
 * - Versions. ETG_ENGINE_ABI_MAJOR changes when something here changes its meaning; such engines and hosts refuse each
 *   other. The minor number grows when something is added at the end of a struct. Each struct begins with its size as its
 *   maker knew it: read nothing beyond it, and treat what is missing as zero.
 * - Text is UTF-8 with a length in bytes, without NUL. Text in an error is the exception.
 * - Nobody throws. No C++ exception, longjmp or panic may cross a function of this header.
 * - Threads. Calls about one component never overlap, but may come from one thread after another. Calls about different
 *   components may come at the same time, `load` included.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_ENGINE_H
#define ETGENAI_ENGINE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** Changes when something changes its meaning. */
#define ETG_ENGINE_ABI_MAJOR 1
/** Grows when something is added. */
#define ETG_ENGINE_ABI_MINOR 0
/** Both as one number. */
#define ETG_ENGINE_ABI_VERSION (ETG_ENGINE_ABI_MAJOR * 1000 + ETG_ENGINE_ABI_MINOR)

/** What a function of an engine returns; the numbers are those of etgenai.h. Any other number counts as
 *  ETG_ENGINE_ERROR_FAILED. */
#define ETG_ENGINE_OK 0
/** The call itself is wrong (count, size, index): nothing was done. */
#define ETG_ENGINE_ERROR_INVALID_ARGUMENT (-1)
/** The file does not exist. */
#define ETG_ENGINE_ERROR_NOT_FOUND (-2)
/** The file cannot be read. */
#define ETG_ENGINE_ERROR_IO (-3)
/** The file is damaged, or not what it should be. */
#define ETG_ENGINE_ERROR_FORMAT (-4)
/** The file is well formed, but this engine cannot run it (operator, backend, processor). */
#define ETG_ENGINE_ERROR_UNSUPPORTED (-5)
/** Loading or executing failed. */
#define ETG_ENGINE_ERROR_FAILED (-11)

/** Element types. */
#define ETG_DTYPE_F32 1
#define ETG_DTYPE_F16 2
#define ETG_DTYPE_BF16 3
#define ETG_DTYPE_U8 4
#define ETG_DTYPE_I8 5
#define ETG_DTYPE_U16 6
#define ETG_DTYPE_I16 7
#define ETG_DTYPE_I32 8
#define ETG_DTYPE_I64 9

/** Kinds of values. */
#define ETG_VALUE_INTEGER 1
#define ETG_VALUE_REAL 2
#define ETG_VALUE_BOOLEAN 3
#define ETG_VALUE_TEXT 4

#ifdef __cplusplus
extern "C" {
#endif

/** Where a function writes why it failed. Memory of the caller. */
typedef struct etg_engine_error {
    /** sizeof(etg_engine_error) of the caller. */
    uint32_t struct_size;
    /** Room for UTF-8 text that ends in NUL; longer text is cut. */
    char *message;
    /** Bytes of room, the NUL included; at least 1. */
    size_t capacity;
} etg_engine_error;

/** What to load: a file, or bytes. */
typedef struct etg_engine_source {
    /** sizeof(etg_engine_source) of the caller. */
    uint32_t struct_size;
    /** What the program is for: `text_decoder`, `tok_embedding`, `vision_encoder`, `audio_encoder` or
     *  `attention_sink_evictor`. An engine that holds loaded programs already goes by this. */
    const char *component;
    size_t component_length;
    /** The file; length 0 if there are bytes. Valid during the call only. */
    const char *path;
    size_t path_length;
    /** The content, or NULL if there is a path. Valid and unchanged until the component is closed, so it may be used in
     *  place; aligned to 16 bytes. */
    const uint8_t *bytes;
    size_t bytes_length;
    /** 1: allocate I/O memory that the processor shares, if there is such memory (see `allocate`). 0: do not. */
    uint32_t shared_memory;
} etg_engine_source;

/** Name, element type and fixed shape of an input or output. Tensors are dense and row-major. */
typedef struct etg_engine_tensor_info {
    const char *name;
    size_t name_length;
    /** ETG_DTYPE_… */
    int32_t dtype;
    /** Number of dimensions, at most 16. */
    uint32_t rank;
    /** Dimensions, outermost first. */
    const uint64_t *dims;
} etg_engine_tensor_info;

/** A graph that can be executed. */
typedef struct etg_engine_graph {
    const char *name;
    size_t name_length;
    const etg_engine_tensor_info *inputs;
    size_t input_count;
    const etg_engine_tensor_info *outputs;
    size_t output_count;
} etg_engine_graph;

/** One number or text of a constant. */
typedef struct etg_engine_value {
    /** ETG_VALUE_…; says which of the fields below counts. */
    int32_t kind;
    /** Also 0 or 1 for a boolean. */
    int64_t integer;
    double real;
    const char *text;
    size_t text_length;
} etg_engine_value;

/** A named constant of a program, e.g. `get_n_layers`: one value or several. */
typedef struct etg_engine_constant {
    const char *name;
    size_t name_length;
    const etg_engine_value *values;
    size_t value_count;
} etg_engine_constant;

/** A loaded component. Everything it points to belongs to the engine and stays as it is until the component is closed. The
 *  structs in its arrays keep their layout within a major version. */
typedef struct etg_engine_component {
    /** sizeof(etg_engine_component) of whoever allocated it (the caller of `load`). */
    uint32_t struct_size;
    /** Passed to all functions about this component; the engine's own. */
    void *handle;
    const etg_engine_graph *graphs;
    size_t graph_count;
    const etg_engine_constant *constants;
    size_t constant_count;
    /** Bytes of weights held, mapped or in memory; 0 if not known. */
    uint64_t weight_bytes;
    /** What executes, for people, e.g. `ExecuTorch 1.5.1, QnnBackend`. */
    const char *description;
    size_t description_length;
} etg_engine_component;

/** Memory of one tensor. */
typedef struct etg_engine_tensor {
    /** Aligned to 16 bytes at least. Of an input the engine only reads it. */
    void *data;
    /** Exactly the size of the signature's tensor. */
    size_t bytes;
} etg_engine_tensor;

/** One execution. */
typedef struct etg_engine_call {
    /** sizeof(etg_engine_call) of the caller. */
    uint32_t struct_size;
    /** Index of the graph. */
    uint32_t graph;
    /** In the order of the signature. The memory belongs to the caller; an engine may remember addresses from one call to
     *  the next (callers keep them stable), but must read and write nothing between calls. */
    const etg_engine_tensor *inputs;
    size_t input_count;
    const etg_engine_tensor *outputs;
    size_t output_count;
    /** Hint: rows of the block that are real; the outputs of later rows may hold anything. SIZE_MAX: all. */
    size_t valid_rows;
    /** Hint: rows of output 0 (logits) that will be read, from first to before end. 0 and SIZE_MAX: all. */
    size_t first_logits_row;
    size_t end_logits_row;
} etg_engine_call;

/** An engine. Whoever fills it in keeps `user_data` valid until `destroy` is called. */
typedef struct etg_engine_functions {
    /** sizeof(etg_engine_functions) of whoever filled it in. */
    uint32_t struct_size;
    /** ETG_ENGINE_ABI_VERSION of whoever filled it in. */
    uint32_t abi_version;
    /** Passed to all functions. */
    void *user_data;
    /** Short name, e.g. `executorch`; valid until `destroy`. */
    const char *name;
    size_t name_length;

    /** Load a component and describe it in `*component_out`, whose struct_size the caller has set.
     *  After an error nothing is loaded, and `close` is not called. */
    int32_t (*load)(void *user_data, const etg_engine_source *source, etg_engine_component *component_out,
                    etg_engine_error *error);

    /** Execute a graph.
     *  After ETG_ENGINE_ERROR_INVALID_ARGUMENT nothing was executed and no output was written. After another error the
     *  outputs hold anything; the component can still be executed, described and closed. */
    int32_t (*execute)(void *user_data, void *component, const etg_engine_call *call, etg_engine_error *error);

    /** Close a component. Memory of `allocate` has been released before. Cannot fail. */
    void (*close)(void *user_data, void *component);

    /** Optional (both or none): memory for inputs and outputs of this component that the processor can use without a
     *  copy; zeroed, aligned to `alignment` (a power of two). NULL memory with ETG_ENGINE_OK: there is none of that kind, use
     *  ordinary memory. */
    int32_t (*allocate)(void *user_data, void *component, size_t bytes, size_t alignment, void **memory_out,
                        etg_engine_error *error);
    void (*release)(void *user_data, void *component, void *memory);

    /** Optional: the engine is not needed any more; all components are closed. Called once. */
    void (*destroy)(void *user_data);
} etg_engine_functions;

/** What an engine library may use of whoever loads it. Valid until `destroy`. */
typedef struct etg_engine_host {
    /** sizeof(etg_engine_host) of the host. */
    uint32_t struct_size;
    /** ETG_ENGINE_ABI_VERSION of the host. */
    uint32_t abi_version;
    void *user_data;
    /** Write a line to the host's log: level 1 error, 2 warning, 3 information, 4 debug, 5 trace. Any thread. */
    void (*log)(void *user_data, int32_t level, const char *message, size_t message_length);
} etg_engine_host;

/** The function an engine library exports, under the name ETG_ENGINE_OPEN_SYMBOL: fill in `*functions_out`, whose
 *  struct_size the host has set. `options` is a JSON object, or empty; an unknown key is an error that names it.
 *  After an error there is no engine, and `destroy` is not called. */
typedef int32_t (*etg_engine_open_fn)(const etg_engine_host *host, const char *options, size_t options_length,
                                      etg_engine_functions *functions_out, etg_engine_error *error);
#define ETG_ENGINE_OPEN_SYMBOL "etg_engine_open"

/** Functions to fill in: size and version set, everything else zero. */
static inline etg_engine_functions etg_engine_functions_init(void)
{
    etg_engine_functions functions;
    memset(&functions, 0, sizeof functions);
    functions.struct_size = (uint32_t)sizeof functions;
    functions.abi_version = ETG_ENGINE_ABI_VERSION;
    return functions;
}

#ifdef __cplusplus
}
#endif

#endif /* ETGENAI_ENGINE_H */
