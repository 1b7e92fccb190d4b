// Pictures through the C++ header with exceptions: made, shown, preprocessed, encoded, merged; handles free themselves.
// Arguments: the folder of a compiled model that takes pictures, and a picture.
#include "etgenai.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

int failures = 0;

void check(bool holds, const char *what, int line)
{
    if (!holds) {
        std::fprintf(stderr, "cpp_pictures.cpp:%d: %s\n", line, what);
        ++failures;
    }
}

#define CHECK(condition) check((condition), #condition, __LINE__)

std::vector<std::uint8_t> read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return std::vector<std::uint8_t>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void pictures_are_made(const std::string &path)
{
    const etg::Image image = etg::Image::open(path);
    CHECK(image.width() == 97 && image.height() == 61);
    CHECK(etg::Image::decode(read_file(path)).content_hash() == image.content_hash());

    etg::ImageOptions options;
    options.max_pixels(10);
    try {
        (void)etg::Image::open(path, &options);
        CHECK(false);
    } catch (const etg::Error &error) {
        CHECK(error.code() == ETG_ERROR_INVALID_ARGUMENT);
        CHECK(std::string(error.what()).find("97x61") != std::string::npos);
    }
    const std::uint8_t gray[] = {7, 8};
    CHECK(etg::Image::from_pixels(etg::PixelFormat::gray8, 2, 1, 2, gray, sizeof gray).width() == 2);
    etg_yuv420 frame = etg_yuv420_init();
    frame.width = frame.height = frame.y_row_stride = frame.uv_row_stride = 1;
    frame.y = frame.u = frame.v = gray;
    frame.y_length = frame.u_length = frame.v_length = 1;
    CHECK(etg::Image::from_yuv420(frame).height() == 1);
}

void a_conversation(const std::string &folder, const std::string &path)
{
    etg::RunnerOptions opening;
    opening.image_tiling(etg::Tiling::split);
    etg::Runner runner(folder, opening);
    CHECK(runner.takes_images());
    etg::GenerateOptions options;
    options.max_new_tokens(6);
    options.ignore_eos(true);

    const etg::Image image = etg::Image::open(path);
    etg::Messages messages;
    messages.begin(etg::Role::user);
    messages.add_image(image);
    messages.add_text("What is it?");
    const etg::Turn turn = runner.generate(messages, options);
    CHECK(turn.stats.images == 1 && turn.stats.encoded_images == 1);

    // The same from single steps.
    const etg::ImageProcessor processor = etg::ImageProcessor::open(folder);
    const etg::Pixels pixels = processor.process(image, etg::Tiling::split);
    const etg::TileLayout layout = processor.layout(image.width(), image.height(), etg::Tiling::split);
    CHECK(pixels.shape()[0] == layout.tiles() && pixels.layout().rows == layout.rows);
    const etg::Pixels by_runner = runner.preprocess(image);
    CHECK(std::equal(pixels.values().begin(), pixels.values().end(), by_runner.values().begin(), by_runner.values().end()));
    const etg::Embedding encoded = runner.encode(pixels);
    const etg::Embedding known = runner.encode(image);
    CHECK(std::equal(encoded.rows().begin(), encoded.rows().end(), known.rows().begin(), known.rows().end()));
    const etg::Embedding embedding =
        etg::Embedding::create(encoded.rows().data, encoded.row_count(), encoded.width(), encoded.layout());

    runner.reset();
    etg::Messages question;
    question.begin(etg::Role::user);
    question.add_embedding(embedding);
    question.add_text("What is it?");
    const etg::Runner::Ids prompt = runner.encode_prompt(question);
    etg::Runner::Rows rows = runner.embed_tokens(prompt);
    runner.merge(prompt, rows, {&embedding});
    runner.prefill_rows(prompt, rows);
    CHECK(runner.sample(options) == turn.tokens.front());
    runner.prefill_prompt_rows(prompt, rows);
    CHECK(runner.sample(options) == turn.tokens.front());
    runner.reset();
    runner.prefill_messages(question);
    CHECK(runner.sample(options) == turn.tokens.front());
}

void the_placeholder_rule(const std::string &path)
{
    const etg::Image image = etg::Image::open(path);
    etg::Messages messages;
    messages.add_placeholder_prompt("<image>What is it?", {&image});
    CHECK(messages.size() == 1);
    try {
        messages.add_placeholder_prompt("<image><image>", {&image});
        CHECK(false);
    } catch (const etg::Error &error) {
        CHECK(error.code() == ETG_ERROR_INVALID_ARGUMENT);
    }
    CHECK(messages.size() == 1);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    pictures_are_made(argv[2]);
    a_conversation(argv[1], argv[2]);
    the_placeholder_rule(argv[2]);
    CHECK(etg_live_handle_count() == 0);
    return failures != 0;
}
