/*
 * An engine of one's own in plain C, driven by etgenai's runner.
 *
 *     custom_engine TOKENIZER SENTENCE PROMPT...
 *
 * TOKENIZER is a tokenizer.json (or a folder with it). The engine stands for a network that knows one SENTENCE by heart: it
 * says that, whatever the PROMPTs of the conversation are, and ends its turn. What it heard and said before, it reads
 * from the KV cache, as any decoder does: the key of a token is its id.
 *
 * A real engine differs in `execute` only: that is where an accelerator gets the tensors.
 */
#include <etgenai.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of conversation, of the sentence, and numbers of the logits: as many as any tokenizer here has ids. */
enum { CONTEXT = 512, SENTENCE = 256, VOCABULARY = 65536 };

typedef struct network {
    int32_t sentence[SENTENCE];
    size_t length;
    int32_t end;
} network;

/* ---- what the engine looks like: one graph, which takes one token ---- */

static const uint64_t TOKEN[] = {1, 1}, MASK[] = {1, 1, 1, CONTEXT}, LOGITS[] = {1, 1, VOCABULARY};
static const uint64_t KEYS[] = {1, 1, 1, CONTEXT - 1}, VALUES[] = {1, 1, CONTEXT - 1, 1}, NEW[] = {1, 1, 1, 1};

#define TENSOR(name, dtype, dims) {name, sizeof(name) - 1, dtype, sizeof(dims) / sizeof((dims)[0]), dims}

static const etg_engine_tensor_info INPUTS[] = {
    TENSOR("tokens", ETG_DTYPE_I32, TOKEN), TENSOR("mask", ETG_DTYPE_F32, MASK),     TENSOR("positions", ETG_DTYPE_I32, TOKEN),
    TENSOR("k_cache", ETG_DTYPE_F32, KEYS), TENSOR("v_cache", ETG_DTYPE_F32, VALUES)};
static const etg_engine_tensor_info OUTPUTS[] = {
    TENSOR("logits", ETG_DTYPE_F32, LOGITS), TENSOR("new_k", ETG_DTYPE_F32, NEW), TENSOR("new_v", ETG_DTYPE_F32, NEW)};
static const etg_engine_graph GRAPH = {"kv_forward", 10, INPUTS, 5, OUTPUTS, 3};

static int32_t load(void *user_data, const etg_engine_source *source, etg_engine_component *component,
                    etg_engine_error *error)
{
    if (source->component_length != 12 || memcmp(source->component, "text_decoder", 12) != 0) {
        snprintf(error->message, error->capacity, "this engine is a text decoder and nothing else");
        return ETG_ENGINE_ERROR_UNSUPPORTED;
    }
    component->handle = user_data;
    component->graphs = &GRAPH;
    component->graph_count = 1;
    component->description = "one sentence, by heart";
    component->description_length = strlen(component->description);
    return ETG_ENGINE_OK;
}

/* ---- the network ---- */

/* The token `back` places before the current one. */
static int32_t token_before(const etg_engine_call *call, size_t back)
{
    const int32_t position = *(const int32_t *)call->inputs[2].data;
    const float *const keys = call->inputs[3].data;
    return back == 0 ? *(const int32_t *)call->inputs[0].data : (int32_t)keys[(size_t)position - back];
}

/* How much of the sentence has just been said: the most tokens at its beginning that end the conversation so far. */
static size_t said(const network *network, const etg_engine_call *call)
{
    const size_t heard = (size_t) * (const int32_t *)call->inputs[2].data + 1;
    for (size_t count = network->length < heard ? network->length : heard; count > 0; --count) {
        size_t same = 0;
        while (same < count && token_before(call, count - 1 - same) == network->sentence[same]) {
            ++same;
        }
        if (same == count) {
            return count;
        }
    }
    return 0;
}

static int32_t execute(void *user_data, void *component, const etg_engine_call *call, etg_engine_error *error)
{
    const network *const network = user_data;
    float *const logits = call->outputs[0].data;
    const size_t count = said(network, call);
    const int32_t next = count < network->length ? network->sentence[count] : network->end;

    (void)component;
    (void)error;
    memset(logits, 0, call->outputs[0].bytes);
    logits[next] = 10.0F;
    /* The runner keeps these in the caches, at the place of this token. */
    *(float *)call->outputs[1].data = (float)token_before(call, 0);
    *(float *)call->outputs[2].data = 0.0F;
    return ETG_ENGINE_OK;
}

static void close_component(void *user_data, void *component)
{
    (void)user_data;
    (void)component;
}

/* ---- a conversation with it ---- */

static int failed(const char *what)
{
    fprintf(stderr, "custom_engine: %s: %s\n", what, etg_last_error_message());
    return 1;
}

static etg_runner *open_runner(network *network, const char *tokenizer)
{
    etg_engine_functions functions = etg_engine_functions_init();
    etg_engine *engine = NULL;
    etg_model_files *files = NULL;
    etg_runner *runner = NULL;
    int32_t status;

    functions.user_data = network;
    functions.name = "custom";
    functions.name_length = strlen(functions.name);
    functions.load = load;
    functions.execute = execute;
    functions.close = close_component;
    status = etg_engine_from_functions(&functions, &engine);
    if (status >= 0) {
        status = etg_model_files_create(&files);
    }
    if (status >= 0) {
        status = etg_model_files_set_component_held(files, "text_decoder", 12);
    }
    if (status >= 0) {
        status = etg_model_files_set_tokenizer(files, tokenizer, strlen(tokenizer));
    }
    if (status >= 0) {
        status = etg_runner_open_files(files, engine, NULL, &runner);
    }
    if (status < 0) {
        failed("no runner");
    }
    etg_model_files_free(files);
    etg_engine_free(engine); /* the runner keeps what it needs */
    return runner;
}

/* Teaches the network its sentence, in tokens. Gives 0 if that worked. */
static int teach(network *network, etg_runner *runner, const char *sentence)
{
    etg_tokenizer *tokenizer = NULL;
    etg_buffer *sentence_ids = NULL;
    etg_buffer *end_ids = NULL;
    const uint32_t *ids = NULL;
    const uint32_t *ends = NULL;
    size_t count = 0;
    size_t end_count = 0;
    int code = 1;

    if (etg_runner_tokenizer(runner, &tokenizer) >= 0 &&
        etg_tokenizer_encode(tokenizer, sentence, strlen(sentence), 0, 0, &sentence_ids) >= 0 &&
        etg_buffer_ids(sentence_ids, &ids, &count) >= 0 && etg_tokenizer_eos_ids(tokenizer, &end_ids) >= 0 &&
        etg_buffer_ids(end_ids, &ends, &end_count) >= 0) {
        code = 0;
    }
    if (code != 0) {
        failed("the sentence");
    } else if (count == 0 || count > SENTENCE || end_count == 0) {
        fprintf(stderr, "custom_engine: a sentence has 1 to %d tokens, this one %zu\n", SENTENCE, count);
        code = 1;
    } else {
        for (size_t i = 0; i < count; ++i) {
            network->sentence[i] = (int32_t)ids[i];
        }
        network->length = count;
        network->end = (int32_t)ends[0];
    }
    etg_buffer_free(sentence_ids);
    etg_buffer_free(end_ids);
    etg_tokenizer_free(tokenizer);
    return code;
}

static int32_t on_event(void *user_data, const etg_event *event)
{
    (void)user_data;
    if (event->kind == ETG_EVENT_TEXT) {
        fwrite(event->text, 1, event->text_length, stdout);
    }
    return 0;
}

static int answer(etg_runner *runner, const char *prompt)
{
    etg_messages *messages = NULL;
    etg_turn_result result = etg_turn_result_init();
    int32_t status = etg_messages_create(&messages);

    if (status >= 0) {
        status = etg_messages_add(messages, ETG_ROLE_USER);
    }
    if (status >= 0) {
        status = etg_messages_add_text(messages, prompt, strlen(prompt));
    }
    if (status >= 0) {
        status = etg_runner_generate(runner, messages, NULL, on_event, NULL, &result);
    }
    etg_messages_free(messages);
    if (status < 0) {
        return failed("no reply");
    }
    putchar('\n');
    return 0;
}

int main(int argc, char **argv)
{
    static network network;
    etg_runner *runner;
    int code;

    if (argc < 4) {
        fputs("usage: custom_engine TOKENIZER SENTENCE PROMPT...\n", stderr);
        return 2;
    }
    if (etg_check_abi() != ETG_OK) {
        fprintf(stderr, "custom_engine: library %s does not fit this program\n", etg_version_string());
        return 1;
    }
    runner = open_runner(&network, argv[1]);
    code = runner == NULL ? 1 : teach(&network, runner, argv[2]);
    for (int i = 3; i < argc && code == 0; ++i) {
        code = answer(runner, argv[i]);
    }
    etg_runner_free(runner);
    return code;
}
