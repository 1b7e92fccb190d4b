/*
 * The chat of chat.c made of single steps: what a program does that wants to do some of them itself.
 *
 *     stages [--max-new-tokens N] FOLDER PROMPT...
 *
 * FOLDER is a compiled model, each PROMPT one turn. Per turn: the conversation to token ids, prefill of what is new,
 * then sample, show, decode until the reply ends. It prints the same text and the same ids as `chat --tokens`.
 */
#include <etgenai.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sampled ids of one reply. */
typedef struct {
    uint32_t *ids;
    size_t count;
    size_t room;
} id_list;

static int append(id_list *list, uint32_t id)
{
    if (list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : 64;
        uint32_t *ids = realloc(list->ids, room * sizeof *ids);
        if (!ids) {
            return 0;
        }
        list->ids = ids;
        list->room = room;
    }
    list->ids[list->count++] = id;
    return 1;
}

/* Brings the prompt into the KV cache; what is there already is not computed again. */
static int32_t prefill_new(etg_runner *runner, const etg_messages *messages)
{
    etg_buffer *prompt = NULL;
    const uint32_t *ids = NULL;
    size_t count = 0;
    int32_t status = etg_runner_encode_prompt(runner, messages, &prompt);

    if (status >= 0) {
        status = etg_buffer_ids(prompt, &ids, &count);
    }
    if (status >= 0) {
        status = etg_runner_prefill_prompt(runner, ids, count);
    }
    etg_buffer_free(prompt);
    return status;
}

/* Samples and decodes until the reply ends; its text goes to standard output, its ids to `reply`. */
static int32_t write_reply(etg_runner *runner, const etg_generate_options *options, etg_detokenizer *detokenizer,
                           size_t max_new_tokens, id_list *reply)
{
    const char *text = NULL;
    size_t length = 0;
    int32_t status = ETG_OK;

    while (status == ETG_OK) {
        uint32_t id = 0;
        int32_t is_end = 0;
        size_t position = 0;
        size_t capacity = 0;

        if ((status = etg_runner_sample(runner, options, &id)) < 0 ||
            (status = etg_runner_is_eos(runner, id, &is_end)) < 0 || is_end) {
            break;
        }
        if (!append(reply, id)) {
            fprintf(stderr, "stages: out of memory\n");
            exit(1);
        }
        if ((status = etg_detokenizer_push(detokenizer, id, &text, &length)) < 0) {
            break;
        }
        fwrite(text, 1, length, stdout);
        fflush(stdout);

        if (max_new_tokens > 0 && reply->count == max_new_tokens) {
            status = ETG_STOP_LENGTH;
        } else if ((status = etg_runner_position(runner, &position)) >= 0 &&
                   (status = etg_runner_context_capacity(runner, &capacity)) >= 0) {
            /* The token needs a slot, and the next one after it. */
            status = position + 2 > capacity ? ETG_STOP_CONTEXT_FULL : etg_runner_decode_one(runner, id);
        }
    }
    if (status >= 0) {
        const int32_t finished = etg_detokenizer_finish(detokenizer, &text, &length);
        if (finished < 0) {
            return finished;
        }
        fwrite(text, 1, length, stdout);
    }
    return status;
}

/* One turn. Gives 0 when the conversation can go on. */
static int answer(etg_runner *runner, const etg_generate_options *options, etg_detokenizer *detokenizer,
                  size_t max_new_tokens, const char *prompt)
{
    etg_messages *messages = NULL;
    id_list reply = {NULL, 0, 0};
    int32_t status = etg_messages_create(&messages);

    if (status >= 0) {
        status = etg_messages_add(messages, ETG_ROLE_USER);
    }
    if (status >= 0) {
        status = etg_messages_add_text(messages, prompt, strlen(prompt));
    }
    if (status >= 0) {
        status = prefill_new(runner, messages);
    }
    if (status >= 0) {
        status = write_reply(runner, options, detokenizer, max_new_tokens, &reply);
    }
    if (status >= 0) {
        const int32_t committed = etg_runner_commit_turn(runner, messages, reply.ids, reply.count);
        status = committed < 0 ? committed : status;
    }
    if (status < 0) {
        fprintf(stderr, "stages: %s: %s\n", etg_status_name(status), etg_last_error_message());
    } else {
        printf("\ntokens:");
        for (size_t i = 0; i < reply.count; ++i) {
            printf(" %lu", (unsigned long)reply.ids[i]);
        }
        putchar('\n');
        if (status != ETG_OK) {
            fprintf(stderr, "[%s]\n", etg_status_name(status));
        }
    }
    free(reply.ids);
    etg_messages_free(messages);
    return status < 0;
}

int main(int argc, char **argv)
{
    etg_runner *runner = NULL;
    etg_generate_options *options = NULL;
    etg_tokenizer *tokenizer = NULL;
    etg_detokenizer *detokenizer = NULL;
    unsigned long max_new_tokens = 0;
    int next = 1;
    int code = 0;
    int32_t status;

    if (argc > 2 && strcmp(argv[1], "--max-new-tokens") == 0) {
        max_new_tokens = strtoul(argv[2], NULL, 10);
        next = 3;
    }
    if (argc - next < 2) {
        fputs("usage: stages [--max-new-tokens N] FOLDER PROMPT...\n", stderr);
        return 2;
    }
    if (etg_check_abi() != ETG_OK) {
        fprintf(stderr, "stages: library %s does not fit this program\n", etg_version_string());
        return 1;
    }

    status = etg_runner_open(argv[next], strlen(argv[next]), NULL, &runner);
    if (status >= 0) {
        status = etg_runner_default_options(runner, &options);
    }
    if (status >= 0) {
        status = etg_runner_tokenizer(runner, &tokenizer);
    }
    if (status >= 0) {
        status = etg_detokenizer_create(tokenizer, 1, &detokenizer);
    }
    if (status < 0) {
        fprintf(stderr, "stages: %s: %s\n", etg_status_name(status), etg_last_error_message());
        code = 1;
    }
    for (++next; code == 0 && next < argc; ++next) {
        code = answer(runner, options, detokenizer, max_new_tokens, argv[next]);
    }

    etg_detokenizer_free(detokenizer);
    etg_tokenizer_free(tokenizer);
    etg_generate_options_free(options);
    etg_runner_free(runner);
    return code;
}
