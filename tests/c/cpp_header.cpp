// The C++ header with exceptions: errors are thrown, what a callback throws comes back, handles free themselves.
// Argument: the folder of a compiled model.
#include "etgenai.hpp"

#include <cstdio>
#include <string>
#include <utility>

namespace {

int failures = 0;

void check(bool holds, const char *what, int line)
{
    if (!holds) {
        std::fprintf(stderr, "cpp_header.cpp:%d: %s\n", line, what);
        ++failures;
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

void errors_are_thrown()
{
    etg::GenerateOptions options;
    try {
        options.temperature(-1.0f);
        CHECK(false);
    } catch (const etg::Error &error) {
        CHECK(error.code() == ETG_ERROR_INVALID_ARGUMENT);
        CHECK(std::string(error.what()).find("temperature") != std::string::npos);
    }
    try {
        etg::Runner runner("no such folder");
        CHECK(false);
    } catch (const etg::Error &error) {
        CHECK(error.code() == ETG_ERROR_NOT_FOUND);
    }
}

void a_conversation(const std::string &folder)
{
    etg::RunnerOptions opening;
    opening.threads(1);
    etg::Runner opened(folder, opening);
    etg::Runner runner = std::move(opened);

    etg::GenerateOptions options = runner.default_options();
    options.max_new_tokens(6);
    options.ignore_eos(true);
    etg::Messages messages;
    messages.add(etg::Role::user, "hello");
    CHECK(messages.size() == 1);

    std::string streamed;
    const etg::Turn turn = runner.generate(messages, options, [&](std::string_view text) { streamed += text; });
    CHECK(turn.status == ETG_STOP_LENGTH);
    CHECK(turn.text == streamed);
    CHECK(turn.tokens.size() == 6);
    CHECK(turn.stats.generated_tokens == 6);
    CHECK(runner.turn_count() == 1);
    CHECK(runner.position() < runner.context_capacity());
    CHECK(runner.stats_json().find("\"turn\"") != std::string::npos);

    // The same tokens from single steps.
    runner.reset();
    const etg::Tokenizer tokenizer = runner.tokenizer();
    etg::Detokenizer detokenizer(tokenizer);
    runner.prefill_prompt(runner.encode_prompt(messages));
    std::vector<std::uint32_t> reply;
    std::string text;
    while (reply.size() < turn.tokens.size()) {
        reply.push_back(runner.sample(options));
        text += detokenizer.push(reply.back());
        if (reply.size() < turn.tokens.size()) {
            runner.decode_one(reply.back());
        }
    }
    text += detokenizer.finish();
    CHECK(reply == turn.tokens);
    CHECK(text == turn.text);
    runner.commit_turn(messages, reply);
    CHECK(runner.turn_count() == 1);
    CHECK(tokenizer.decode(reply) == turn.text);
}

void what_a_callback_throws_comes_back(const std::string &folder)
{
    etg::Runner runner(folder);
    etg::Messages messages;
    messages.add(etg::Role::user, "hello");
    etg::GenerateOptions options;
    options.max_new_tokens(6);
    int calls = 0;
    try {
        (void)runner.generate_events(messages, options, [&](const etg_event &event) -> bool {
            if (event.kind == ETG_EVENT_TOKEN) {
                ++calls;
                throw std::string("from the callback");
            }
            return true;
        });
        CHECK(false);
    } catch (const std::string &thrown) {
        CHECK(thrown == "from the callback");
    }
    CHECK(calls == 1);
    // The runner is as good as before.
    CHECK(runner.generate(messages, options).status >= 0);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    errors_are_thrown();
    a_conversation(argv[1]);
    what_a_callback_throws_comes_back(argv[1]);
    CHECK(etg_live_handle_count() == 0);
    CHECK(etg::models_json().find("\"models\"") != std::string::npos);
    CHECK(etg_live_handle_count() == 0);
    return failures != 0;
}
