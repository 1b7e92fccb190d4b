// The C++ header without exceptions (compiled with -fno-exceptions): every call that can fail returns a result to test.
// Argument: the folder of a compiled model.
#include "etgenai.hpp"

#include <cstdio>
#include <string>

namespace {

int failures = 0;

void check(bool holds, const char *what, int line)
{
    if (!holds) {
        std::fprintf(stderr, "cpp_no_exceptions.cpp:%d: %s\n", line, what);
        ++failures;
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    const etg::Result<etg::Runner> missing = etg::Runner::open("no such folder");
    CHECK(!missing);
    CHECK(missing.error().code == ETG_ERROR_NOT_FOUND);
    CHECK(missing.error().message.find("no such folder") != std::string::npos);

    {
        etg::Result<etg::Runner> runner = etg::Runner::open(argv[1]);
        CHECK(static_cast<bool>(runner));
        etg::GenerateOptions options;
        CHECK(!options.top_p(7.0f));
        CHECK(static_cast<bool>(options.max_new_tokens(4)));
        etg::Messages messages;
        CHECK(static_cast<bool>(messages.add(etg::Role::user, "hello")));
        std::string streamed;
        etg::Result<etg::Turn> turn =
            runner->generate(messages, options, [&](std::string_view text) { streamed += text; });
        CHECK(static_cast<bool>(turn) && turn->text == streamed);
        etg::Result<etg::Tokenizer> tokenizer = runner->tokenizer();
        etg::Result<std::vector<std::uint32_t>> ids = tokenizer->encode("hello");
        CHECK(static_cast<bool>(ids) && !ids->empty());
        CHECK(*tokenizer->decode(*ids) == "hello");
    }
    CHECK(etg_live_handle_count() == 0);
    return failures != 0;
}
