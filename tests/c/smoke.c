/*
 * What every C program relies on, without a model: the ABI check, handles, text in and out, errors, NULL everywhere,
 * the layout of the public structs.
 */
#include "etgenai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layout: no padding, no holes, so that every compiler agrees. */
_Static_assert(offsetof(etg_event, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(etg_event, kind) == 4, "kind");
_Static_assert(offsetof(etg_event, text) == 8, "text");
_Static_assert(offsetof(etg_event, text_length) == 8 + sizeof(void *), "text_length");
_Static_assert(offsetof(etg_event, token) == 8 + 2 * sizeof(void *), "token");
_Static_assert(offsetof(etg_event, done) == 16 + 2 * sizeof(void *), "done");
_Static_assert(sizeof(etg_event) == 32 + 2 * sizeof(void *), "no padding");
_Static_assert(offsetof(etg_turn_result, struct_size) == 0, "struct_size comes first");
_Static_assert(offsetof(etg_turn_result, seed) == 8 + 4 * sizeof(void *), "seed");
_Static_assert(offsetof(etg_turn_result, images) == 8 + 4 * sizeof(void *) + 14 * 8 + 8, "the first version's size");
_Static_assert(sizeof(etg_turn_result) == 8 + 4 * sizeof(void *) + 14 * 8 + 8 + 4 * 8, "no padding");
_Static_assert(offsetof(etg_yuv420, struct_size) == 0, "struct_size comes first");
_Static_assert(sizeof(etg_yuv420) == 8 + 11 * sizeof(void *), "no padding");
_Static_assert(offsetof(etg_progress, struct_size) == 0, "struct_size comes first");
_Static_assert(sizeof(etg_progress) == 8 + 2 * sizeof(void *) + 16, "no padding");

static int failures = 0;

static void check(int holds, const char *what, int line)
{
    if (!holds) {
        fprintf(stderr, "smoke.c:%d: %s (last error: %s)\n", line, what, etg_last_error_message());
        ++failures;
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

/* A call that must be refused as a bad argument, with a message. */
#define REFUSED(call) check((call) == ETG_ERROR_INVALID_ARGUMENT && etg_last_error_message()[0] != '\0', #call, __LINE__)

static void version_fits(void)
{
    CHECK(etg_check_abi() == ETG_OK);
    CHECK(etg_version_number() == (uint32_t)ETG_VERSION_NUMBER);
    CHECK(strcmp(etg_status_name(ETG_ERROR_BUSY), "ETG_ERROR_BUSY") == 0);
    CHECK(strcmp(etg_status_name(77), "unknown status") == 0);
}

static void messages_and_options(void)
{
    etg_messages *messages = NULL;
    etg_generate_options *options = NULL;
    size_t count = 99;

    CHECK(etg_messages_create(&messages) == ETG_OK);
    CHECK(etg_messages_add_text(messages, "early", 5) == ETG_ERROR_INVALID_STATE);
    REFUSED(etg_messages_add(messages, 17));
    CHECK(etg_messages_add(messages, ETG_ROLE_USER) == ETG_OK);
    CHECK(etg_messages_add_text(messages, "hello", 5) == ETG_OK);
    CHECK(etg_messages_add_text(messages, NULL, 0) == ETG_OK);
    REFUSED(etg_messages_add_text(messages, "\xff\xfe", 2));
    CHECK(strstr(etg_last_error_message(), "UTF-8") != NULL);
    CHECK(etg_messages_count(messages, &count) == ETG_OK && count == 1);

    CHECK(etg_generate_options_create(&options) == ETG_OK);
    CHECK(etg_generate_options_set_temperature(options, 0.5f) == ETG_OK);
    REFUSED(etg_generate_options_set_temperature(options, -1.0f));
    REFUSED(etg_generate_options_set_json(options, "{\"temprature\": 1}", 17));
    CHECK(strstr(etg_last_error_message(), "temprature") != NULL);
    CHECK(etg_generate_options_set_json(options, "{\"temperature\": 1}", 18) == ETG_OK);
    CHECK(etg_generate_options_set_json(options, "[", 1) == ETG_ERROR_FORMAT);

    /* Another kind of handle, a freed one, one made up: codes, not crashes. */
    REFUSED(etg_messages_clear((etg_messages *)(void *)options));
    CHECK(etg_generate_options_free(options) == ETG_OK);
    REFUSED(etg_generate_options_free(options));
    REFUSED(etg_generate_options_set_top_k(options, 4));
    REFUSED(etg_runner_cancel((etg_runner *)(void *)&count));
    CHECK(etg_messages_free(messages) == ETG_OK);
}

static void files_that_are_not_there(void)
{
    etg_runner *runner = (etg_runner *)(void *)&failures;
    etg_tokenizer *tokenizer = (etg_tokenizer *)(void *)&failures;
    etg_buffer *buffer = NULL;
    const char *nowhere = "no such folder";

    CHECK(etg_runner_open(nowhere, strlen(nowhere), NULL, &runner) == ETG_ERROR_NOT_FOUND && runner == NULL);
    CHECK(strstr(etg_last_error_message(), nowhere) != NULL);
    CHECK(etg_tokenizer_open(nowhere, strlen(nowhere), &tokenizer) == ETG_ERROR_NOT_FOUND && tokenizer == NULL);
    CHECK(etg_inspect_json(nowhere, strlen(nowhere), &buffer) == ETG_ERROR_NOT_FOUND && buffer == NULL);
    REFUSED(etg_runner_open("a\0b", 3, NULL, &runner));
    REFUSED(etg_runner_open(NULL, 0, NULL, &runner));
}

static void known_models(void)
{
    etg_buffer *buffer = NULL;
    const char *text = NULL;
    size_t length = 0;

    CHECK(etg_models_json(&buffer) == ETG_OK);
    CHECK(etg_buffer_text(buffer, &text, &length) == ETG_OK && length > 2 && strlen(text) == length);
    CHECK(etg_buffer_free(buffer) == ETG_OK);
}

static int destroyed = 0;

static void count_messages(void *user_data, int32_t level, const char *text, size_t length)
{
    (void)text;
    if (level >= ETG_LOG_ERROR && level <= ETG_LOG_WARN && length > 0) {
        ++*(int *)user_data;
    }
}

static void count_destroyed(void *user_data)
{
    (void)user_data;
    ++destroyed;
}

static void log_sink(void)
{
    int received = 0;

    REFUSED(etg_set_log_sink(count_messages, &received, count_destroyed, 99));
    CHECK(destroyed == 0);
    CHECK(etg_set_log_sink(count_messages, &received, count_destroyed, ETG_LOG_WARN) == ETG_OK);
    REFUSED(etg_runner_cancel(NULL));
    CHECK(received == 1);
    CHECK(etg_set_log_sink(NULL, NULL, NULL, ETG_LOG_OFF) == ETG_OK);
    CHECK(destroyed == 1);
    REFUSED(etg_runner_cancel(NULL));
    CHECK(received == 1);
}

int main(void)
{
    version_fits();
    messages_and_options();
    files_that_are_not_there();
    known_models();
    log_sink();
    CHECK(etg_live_handle_count() == 0);
    if (failures == 0) {
        puts("smoke: ok");
    }
    return failures != 0;
}
