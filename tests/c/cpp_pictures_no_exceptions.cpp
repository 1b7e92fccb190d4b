// Pictures through the C++ header without exceptions (compiled with -fno-exceptions).
// Arguments: the folder of a compiled model that takes pictures, and a picture.
#include "etgenai.hpp"

#include <cstdio>
#include <string>

namespace {

int failures = 0;

void check(bool holds, const char *what, int line)
{
    if (!holds) {
        std::fprintf(stderr, "cpp_pictures_no_exceptions.cpp:%d: %s\n", line, what);
        ++failures;
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    {
        const etg::Result<etg::Image> missing = etg::Image::open("no such picture");
        CHECK(!missing && missing.error().code == ETG_ERROR_NOT_FOUND);
        etg::Result<etg::Image> image = etg::Image::open(argv[2]);
        CHECK(static_cast<bool>(image));
        etg::Result<etg::Runner> runner = etg::Runner::open(argv[1]);
        CHECK(static_cast<bool>(runner) && runner->takes_images());
        etg::Result<etg::Embedding> embedding = runner->encode(*image);
        CHECK(static_cast<bool>(embedding) && embedding->rows().size == embedding->row_count() * embedding->width());
        etg::Result<etg::Runner::Rows> rows = runner->embed_tokens({1, 2});
        CHECK(static_cast<bool>(rows) && rows->size() == 2 * embedding->width());
        CHECK(!runner->merge({1, 2}, *rows, {&*embedding}));
        etg::Messages messages;
        CHECK(!messages.add_image(*image));
        CHECK(static_cast<bool>(messages.begin(etg::Role::user)));
        CHECK(static_cast<bool>(messages.add_image(*image)));
        etg::GenerateOptions options;
        CHECK(static_cast<bool>(options.max_new_tokens(2)));
        etg::Result<etg::Turn> turn = runner->generate(messages, options);
        CHECK(static_cast<bool>(turn) && turn->stats.images == 1 && turn->stats.encoded_images == 0);
    }
    CHECK(etg_live_handle_count() == 0);
    return failures != 0;
}
