/*
 * etgenai for C++17: handles that free themselves, errors as exceptions, callbacks as std::function.
 *
 * Header only; everything it does goes through etgenai.h, which has the full contract of every call.
 *
 *     etg::Runner runner("model");
 *     etg::Messages question;
 *     question.add(etg::Role::user, "What is the capital of France?");
 *     runner.generate(question, [](std::string_view text) { std::cout << text << std::flush; });
 *
 * With ETG_NO_EXCEPTIONS defined (or exceptions off in the compiler) every call that can fail returns etg::Result<T>
 * instead: test it, then use * or ->. Objects are then made by their static open() and create().
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ETGENAI_HPP
#define ETGENAI_HPP

#include "etgenai.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if !defined(ETG_NO_EXCEPTIONS) && !defined(__cpp_exceptions) && !defined(_CPPUNWIND)
#define ETG_NO_EXCEPTIONS
#endif

#ifndef ETG_NO_EXCEPTIONS
#include <exception>
#include <stdexcept>
#else
#include <cstdlib>
#endif

namespace etg {

/** A failed call: its status code and what the library says about it. */
struct ErrorInfo {
    std::int32_t code = ETG_OK;
    std::string message;

    /** The failure that the calling thread has just had. */
    static ErrorInfo last(std::int32_t code)
    {
        return {code, etg_last_error_message()};
    }
};

#ifndef ETG_NO_EXCEPTIONS

/** Thrown by every call that fails. */
class Error : public std::runtime_error {
public:
    explicit Error(const ErrorInfo &info) : std::runtime_error(info.message), code_(info.code) {}

    /** An ETG_ERROR_ constant. */
    std::int32_t code() const noexcept { return code_; }

private:
    std::int32_t code_;
};

/** What a call that can fail returns: the value itself. */
template <typename T> using Result = T;

namespace detail {
template <typename T> T fail(std::int32_t code)
{
    throw Error(ErrorInfo::last(code));
}
inline void done() {}
} // namespace detail

#else

/** What a call that can fail returns: a value or an error. */
template <typename T> class [[nodiscard]] Result {
public:
    Result(T value) : value_(std::move(value)) {}
    Result(ErrorInfo error) : error_(std::move(error)) {}

    explicit operator bool() const noexcept { return value_.has_value(); }
    /** The value. Reading it when there is none ends the program. */
    T &operator*() & { return get(); }
    T &&operator*() && { return std::move(get()); }
    T *operator->() { return &get(); }
    /** The error; its code is ETG_OK when there is a value. */
    const ErrorInfo &error() const noexcept { return error_; }

private:
    T &get()
    {
        if (!value_) {
            std::abort();
        }
        return *value_;
    }

    std::optional<T> value_;
    ErrorInfo error_;
};

/** Success, or an error. */
template <> class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(ErrorInfo error) : error_(std::move(error)) {}

    explicit operator bool() const noexcept { return error_.code == ETG_OK; }
    const ErrorInfo &error() const noexcept { return error_; }

private:
    ErrorInfo error_;
};

namespace detail {
template <typename T> Result<T> fail(std::int32_t code)
{
    return ErrorInfo::last(code);
}
inline Result<void> done()
{
    return {};
}
} // namespace detail

#endif

namespace detail {

/** Owns one C handle. */
template <typename T, std::int32_t (*Free)(T *)> struct Deleter {
    void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, std::int32_t (*Free)(T *)> using Owned = std::unique_ptr<T, Deleter<T, Free>>;

using Buffer = Owned<etg_buffer, etg_buffer_free>;

/** The text of a buffer. */
inline std::string text_of(const Buffer &buffer)
{
    const char *text = nullptr;
    std::size_t length = 0;
    return etg_buffer_text(buffer.get(), &text, &length) == ETG_OK ? std::string(text, length) : std::string();
}

/** The ids of a buffer. */
inline std::vector<std::uint32_t> ids_of(const Buffer &buffer)
{
    const std::uint32_t *ids = nullptr;
    std::size_t count = 0;
    if (etg_buffer_ids(buffer.get(), &ids, &count) != ETG_OK || count == 0) {
        return {};
    }
    return std::vector<std::uint32_t>(ids, ids + count);
}

/** A call that makes a text buffer. */
template <typename Call> Result<std::string> text_from(Call &&call)
{
    etg_buffer *raw = nullptr;
    const std::int32_t status = call(&raw);
    const Buffer buffer(raw);
    if (status < 0) {
        return fail<std::string>(status);
    }
    return text_of(buffer);
}

/** A call that makes an id buffer. */
template <typename Call> Result<std::vector<std::uint32_t>> ids_from(Call &&call)
{
    etg_buffer *raw = nullptr;
    const std::int32_t status = call(&raw);
    const Buffer buffer(raw);
    if (status < 0) {
        return fail<std::vector<std::uint32_t>>(status);
    }
    return ids_of(buffer);
}

/** A call that makes a handle, as an object that owns it. */
template <typename Object, typename Handle, typename Call> Result<Object> object_from(Call &&call)
{
    Handle *raw = nullptr;
    const std::int32_t status = call(&raw);
    if (status < 0) {
        return fail<Object>(status);
    }
    return Object(raw);
}

/** A call without a result. */
inline Result<void> check(std::int32_t status)
{
    if (status < 0) {
        return fail<void>(status);
    }
    return done();
}

/** Keeps what a callback throws until the C call is over: no exception may cross the library. */
class Caught {
public:
    /** Run `callback`; gives 0 to go on, 1 to stop (also when it threw). */
    template <typename Callback> std::int32_t run(Callback &&callback) noexcept
    {
#ifndef ETG_NO_EXCEPTIONS
        if (exception_) {
            return 1;
        }
        try {
            return callback() ? 0 : 1;
        } catch (...) {
            exception_ = std::current_exception();
            return 1;
        }
#else
        return callback() ? 0 : 1;
#endif
    }

    /** Throw what was kept. */
    void rethrow() const
    {
#ifndef ETG_NO_EXCEPTIONS
        if (exception_) {
            std::rethrow_exception(exception_);
        }
#endif
    }

#ifndef ETG_NO_EXCEPTIONS
private:
    std::exception_ptr exception_;
#endif
};

} // namespace detail

/** How the tiles of a picture lie: rows by cols crops, then the overview if there is one. */
struct TileLayout {
    std::size_t rows = 0;
    std::size_t cols = 0;
    bool overview = true;

    /** Number of tiles. */
    std::size_t tiles() const noexcept { return rows * cols + (overview ? 1 : 0); }
};

/** How pictures are cut: see the ETG_TILING_ constants. */
enum class Tiling : std::int32_t {
    checkpoint = ETG_TILING_CHECKPOINT,
    split = ETG_TILING_SPLIT,
    whole = ETG_TILING_WHOLE,
    single = ETG_TILING_SINGLE,
};

/** How the bytes of a pixel are laid out: see the ETG_PIXELS_ constants. */
enum class PixelFormat : std::int32_t {
    rgb8 = ETG_PIXELS_RGB8,
    rgba8 = ETG_PIXELS_RGBA8,
    bgra8 = ETG_PIXELS_BGRA8,
    gray8 = ETG_PIXELS_GRAY8,
};

/** Which published preprocessing a checkpoint was made with. */
enum class ImageFamily : std::int32_t {
    smolvlm = ETG_IMAGE_FAMILY_SMOLVLM,
    internvl = ETG_IMAGE_FAMILY_INTERNVL,
};

/** Floats of the library's, read in place: valid as long as the object they came from. */
struct FloatView {
    const float *data = nullptr;
    std::size_t size = 0;

    const float *begin() const noexcept { return data; }
    const float *end() const noexcept { return data + size; }
};

namespace detail {

/** A call that says how tiles lie. */
template <typename Call> Result<TileLayout> layout_from(Call &&call)
{
    TileLayout layout;
    std::int32_t overview = 0;
    const std::int32_t status = call(&layout.rows, &layout.cols, &overview);
    if (status < 0) {
        return fail<TileLayout>(status);
    }
    layout.overview = overview != 0;
    return layout;
}

} // namespace detail

/** How pictures are decoded: limits, and what becomes of transparency. */
class ImageOptions {
public:
    ImageOptions()
    {
        etg_image_options *raw = nullptr;
        (void)!etg_image_options_create(&raw);
        handle_.reset(raw);
    }

    Result<void> max_pixels(std::uint64_t count) { return detail::check(etg_image_options_set_max_pixels(get(), count)); }
    Result<void> max_bytes(std::uint64_t count) { return detail::check(etg_image_options_set_max_bytes(get(), count)); }
    Result<void> alpha_background(std::uint8_t red, std::uint8_t green, std::uint8_t blue)
    {
        return detail::check(etg_image_options_set_alpha_background(get(), red, green, blue));
    }
    Result<void> alpha_ignored() { return detail::check(etg_image_options_set_alpha_ignored(get())); }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_image_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_image_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_image_options, etg_image_options_free> handle_;
};

/** A picture. `options` of NULL are the defaults. */
class Image {
public:
    using Hash = std::array<std::uint8_t, ETG_IMAGE_HASH_BYTES>;

    /** Take over a C handle. */
    explicit Image(etg_image *owned) : handle_(owned) {}

    /** From the bytes of a JPEG, PNG, WebP, BMP or GIF file. */
    static Result<Image> decode(const void *bytes, std::size_t length, const ImageOptions *options = nullptr)
    {
        return make([&](etg_image **out) {
            return etg_image_from_encoded(static_cast<const std::uint8_t *>(bytes), length, raw(options), out);
        });
    }
    static Result<Image> decode(const std::vector<std::uint8_t> &bytes, const ImageOptions *options = nullptr)
    {
        return decode(bytes.data(), bytes.size(), options);
    }
    static Result<Image> open(std::string_view path, const ImageOptions *options = nullptr)
    {
        return make([&](etg_image **out) {
            return etg_image_from_file(path.data(), path.size(), raw(options), out);
        });
    }
    /** From pixels in memory; `row_stride` is bytes from row to row. */
    static Result<Image> from_pixels(PixelFormat format, std::size_t width, std::size_t height, std::size_t row_stride,
                                     const void *data, std::size_t length, const ImageOptions *options = nullptr)
    {
        return make([&](etg_image **out) {
            return etg_image_from_pixels(static_cast<std::int32_t>(format), width, height, row_stride,
                                         static_cast<const std::uint8_t *>(data), length, raw(options), out);
        });
    }
    /** From a camera frame; begin with etg_yuv420_init(). */
    static Result<Image> from_yuv420(const etg_yuv420 &frame, const ImageOptions *options = nullptr)
    {
        return make([&](etg_image **out) { return etg_image_from_yuv420(&frame, raw(options), out); });
    }
    /** From normalized floats [tiles, 3, height, width]. */
    static Result<Image> from_tensor(const float *values, std::size_t count, const TileLayout &layout,
                                     std::size_t height, std::size_t width)
    {
        return make([&](etg_image **out) {
            return etg_image_from_tiles(values, count, layout.rows, layout.cols, layout.overview ? 1 : 0, height, width,
                                        out);
        });
    }

    std::size_t width() const { return size().first; }
    std::size_t height() const { return size().second; }

    /** SHA-256 of the content. */
    Hash content_hash() const
    {
        Hash hash{};
        (void)!etg_image_content_hash(get(), hash.data());
        return hash;
    }

    /** The C handle, still owned by this object. */
    etg_image *get() const noexcept { return handle_.get(); }

private:
    template <typename Call> static Result<Image> make(Call &&call)
    {
        return detail::object_from<Image, etg_image>(std::forward<Call>(call));
    }
    static const etg_image_options *raw(const ImageOptions *options) { return options ? options->get() : nullptr; }
    std::pair<std::size_t, std::size_t> size() const
    {
        std::pair<std::size_t, std::size_t> size{0, 0};
        (void)!etg_image_size(get(), &size.first, &size.second);
        return size;
    }

    detail::Owned<etg_image, etg_image_free> handle_;
};

/** Normalized tiles of a picture, as a vision encoder takes them. */
class Pixels {
public:
    /** Take over a C handle. */
    explicit Pixels(etg_pixels *owned) : handle_(owned) {}

    /** [tiles, 3, height, width]; valid as long as this object. */
    FloatView values() const
    {
        FloatView view;
        (void)!etg_pixels_values(get(), &view.data, &view.size);
        return view;
    }
    /** Tiles, height, width. */
    std::array<std::size_t, 3> shape() const
    {
        std::array<std::size_t, 3> shape{};
        (void)!etg_pixels_shape(get(), &shape[0], &shape[1], &shape[2]);
        return shape;
    }
    Result<TileLayout> layout() const
    {
        return detail::layout_from([&](std::size_t *rows, std::size_t *cols, std::int32_t *overview) {
            return etg_pixels_layout(get(), rows, cols, overview);
        });
    }

    /** The C handle, still owned by this object. */
    etg_pixels *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_pixels, etg_pixels_free> handle_;
};

/** A piece of sound. Cheap to hold; the content never changes. */
class Audio {
public:
    /** Take over a C handle. */
    explicit Audio(etg_audio *owned) : handle_(owned) {}

    /** Decode a WAV file. */
    static Result<Audio> open(std::string_view path)
    {
        return detail::object_from<Audio, etg_audio>(
            [&](etg_audio **out) { return etg_audio_from_file(path.data(), path.size(), out); });
    }
    /** Decode the bytes of a WAV file. */
    static Result<Audio> decode(const std::uint8_t *bytes, std::size_t size)
    {
        return detail::object_from<Audio, etg_audio>(
            [&](etg_audio **out) { return etg_audio_from_encoded(bytes, size, out); });
    }
    /** Samples of one channel, full scale -1 to 1, at `rate` Hz; copied. */
    static Result<Audio> from_samples(const float *samples, std::size_t count, std::uint32_t rate)
    {
        return detail::object_from<Audio, etg_audio>(
            [&](etg_audio **out) { return etg_audio_from_samples(samples, count, rate, out); });
    }
    /** Features that are ready for the encoder; copied. */
    static Result<Audio> from_features(const float *features, std::size_t count)
    {
        return detail::object_from<Audio, etg_audio>(
            [&](etg_audio **out) { return etg_audio_from_features(features, count, out); });
    }

    /** Samples of one channel, valid as long as this object; none if it was made from features. */
    FloatView samples() const { return {known().samples, known().count}; }
    /** Samples a second; 0 if it was made from features. */
    std::uint32_t sample_rate() const { return known().rate; }

    /** The C handle, still owned by this object. */
    etg_audio *get() const noexcept { return handle_.get(); }

private:
    struct Known {
        const float *samples = nullptr;
        std::size_t count = 0;
        std::uint32_t rate = 0;
    };
    Known known() const
    {
        Known known;
        (void)!etg_audio_samples(get(), &known.samples, &known.count, &known.rate);
        return known;
    }

    detail::Owned<etg_audio, etg_audio_free> handle_;
};

/** The rows that an encoder made of a picture or of sound. */
class Embedding {
public:
    /** Take over a C handle. */
    explicit Embedding(etg_embedding *owned) : handle_(owned) {}

    /** From rows that were taken out before, or that another encoder made. */
    static Result<Embedding> create(const float *rows, std::size_t row_count, std::size_t width,
                                    const TileLayout &layout)
    {
        return detail::object_from<Embedding, etg_embedding>([&](etg_embedding **out) {
            return etg_embedding_create(rows, row_count, width, layout.rows, layout.cols, layout.overview ? 1 : 0, out);
        });
    }

    /** row_count() rows of width() floats; valid as long as this object. */
    FloatView rows() const { return {shape().rows, shape().count * shape().width}; }
    std::size_t row_count() const { return shape().count; }
    std::size_t width() const { return shape().width; }
    Result<TileLayout> layout() const
    {
        return detail::layout_from([&](std::size_t *rows, std::size_t *cols, std::int32_t *overview) {
            return etg_embedding_layout(get(), rows, cols, overview);
        });
    }

    /** The C handle, still owned by this object. */
    etg_embedding *get() const noexcept { return handle_.get(); }

private:
    struct Shape {
        const float *rows = nullptr;
        std::size_t count = 0;
        std::size_t width = 0;
    };
    Shape shape() const
    {
        Shape shape;
        (void)!etg_embedding_rows(get(), &shape.rows, &shape.count, &shape.width);
        return shape;
    }

    detail::Owned<etg_embedding, etg_embedding_free> handle_;
};

/** Preprocessing of pictures by itself, without a runner. */
class ImageProcessor {
public:
    /** Take over a C handle. */
    explicit ImageProcessor(etg_image_processor *owned) : handle_(owned) {}

    /** Open the processor of a compiled model folder. */
    static Result<ImageProcessor> open(std::string_view folder)
    {
        return detail::object_from<ImageProcessor, etg_image_processor>([&](etg_image_processor **out) {
            return etg_image_processor_open(folder.data(), folder.size(), out);
        });
    }
    /** From the texts of a checkpoint's settings files, either of which may be empty. */
    static Result<ImageProcessor> create(ImageFamily family, std::string_view preprocessor_json,
                                         std::string_view processor_json, std::size_t tile_size)
    {
        return detail::object_from<ImageProcessor, etg_image_processor>([&](etg_image_processor **out) {
            return etg_image_processor_create(static_cast<std::int32_t>(family), preprocessor_json.data(),
                                              preprocessor_json.size(), processor_json.data(), processor_json.size(),
                                              tile_size, out);
        });
    }

    std::size_t tile_size() const
    {
        std::size_t pixels = 0;
        (void)!etg_image_processor_tile_size(get(), &pixels);
        return pixels;
    }
    Result<TileLayout> layout(std::size_t width, std::size_t height, Tiling tiling = Tiling::checkpoint) const
    {
        return detail::layout_from([&](std::size_t *rows, std::size_t *cols, std::int32_t *overview) {
            return etg_image_processor_layout(get(), width, height, static_cast<std::int32_t>(tiling), rows, cols,
                                              overview);
        });
    }
    Result<Pixels> process(const Image &image, Tiling tiling = Tiling::checkpoint) const
    {
        return detail::object_from<Pixels, etg_pixels>([&](etg_pixels **out) {
            return etg_image_processor_process(get(), image.get(), static_cast<std::int32_t>(tiling), out);
        });
    }

    /** The C handle, still owned by this object. */
    etg_image_processor *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_image_processor, etg_image_processor_free> handle_;
};

/** Who speaks. */
enum class Role : std::int32_t {
    system = ETG_ROLE_SYSTEM,
    user = ETG_ROLE_USER,
    assistant = ETG_ROLE_ASSISTANT,
    tool = ETG_ROLE_TOOL,
};

/** Typed messages. */
class Messages {
public:
    Messages()
    {
        etg_messages *raw = nullptr;
        // Cannot fail: the argument is right.
        (void)!etg_messages_create(&raw);
        handle_.reset(raw);
    }

    /** Add a message of one text. */
    Result<void> add(Role role, std::string_view text)
    {
        const std::int32_t status = etg_messages_add(handle_.get(), static_cast<std::int32_t>(role));
        return detail::check(status < 0 ? status : etg_messages_add_text(handle_.get(), text.data(), text.size()));
    }

    /** Add one more text to the last message. */
    Result<void> add_text(std::string_view text)
    {
        return detail::check(etg_messages_add_text(handle_.get(), text.data(), text.size()));
    }

    /** Begin a message without parts; add them next. */
    Result<void> begin(Role role)
    {
        return detail::check(etg_messages_add(handle_.get(), static_cast<std::int32_t>(role)));
    }

    /** Add a picture to the last message. */
    Result<void> add_image(const Image &image)
    {
        return detail::check(etg_messages_add_image(handle_.get(), image.get()));
    }

    /** Add sound to the last message. */
    Result<void> add_audio(const Audio &audio)
    {
        return detail::check(etg_messages_add_audio(handle_.get(), audio.get()));
    }

    /** Add the rows of a picture or of sound that was encoded before to the last message. */
    Result<void> add_embedding(const Embedding &embedding)
    {
        return detail::check(etg_messages_add_embedding(handle_.get(), embedding.get()));
    }

    /** Compatibility with upstream's prompt strings: a user message in which each "<image>" is the next picture's place. */
    Result<void> add_placeholder_prompt(std::string_view prompt, const std::vector<const Image *> &images)
    {
        std::vector<const etg_image *> handles;
        for (const Image *image : images) {
            handles.push_back(image ? image->get() : nullptr);
        }
        return detail::check(etg_messages_add_placeholder_prompt(handle_.get(), prompt.data(), prompt.size(),
                                                                 handles.data(), handles.size()));
    }

    /** Remove all messages. */
    void clear() { (void)!etg_messages_clear(handle_.get()); }

    /** Number of messages. */
    std::size_t size() const
    {
        std::size_t count = 0;
        (void)!etg_messages_count(handle_.get(), &count);
        return count;
    }

    /** The C handle, still owned by this object. */
    etg_messages *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_messages, etg_messages_free> handle_;
};

/** How a reply is generated. Setters check their value at once. */
class GenerateOptions {
public:
    GenerateOptions()
    {
        etg_generate_options *raw = nullptr;
        (void)!etg_generate_options_create(&raw);
        handle_.reset(raw);
    }
    /** Take over a C handle. */
    explicit GenerateOptions(etg_generate_options *owned) : handle_(owned) {}

    Result<void> max_new_tokens(std::size_t tokens)
    {
        return detail::check(etg_generate_options_set_max_new_tokens(get(), tokens));
    }
    Result<void> temperature(float value) { return detail::check(etg_generate_options_set_temperature(get(), value)); }
    Result<void> top_k(std::size_t k) { return detail::check(etg_generate_options_set_top_k(get(), k)); }
    Result<void> top_p(float p) { return detail::check(etg_generate_options_set_top_p(get(), p)); }
    Result<void> min_p(float p) { return detail::check(etg_generate_options_set_min_p(get(), p)); }
    Result<void> repetition_penalty(float penalty, std::size_t window = 0)
    {
        return detail::check(etg_generate_options_set_repetition_penalty(get(), penalty, window));
    }
    Result<void> seed(std::uint64_t value) { return detail::check(etg_generate_options_set_seed(get(), value)); }
    Result<void> add_stop(std::string_view text)
    {
        return detail::check(etg_generate_options_add_stop(get(), text.data(), text.size()));
    }
    Result<void> ignore_eos(bool ignore)
    {
        return detail::check(etg_generate_options_set_ignore_eos(get(), ignore ? 1 : 0));
    }
    Result<void> echo(bool echo) { return detail::check(etg_generate_options_set_echo(get(), echo ? 1 : 0)); }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_generate_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_generate_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_generate_options, etg_generate_options_free> handle_;
};

/** Which graphs of a decoder run. */
enum class Decoding : std::int32_t {
    automatic = ETG_DECODING_AUTO,
    kv = ETG_DECODING_KV,
    hybrid = ETG_DECODING_HYBRID,
};

/** How a runner is opened. */
class RunnerOptions {
public:
    RunnerOptions()
    {
        etg_runner_options *raw = nullptr;
        (void)!etg_runner_options_create(&raw);
        handle_.reset(raw);
    }

    Result<void> threads(std::size_t count) { return detail::check(etg_runner_options_set_threads(get(), count)); }
    Result<void> chat_template(std::string_view text)
    {
        return detail::check(etg_runner_options_set_template(get(), text.data(), text.size()));
    }
    Result<void> template_variables(std::string_view json)
    {
        return detail::check(etg_runner_options_set_template_variables(get(), json.data(), json.size()));
    }
    Result<void> system_prompt(std::string_view text)
    {
        return detail::check(etg_runner_options_set_system_prompt(get(), text.data(), text.size()));
    }
    Result<void> image_tiling(Tiling tiling)
    {
        return detail::check(etg_runner_options_set_image_tiling(get(), static_cast<std::int32_t>(tiling)));
    }
    Result<void> image_cache_bytes(std::size_t bytes)
    {
        return detail::check(etg_runner_options_set_image_cache_bytes(get(), bytes));
    }
    Result<void> decoding(Decoding mode)
    {
        return detail::check(etg_runner_options_set_decoding(get(), static_cast<std::int32_t>(mode)));
    }
    /** Sizes of lookahead decoding: N, W and G. */
    Result<void> lookahead(std::size_t ngram, std::size_t window, std::size_t gcap)
    {
        return detail::check(etg_runner_options_set_lookahead(get(), ngram, window, gcap));
    }
    /** ETG_REQUANT_NEAREST or ETG_REQUANT_TRUNCATE. */
    Result<void> requant_rounding(std::int32_t rounding)
    {
        return detail::check(etg_runner_options_set_requant_rounding(get(), rounding));
    }
    Result<void> shared_memory(bool shared)
    {
        return detail::check(etg_runner_options_set_shared_memory(get(), shared ? 1 : 0));
    }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_runner_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_runner_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_runner_options, etg_runner_options_free> handle_;
};

/** What executes a model. */
class Engine {
public:
    /** Take over a C handle. */
    explicit Engine(etg_engine *owned) : handle_(owned) {}

    /** An engine inside the library: "cpu". `options` is a JSON object, or empty. */
    static Result<Engine> builtin(std::string_view name = "cpu", std::string_view options = {})
    {
        return detail::object_from<Engine, etg_engine>([&](etg_engine **out) {
            return etg_engine_builtin(name.data(), name.size(), options.data(), options.size(), out);
        });
    }
    /** An engine library, e.g. libetgenai_executorch.so. */
    static Result<Engine> load_library(std::string_view path, std::string_view options = {})
    {
        return detail::object_from<Engine, etg_engine>([&](etg_engine **out) {
            return etg_engine_load_library(path.data(), path.size(), options.data(), options.size(), out);
        });
    }
    /** An engine of the host; taken over if this succeeds. */
    static Result<Engine> from_functions(const etg_engine_functions &functions)
    {
        return detail::object_from<Engine, etg_engine>(
            [&](etg_engine **out) { return etg_engine_from_functions(&functions, out); });
    }

    /** The engine as functions; call their `destroy` when done. */
    Result<etg_engine_functions> functions() const
    {
        etg_engine_functions functions = etg_engine_functions_init();
        const std::int32_t status = etg_engine_get_functions(get(), &functions);
        if (status < 0) {
            return detail::fail<etg_engine_functions>(status);
        }
        return functions;
    }

    /** What a program file holds, as JSON. */
    Result<std::string> inspect_json(std::string_view component, std::string_view path) const
    {
        return detail::text_from([&](etg_buffer **out) {
            return etg_engine_inspect_json(get(), component.data(), component.size(), path.data(), path.size(), out);
        });
    }

    /** The C handle, still owned by this object. */
    etg_engine *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_engine, etg_engine_free> handle_;
};

/** A model as single program files beside a tokenizer. */
class ModelFiles {
public:
    ModelFiles()
    {
        etg_model_files *raw = nullptr;
        (void)!etg_model_files_create(&raw);
        handle_.reset(raw);
    }

    /** The file of "text_decoder", "tok_embedding", "vision_encoder", "audio_encoder" or "attention_sink_evictor". */
    Result<void> component(std::string_view name, std::string_view path)
    {
        return detail::check(
            etg_model_files_set_component(get(), name.data(), name.size(), path.data(), path.size()));
    }
    /** A component's program from memory; copied. */
    Result<void> component_bytes(std::string_view name, const std::uint8_t *bytes, std::size_t size)
    {
        return detail::check(etg_model_files_set_component_bytes(get(), name.data(), name.size(), bytes, size));
    }
    /** The engine holds this component's program already. */
    Result<void> component_held(std::string_view name)
    {
        return detail::check(etg_model_files_set_component_held(get(), name.data(), name.size()));
    }
    Result<void> tokenizer(std::string_view path)
    {
        return detail::check(etg_model_files_set_tokenizer(get(), path.data(), path.size()));
    }
    /** Any of the files from one JSON object of paths. */
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_model_files_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_model_files *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_model_files, etg_model_files_free> handle_;
};

/** One finished reply. */
struct Turn {
    std::string text;
    std::vector<std::uint32_t> tokens;
    /** ETG_OK or an ETG_STOP_ constant. */
    std::int32_t status = ETG_OK;
    /** Counts and times; its text and tokens pointers are NULL, use the fields above. */
    etg_turn_result stats{};
};

/** Text to token ids and back. */
class Tokenizer {
public:
    using Ids = std::vector<std::uint32_t>;

    /** Take over a C handle. */
    explicit Tokenizer(etg_tokenizer *owned) : handle_(owned) {}

    /** Open the tokenizer of a compiled model folder, or a tokenizer file. */
    static Result<Tokenizer> open(std::string_view path)
    {
        etg_tokenizer *raw = nullptr;
        const std::int32_t status = etg_tokenizer_open(path.data(), path.size(), &raw);
        if (status < 0) {
            return detail::fail<Tokenizer>(status);
        }
        return Tokenizer(raw);
    }

    Result<Ids> encode(std::string_view text, bool add_bos = false, bool parse_special = false) const
    {
        return detail::ids_from([&](etg_buffer **out) {
            return etg_tokenizer_encode(get(), text.data(), text.size(), add_bos ? 1 : 0, parse_special ? 1 : 0, out);
        });
    }

    Result<std::string> decode(const Ids &ids, bool skip_special = true) const
    {
        return detail::text_from([&](etg_buffer **out) {
            return etg_tokenizer_decode(get(), ids.data(), ids.size(), skip_special ? 1 : 0, out);
        });
    }

    /** The C handle, still owned by this object. */
    etg_tokenizer *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_tokenizer, etg_tokenizer_free> handle_;
};

/** Token ids that come one at a time to text in whole characters. */
class Detokenizer {
public:
    explicit Detokenizer(const Tokenizer &tokenizer, bool skip_special = true)
    {
        etg_detokenizer *raw = nullptr;
        (void)!etg_detokenizer_create(tokenizer.get(), skip_special ? 1 : 0, &raw);
        handle_.reset(raw);
    }

    /** The characters that this token completes; valid until the next call. */
    std::string_view push(std::uint32_t id)
    {
        const char *text = nullptr;
        std::size_t length = 0;
        (void)!etg_detokenizer_push(handle_.get(), id, &text, &length);
        return std::string_view(text, length);
    }

    /** What was held back; valid until the next call. */
    std::string_view finish()
    {
        const char *text = nullptr;
        std::size_t length = 0;
        (void)!etg_detokenizer_finish(handle_.get(), &text, &length);
        return std::string_view(text, length);
    }

private:
    detail::Owned<etg_detokenizer, etg_detokenizer_free> handle_;
};

/** A conversation with a compiled model. One call at a time; cancel() and the getters are for any thread. */
class Runner {
public:
    using Ids = std::vector<std::uint32_t>;
    /** Hidden states, row after row. */
    using Rows = std::vector<float>;
    /** Gets the reply as it comes, in whole characters. */
    using OnText = std::function<void(std::string_view text)>;
    /** Gets every event; false ends the run. */
    using OnEvent = std::function<bool(const etg_event &event)>;

#ifndef ETG_NO_EXCEPTIONS
    /** Open a compiled model folder. */
    explicit Runner(std::string_view folder) : Runner(open(folder)) {}
    Runner(std::string_view folder, const RunnerOptions &options) : Runner(open(folder, options)) {}
#endif
    /** Take over a C handle. */
    explicit Runner(etg_runner *owned) : handle_(owned) {}

    static Result<Runner> open(std::string_view folder) { return open_with(folder, nullptr); }
    static Result<Runner> open(std::string_view folder, const RunnerOptions &options)
    {
        return open_with(folder, options.get());
    }

    /** Open a compiled model folder with an engine. */
    static Result<Runner> open(std::string_view folder, const Engine &engine, const RunnerOptions &options = {})
    {
        return detail::object_from<Runner, etg_runner>([&](etg_runner **out) {
            return etg_runner_open_with_engine(folder.data(), folder.size(), engine.get(), options.get(), out);
        });
    }
    /** Open a model from its files with an engine. */
    static Result<Runner> open(const ModelFiles &files, const Engine &engine, const RunnerOptions &options = {})
    {
        return detail::object_from<Runner, etg_runner>([&](etg_runner **out) {
            return etg_runner_open_files(files.get(), engine.get(), options.get(), out);
        });
    }

    /** Answer messages with the options that the checkpoint recommends. */
    Result<Turn> generate(const Messages &messages, const OnText &on_text = {})
    {
        return generate_with(messages, nullptr, text_only(on_text));
    }
    /** Answer messages. */
    Result<Turn> generate(const Messages &messages, const GenerateOptions &options, const OnText &on_text = {})
    {
        return generate_with(messages, options.get(), text_only(on_text));
    }
    /** Answer messages and watch every event. What `on_event` throws ends the run and is thrown from here. */
    Result<Turn> generate_events(const Messages &messages, const GenerateOptions &options, const OnEvent &on_event)
    {
        return generate_with(messages, options.get(), on_event);
    }

    /** Ask for the end of the current or next run; from any thread. */
    void cancel() noexcept { etg_runner_cancel(get()); }
    Result<void> reset() { return detail::check(etg_runner_reset(get())); }
    Result<void> rewind(std::size_t turns_to_keep) { return detail::check(etg_runner_rewind(get(), turns_to_keep)); }

    std::size_t turn_count() const { return number(etg_runner_turn_count); }
    std::size_t position() const { return number(etg_runner_position); }
    std::size_t context_capacity() const { return number(etg_runner_context_capacity); }

    /** Whether the model takes pictures. */
    bool takes_images() const
    {
        std::int32_t takes = 0;
        (void)!etg_runner_takes_images(get(), &takes);
        return takes != 0;
    }

    bool takes_audio() const
    {
        std::int32_t takes = 0;
        (void)!etg_runner_takes_audio(get(), &takes);
        return takes != 0;
    }

    Result<std::string> stats_json() const
    {
        return detail::text_from([&](etg_buffer **out) { return etg_runner_stats_json(get(), out); });
    }

    /** Options as the checkpoint recommends them. */
    Result<GenerateOptions> default_options()
    {
        etg_generate_options *raw = nullptr;
        const std::int32_t status = etg_runner_default_options(get(), &raw);
        if (status < 0) {
            return detail::fail<GenerateOptions>(status);
        }
        return GenerateOptions(raw);
    }

    Result<Tokenizer> tokenizer()
    {
        etg_tokenizer *raw = nullptr;
        const std::int32_t status = etg_runner_tokenizer(get(), &raw);
        if (status < 0) {
            return detail::fail<Tokenizer>(status);
        }
        return Tokenizer(raw);
    }

    /* Single steps: see etgenai.h. */
    Result<std::string> render(const Messages &messages)
    {
        return detail::text_from([&](etg_buffer **out) { return etg_runner_render(get(), messages.get(), out); });
    }
    Result<Ids> encode_prompt(const Messages &messages)
    {
        return detail::ids_from([&](etg_buffer **out) { return etg_runner_encode_prompt(get(), messages.get(), out); });
    }
    Result<Ids> history_tokens()
    {
        return detail::ids_from([&](etg_buffer **out) { return etg_runner_history_tokens(get(), out); });
    }
    Result<void> prefill(const Ids &ids) { return detail::check(etg_runner_prefill(get(), ids.data(), ids.size())); }
    Result<void> prefill_prompt(const Ids &prompt)
    {
        return detail::check(etg_runner_prefill_prompt(get(), prompt.data(), prompt.size()));
    }
    Result<void> prefill_messages(const Messages &messages)
    {
        return detail::check(etg_runner_prefill_messages(get(), messages.get()));
    }
    Result<void> prefill_rows(const Ids &ids, const Rows &rows)
    {
        return detail::check(etg_runner_prefill_rows(get(), ids.data(), ids.size(), rows.data(), rows.size()));
    }
    Result<void> prefill_prompt_rows(const Ids &prompt, const Rows &rows)
    {
        return detail::check(
            etg_runner_prefill_prompt_rows(get(), prompt.data(), prompt.size(), rows.data(), rows.size()));
    }
    Result<Pixels> preprocess(const Image &image)
    {
        return detail::object_from<Pixels, etg_pixels>(
            [&](etg_pixels **out) { return etg_runner_preprocess_image(get(), image.get(), out); });
    }
    Result<Embedding> encode(const Pixels &pixels)
    {
        return detail::object_from<Embedding, etg_embedding>(
            [&](etg_embedding **out) { return etg_runner_encode_pixels(get(), pixels.get(), out); });
    }
    /** From the image cache or the encoder. */
    Result<Embedding> encode(const Image &image)
    {
        return detail::object_from<Embedding, etg_embedding>(
            [&](etg_embedding **out) { return etg_runner_encode_image(get(), image.get(), out); });
    }
    /** The features of sound as the encoder takes them. */
    Result<Rows> preprocess(const Audio &audio)
    {
        std::size_t features = 0;
        std::size_t row_count = 0;
        std::size_t width = 0;
        std::int32_t status = etg_runner_audio_geometry(get(), &features, &row_count, &width);
        Rows values(features);
        if (status >= 0) {
            status = etg_runner_preprocess_audio(get(), audio.get(), values.data(), values.size());
        }
        if (status < 0) {
            return detail::fail<Rows>(status);
        }
        return values;
    }
    /** One ready-made input of the encoder: features of sound, or one tile of a picture. */
    Result<Embedding> encode_features(const Rows &features)
    {
        return detail::object_from<Embedding, etg_embedding>([&](etg_embedding **out) {
            return etg_runner_encode_features(get(), features.data(), features.size(), out);
        });
    }
    /** From the cache or the encoder. */
    Result<Embedding> encode(const Audio &audio)
    {
        return detail::object_from<Embedding, etg_embedding>(
            [&](etg_embedding **out) { return etg_runner_encode_audio(get(), audio.get(), out); });
    }
    Result<Rows> embed_tokens(const Ids &ids)
    {
        std::size_t input_size = 0;
        std::size_t row_count = 0;
        std::size_t width = 0;
        std::int32_t status = takes_audio() ? etg_runner_audio_geometry(get(), &input_size, &row_count, &width)
                                            : etg_runner_image_geometry(get(), &input_size, &row_count, &width);
        Rows rows(ids.size() * width);
        if (status >= 0) {
            status = etg_runner_embed_tokens(get(), ids.data(), ids.size(), rows.data(), rows.size());
        }
        if (status < 0) {
            return detail::fail<Rows>(status);
        }
        return rows;
    }
    /** Put rows of pictures or of sound in the places of the picture or audio tokens of `ids`. */
    Result<void> merge(const Ids &ids, Rows &rows, const std::vector<const Embedding *> &embeddings)
    {
        std::vector<const etg_embedding *> handles;
        for (const Embedding *embedding : embeddings) {
            handles.push_back(embedding ? embedding->get() : nullptr);
        }
        return detail::check(etg_runner_merge(get(), ids.data(), ids.size(), rows.data(), rows.size(), handles.data(),
                                              handles.size()));
    }
    Result<void> decode_one(std::uint32_t id) { return detail::check(etg_runner_decode_one(get(), id)); }
    Result<std::uint32_t> sample(const GenerateOptions &options)
    {
        std::uint32_t id = 0;
        const std::int32_t status = etg_runner_sample(get(), options.get(), &id);
        if (status < 0) {
            return detail::fail<std::uint32_t>(status);
        }
        return id;
    }
    Result<bool> is_eos(std::uint32_t id)
    {
        std::int32_t eos = 0;
        const std::int32_t status = etg_runner_is_eos(get(), id, &eos);
        if (status < 0) {
            return detail::fail<bool>(status);
        }
        return eos != 0;
    }
    Result<void> commit_turn(const Messages &messages, const Ids &reply)
    {
        return detail::check(etg_runner_commit_turn(get(), messages.get(), reply.data(), reply.size()));
    }

    /** The C handle, still owned by this object. */
    etg_runner *get() const noexcept { return handle_.get(); }

private:
    /** One run's callback and what it threw. */
    struct Call {
        const OnEvent &on_event;
        detail::Caught caught;

        static std::int32_t receive(void *user_data, const etg_event *event)
        {
            Call &call = *static_cast<Call *>(user_data);
            return call.caught.run([&] { return call.on_event(*event); });
        }
    };

    static OnEvent text_only(const OnText &on_text)
    {
        if (!on_text) {
            return {};
        }
        return [&on_text](const etg_event &event) {
            if (event.kind == ETG_EVENT_TEXT) {
                on_text(std::string_view(event.text, event.text_length));
            }
            return true;
        };
    }

    static Result<Runner> open_with(std::string_view folder, const etg_runner_options *options)
    {
        etg_runner *raw = nullptr;
        const std::int32_t status = etg_runner_open(folder.data(), folder.size(), options, &raw);
        if (status < 0) {
            return detail::fail<Runner>(status);
        }
        return Runner(raw);
    }

    Result<Turn> generate_with(const Messages &messages, const etg_generate_options *options, const OnEvent &on_event)
    {
        Call call{on_event, {}};
        etg_turn_result result = etg_turn_result_init();
        const std::int32_t status =
            etg_runner_generate(get(), messages.get(), options, on_event ? Call::receive : nullptr, &call, &result);
        call.caught.rethrow();
        if (status < 0) {
            return detail::fail<Turn>(status);
        }
        Turn turn;
        turn.status = status;
        turn.text.assign(result.text, result.text_length);
        if (result.token_count > 0) {
            turn.tokens.assign(result.tokens, result.tokens + result.token_count);
        }
        turn.stats = result;
        turn.stats.text = nullptr;
        turn.stats.tokens = nullptr;
        return turn;
    }

    std::size_t number(std::int32_t (*getter)(const etg_runner *, std::size_t *)) const
    {
        std::size_t value = 0;
        (void)!getter(get(), &value);
        return value;
    }

    detail::Owned<etg_runner, etg_runner_free> handle_;
};

/** How a checkpoint is compiled. */
class CompileOptions {
public:
    CompileOptions()
    {
        etg_compile_options *raw = nullptr;
        (void)!etg_compile_options_create(&raw);
        handle_.reset(raw);
    }

    /** An ETG_WEIGHTS_ constant. */
    Result<void> weights(std::int32_t format) { return detail::check(etg_compile_options_set_weights(get(), format)); }
    /** An ETG_WEIGHTS_ constant; ETG_WEIGHTS_AUTO follows weights(). */
    Result<void> vision_weights(std::int32_t format)
    {
        return detail::check(etg_compile_options_set_vision_weights(get(), format));
    }
    /** An ETG_WEIGHTS_ constant; ETG_WEIGHTS_AUTO follows weights(). */
    Result<void> embedding_weights(std::int32_t format)
    {
        return detail::check(etg_compile_options_set_embedding_weights(get(), format));
    }
    /** An ETG_POSITIONS_ constant. */
    Result<void> position_rule(std::int32_t rule)
    {
        return detail::check(etg_compile_options_set_position_rule(get(), rule));
    }
    Result<void> max_context(std::size_t tokens)
    {
        return detail::check(etg_compile_options_set_max_context(get(), tokens));
    }
    Result<void> prefill_ar(std::size_t rows) { return detail::check(etg_compile_options_set_prefill_ar(get(), rows)); }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_compile_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_compile_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_compile_options, etg_compile_options_free> handle_;
};

/** Gets the progress of a compilation; false ends it. */
using OnProgress = std::function<bool(const etg_progress &progress)>;

namespace detail {

/** A compilation's callback and what it threw. */
struct ProgressCall {
    const OnProgress &on_progress;
    Caught caught;

    static std::int32_t receive(void *user_data, const etg_progress *progress)
    {
        ProgressCall &call = *static_cast<ProgressCall *>(user_data);
        return call.caught.run([&] { return call.on_progress(*progress); });
    }
    etg_progress_fn function() const noexcept { return on_progress ? receive : nullptr; }
};

} // namespace detail

/** Compile a checkpoint (Hugging Face folder or GGUF file) into a model folder. */
inline Result<void> compile(std::string_view checkpoint, std::string_view out_folder, const CompileOptions &options = {},
                            const OnProgress &on_progress = {})
{
    detail::ProgressCall call{on_progress, {}};
    const std::int32_t status = etg_compile(checkpoint.data(), checkpoint.size(), out_folder.data(), out_folder.size(),
                                            options.get(), call.function(), &call);
    call.caught.rethrow();
    return detail::check(status);
}

/** Compile one component of a model folder again, e.g. "vision_encoder" with another precision. */
inline Result<void> recompile_component(std::string_view checkpoint, std::string_view folder,
                                        std::string_view component, const CompileOptions &options,
                                        const OnProgress &on_progress = {})
{
    detail::ProgressCall call{on_progress, {}};
    const std::int32_t status =
        etg_recompile_component(checkpoint.data(), checkpoint.size(), folder.data(), folder.size(), component.data(),
                                component.size(), options.get(), call.function(), &call);
    call.caught.rethrow();
    return detail::check(status);
}

/** Gets the progress of a stage; false ends it. Its texts are valid during the call. */
using OnStageProgress = std::function<bool(const etg_stage_progress &progress)>;

namespace detail {

/** A stage's callback and what it threw. */
struct StageProgressCall {
    const OnStageProgress &on_progress;
    Caught caught;

    static std::int32_t receive(void *user_data, const etg_stage_progress *progress)
    {
        StageProgressCall &call = *static_cast<StageProgressCall *>(user_data);
        return call.caught.run([&] { return call.on_progress(*progress); });
    }
    etg_stage_progress_fn function() const noexcept { return on_progress ? receive : nullptr; }
};

} // namespace detail

/** How a checkpoint is prepared for quantization. */
class PreparationOptions {
public:
    PreparationOptions()
    {
        etg_preparation_options *raw = nullptr;
        (void)!etg_preparation_options_create(&raw);
        handle_.reset(raw);
    }

    /** Registry name that the checkpoint must be. */
    Result<void> model(std::string_view name)
    {
        return detail::check(etg_preparation_options_set_model(get(), name.data(), name.size()));
    }
    Result<void> max_context(std::size_t tokens)
    {
        return detail::check(etg_preparation_options_set_max_context(get(), tokens));
    }
    Result<void> prefill_ar(std::size_t tokens)
    {
        return detail::check(etg_preparation_options_set_prefill_ar(get(), tokens));
    }
    /** An ETG_MODE_ constant. */
    Result<void> mode(std::int32_t mode) { return detail::check(etg_preparation_options_set_mode(get(), mode)); }
    Result<void> lookahead(std::size_t ngram, std::size_t window, std::size_t gcap)
    {
        return detail::check(etg_preparation_options_set_lookahead(get(), ngram, window, gcap));
    }
    /** 0, 1 or ETG_AS_MODEL. */
    Result<void> r3(std::int32_t choice) { return detail::check(etg_preparation_options_set_r3(get(), choice)); }
    /** 0, 1 or ETG_AS_MODEL. */
    Result<void> masked_softmax(std::int32_t choice)
    {
        return detail::check(etg_preparation_options_set_masked_softmax(get(), choice));
    }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_preparation_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_preparation_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_preparation_options, etg_preparation_options_free> handle_;
};

/** What a model is calibrated with. */
class CalibrationOptions {
public:
    CalibrationOptions()
    {
        etg_calibration_options *raw = nullptr;
        (void)!etg_calibration_options_create(&raw);
        handle_.reset(raw);
    }

    /** A JSON file with a list of conversations. */
    Result<void> add_samples(std::string_view path)
    {
        return detail::check(etg_calibration_options_add_samples(get(), path.data(), path.size()));
    }
    /** A plain text. */
    Result<void> add_text(std::string_view path)
    {
        return detail::check(etg_calibration_options_add_text(get(), path.data(), path.size()));
    }
    /** A chat set, one JSON object a line. */
    Result<void> add_chat(std::string_view path)
    {
        return detail::check(etg_calibration_options_add_chat(get(), path.data(), path.size()));
    }
    /** A JSON file with a list of lists of token ids. */
    Result<void> add_tokens(std::string_view path)
    {
        return detail::check(etg_calibration_options_add_tokens(get(), path.data(), path.size()));
    }
    /** Random ids, for smoke tests only. */
    Result<void> random(std::size_t samples, std::size_t length, std::uint64_t seed)
    {
        return detail::check(etg_calibration_options_set_random(get(), samples, length, seed));
    }
    Result<void> text_limit(std::size_t windows)
    {
        return detail::check(etg_calibration_options_set_text_limit(get(), windows));
    }
    Result<void> text_window(std::size_t tokens)
    {
        return detail::check(etg_calibration_options_set_text_window(get(), tokens));
    }
    Result<void> chat_limit(std::size_t rows)
    {
        return detail::check(etg_calibration_options_set_chat_limit(get(), rows));
    }
    Result<void> max_context(std::size_t tokens)
    {
        return detail::check(etg_calibration_options_set_max_context(get(), tokens));
    }
    Result<void> image_tiling(Tiling tiling)
    {
        return detail::check(etg_calibration_options_set_image_tiling(get(), static_cast<std::int32_t>(tiling)));
    }
    /** Part `index` (from 1) of `count`. */
    Result<void> shard(std::size_t index, std::size_t count)
    {
        return detail::check(etg_calibration_options_set_shard(get(), index, count));
    }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_calibration_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_calibration_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_calibration_options, etg_calibration_options_free> handle_;
};

/** How a prepared model is quantized. */
class QuantizeOptions {
public:
    QuantizeOptions()
    {
        etg_quantize_options *raw = nullptr;
        (void)!etg_quantize_options_create(&raw);
        handle_.reset(raw);
    }

    /** An ETG_QUANT_ constant for all layers of a component. */
    Result<void> dtype(std::string_view component, std::int32_t dtype, std::size_t block = 0)
    {
        return detail::check(
            etg_quantize_options_set_dtype(get(), component.data(), component.size(), dtype, block));
    }
    /** A recipe for a component; the empty text takes the model's own again. */
    Result<void> recipe_json(std::string_view component, std::string_view json)
    {
        return detail::check(etg_quantize_options_set_recipe_json(get(), component.data(), component.size(),
                                                                  json.data(), json.size()));
    }
    /** An ETG_OBSERVER_ constant with its setting. */
    Result<void> observer(std::int32_t kind, double setting = 0.0)
    {
        return detail::check(etg_quantize_options_set_observer(get(), kind, setting));
    }
    /** 0, 1, or -1: as the recipe says. */
    Result<void> kv8(std::int32_t choice) { return detail::check(etg_quantize_options_set_kv8(get(), choice)); }
    /** An ETG_ENCODER_ constant. */
    Result<void> encoder(std::int32_t precision)
    {
        return detail::check(etg_quantize_options_set_encoder(get(), precision));
    }
    Result<void> several_images(bool several)
    {
        return detail::check(etg_quantize_options_set_several_images(get(), several ? 1 : 0));
    }
    /** An ETG_ENCODER_ROWS_ constant. */
    Result<void> encoder_rows(std::int32_t rows)
    {
        return detail::check(etg_quantize_options_set_encoder_rows(get(), rows));
    }
    /** An ETG_RESIDUAL_ constant. */
    Result<void> residual(std::int32_t residual)
    {
        return detail::check(etg_quantize_options_set_residual(get(), residual));
    }
    /** An ETG_SCALES_ constant, and how many candidates are tried. */
    Result<void> scales(std::int32_t scales, std::size_t candidates = 0)
    {
        return detail::check(etg_quantize_options_set_scales(get(), scales, candidates));
    }
    /** An ETG_ROUNDING_ constant with the damping of GPTQ. */
    Result<void> rounding(std::int32_t rounding, float damping = 0.01f)
    {
        return detail::check(etg_quantize_options_set_rounding(get(), rounding, damping));
    }
    Result<void> observe_padding(bool observe)
    {
        return detail::check(etg_quantize_options_set_observe_padding(get(), observe ? 1 : 0));
    }
    Result<void> tokens_at_once(std::size_t tokens)
    {
        return detail::check(etg_quantize_options_set_tokens_at_once(get(), tokens));
    }
    Result<void> report_samples(std::size_t samples)
    {
        return detail::check(etg_quantize_options_set_report_samples(get(), samples));
    }
    Result<void> threads(std::size_t count)
    {
        return detail::check(etg_quantize_options_set_threads(get(), count));
    }
    Result<void> json(std::string_view text)
    {
        return detail::check(etg_quantize_options_set_json(get(), text.data(), text.size()));
    }

    /** The C handle, still owned by this object. */
    etg_quantize_options *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_quantize_options, etg_quantize_options_free> handle_;
};

/** What a perplexity is measured with. */
struct PerplexityOptions {
    /** Tokens of a window; 0: 512, or the context if that is less. */
    std::size_t window = 0;
    /** Leave out a last window that is shorter. */
    bool full_windows_only = false;
    /** 0: one a physical core. */
    std::size_t threads = 0;
};

/** A quantized model in its folder; Runner::open opens the same folder for a conversation. */
class QuantizedModel {
public:
    /** Takes over a C handle. */
    explicit QuantizedModel(etg_quantized_model *handle) noexcept : handle_(handle) {}

    /** Open a folder that PreparedModel::quantize wrote. */
    static Result<QuantizedModel> open(std::string_view folder)
    {
        return detail::object_from<QuantizedModel, etg_quantized_model>(
            [&](etg_quantized_model **out) { return etg_quantized_model_open(folder.data(), folder.size(), out); });
    }

    /** The report of the quantization, as JSON. */
    Result<std::string> report_json() const
    {
        return detail::text_from([&](etg_buffer **out) { return etg_quantized_model_report_json(get(), out); });
    }
    /** Perplexity of a text file. */
    Result<etg_perplexity> perplexity_of_file(std::string_view path, const PerplexityOptions &options = {},
                                              const OnStageProgress &on_progress = {}) const
    {
        detail::StageProgressCall call{on_progress, {}};
        etg_perplexity found = etg_perplexity_init();
        const std::int32_t status = etg_quantized_model_perplexity_of_file(
            get(), path.data(), path.size(), options.window, options.full_windows_only ? 1 : 0, options.threads,
            call.function(), &call, &found);
        call.caught.rethrow();
        if (status < 0) {
            return detail::fail<etg_perplexity>(status);
        }
        return found;
    }
    /** Perplexity of token ids. */
    Result<etg_perplexity> perplexity_of_tokens(const std::vector<std::uint32_t> &ids,
                                                const PerplexityOptions &options = {},
                                                const OnStageProgress &on_progress = {}) const
    {
        detail::StageProgressCall call{on_progress, {}};
        etg_perplexity found = etg_perplexity_init();
        const std::int32_t status = etg_quantized_model_perplexity_of_tokens(
            get(), ids.data(), ids.size(), options.window, options.full_windows_only ? 1 : 0, options.threads,
            call.function(), &call, &found);
        call.caught.rethrow();
        if (status < 0) {
            return detail::fail<etg_perplexity>(status);
        }
        return found;
    }
    /** Compile into a model folder for the CPU engine. 0: rows of a prefill block as the model has them, threads as many as cores. */
    Result<void> compile(std::string_view out_folder, std::size_t prefill_ar = 0, std::size_t threads = 0,
                         const OnStageProgress &on_progress = {}) const
    {
        detail::StageProgressCall call{on_progress, {}};
        const std::int32_t status = etg_quantized_model_compile(get(), out_folder.data(), out_folder.size(), prefill_ar,
                                                                threads, call.function(), &call);
        call.caught.rethrow();
        return detail::check(status);
    }
    /** The grids of a component in AIMET's form, "1.0.0" or "0.6.1". */
    Result<void> save_aimet(std::string_view component, std::string_view path, std::string_view version = {}) const
    {
        return detail::check(etg_quantized_model_save_aimet(get(), component.data(), component.size(), version.data(),
                                                            version.size(), path.data(), path.size()));
    }
    /** Recipes with more bits where layers lose most, and a table of what they lose. */
    Result<void> save_suggestion(std::string_view component, std::string_view folder) const
    {
        return detail::check(etg_quantized_model_save_suggestion(get(), component.data(), component.size(),
                                                                 folder.data(), folder.size()));
    }

    /** The C handle, still owned by this object. */
    etg_quantized_model *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_quantized_model, etg_quantized_model_free> handle_;
};

/** A checkpoint whose graphs are built, ready to be calibrated and quantized. */
class PreparedModel {
public:
    /** Takes over a C handle. */
    explicit PreparedModel(etg_prepared_model *handle) noexcept : handle_(handle) {}

    /** Prepare a checkpoint (Hugging Face folder or GGUF file), which must stay where it is. */
    static Result<PreparedModel> create(std::string_view checkpoint, const PreparationOptions &options = {},
                                        const OnStageProgress &on_progress = {})
    {
        detail::StageProgressCall call{on_progress, {}};
        etg_prepared_model *raw = nullptr;
        const std::int32_t status = etg_prepared_model_create(checkpoint.data(), checkpoint.size(), options.get(),
                                                              call.function(), &call, &raw);
        call.caught.rethrow();
        if (status < 0) {
            return detail::fail<PreparedModel>(status);
        }
        return PreparedModel(raw);
    }
    /** Prepare again what save() saved, from the same checkpoint or, if that moved, from another place. */
    static Result<PreparedModel> load(std::string_view folder, std::string_view checkpoint = {})
    {
        return detail::object_from<PreparedModel, etg_prepared_model>([&](etg_prepared_model **out) {
            return etg_prepared_model_load(folder.data(), folder.size(), checkpoint.data(), checkpoint.size(), out);
        });
    }

    Result<void> save(std::string_view folder) const
    {
        return detail::check(etg_prepared_model_save(get(), folder.data(), folder.size()));
    }
    /** What was prepared, as JSON. */
    Result<std::string> info_json() const
    {
        return detail::text_from([&](etg_buffer **out) { return etg_prepared_model_info_json(get(), out); });
    }
    /** What calibration data is for this model, as JSON. */
    Result<std::string> calibration_json(const CalibrationOptions &calibration) const
    {
        return detail::text_from([&](etg_buffer **out) {
            return etg_prepared_model_calibration_json(get(), calibration.get(), out);
        });
    }
    /** Write the ranges of activations to a file; goes on where an earlier call was ended. */
    Result<void> observe(const CalibrationOptions &calibration, const QuantizeOptions &options,
                         std::string_view out_file, const OnStageProgress &on_progress = {}) const
    {
        detail::StageProgressCall call{on_progress, {}};
        const std::int32_t status =
            etg_prepared_model_observe(get(), calibration.get(), options.get(), out_file.data(), out_file.size(),
                                       call.function(), &call);
        call.caught.rethrow();
        return detail::check(status);
    }
    /** Quantize into a folder, and open it. `observations` is a file of observe() or merge_observations(), or empty. */
    Result<QuantizedModel> quantize(const CalibrationOptions &calibration, const QuantizeOptions &options,
                                    std::string_view out_folder, std::string_view observations = {},
                                    const OnStageProgress &on_progress = {}) const
    {
        detail::StageProgressCall call{on_progress, {}};
        etg_quantized_model *raw = nullptr;
        // Options without a source are as good as none where there are observations.
        const std::int32_t status = etg_prepared_model_quantize(
            get(), calibration.get(), options.get(), observations.data(), observations.size(), out_folder.data(),
            out_folder.size(), call.function(), &call, &raw);
        call.caught.rethrow();
        if (status < 0) {
            return detail::fail<QuantizedModel>(status);
        }
        return QuantizedModel(raw);
    }

    /** The C handle, still owned by this object. */
    etg_prepared_model *get() const noexcept { return handle_.get(); }

private:
    detail::Owned<etg_prepared_model, etg_prepared_model_free> handle_;
};

/** Join the observations of all shards of a calibration set. */
inline Result<void> merge_observations(const std::vector<std::string> &files, std::string_view out_file)
{
    std::vector<const char *> paths;
    std::vector<std::size_t> lengths;
    for (const std::string &file : files) {
        paths.push_back(file.data());
        lengths.push_back(file.size());
    }
    return detail::check(
        etg_observations_merge(paths.data(), lengths.data(), paths.size(), out_file.data(), out_file.size()));
}

/** Run a pipeline; context and outcome are JSON, see etg_pipeline_run. */
inline Result<std::string> run_pipeline(std::string_view context_json, const OnStageProgress &on_progress = {})
{
    detail::StageProgressCall call{on_progress, {}};
    etg_buffer *raw = nullptr;
    const std::int32_t status =
        etg_pipeline_run(context_json.data(), context_json.size(), call.function(), &call, &raw);
    const detail::Buffer buffer(raw);
    call.caught.rethrow();
    if (status < 0) {
        return detail::fail<std::string>(status);
    }
    return detail::text_of(buffer);
}

/** What a checkpoint or a compiled folder is, as JSON. */
inline Result<std::string> inspect_json(std::string_view path)
{
    return detail::text_from([&](etg_buffer **out) { return etg_inspect_json(path.data(), path.size(), out); });
}

/** The models that are known by name, as JSON. */
inline Result<std::string> models_json()
{
    return detail::text_from([](etg_buffer **out) { return etg_models_json(out); });
}

} // namespace etg

#endif /* ETGENAI_HPP */
