/*
 * A strict reader of one flat JSON object (RFC 8259): its values are texts, truth values or lists of texts, which is all that
 * options are made of.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "options.hpp"

#include "etgenai_executorch.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

namespace etgenai::executorch {

namespace {

[[noreturn]] void invalid(const std::string &message)
{
    throw Failure(ETG_ENGINE_ERROR_INVALID_ARGUMENT, "options: " + message);
}

class JsonReader {
  public:
    explicit JsonReader(std::string_view text) : text_(text) {}

    /** Calls `member(key)` for each member; it must read the value. */
    template <class Member>
    void object(Member &&member)
    {
        expect('{');
        if (!accept('}')) {
            do {
                const std::string key = string();
                expect(':');
                member(key);
            } while (accept(','));
            expect('}');
        }
        skip_space();
        if (at_ != text_.size()) {
            unexpected();
        }
    }

    std::string string()
    {
        expect('"');
        std::string result;
        for (;;) {
            const char character = next();
            if (character == '"') {
                return result;
            }
            if (static_cast<unsigned char>(character) < 0x20) {
                --at_;
                unexpected();
            }
            if (character == '\\') {
                append_escape(result);
            } else {
                result += character;
            }
        }
    }

    bool boolean()
    {
        skip_space();
        for (const auto &[word, value] : {std::pair<std::string_view, bool>{"true", true}, {"false", false}}) {
            if (text_.substr(at_, word.size()) == word) {
                at_ += word.size();
                return value;
            }
        }
        unexpected();
    }

    std::vector<std::string> strings()
    {
        std::vector<std::string> result;
        expect('[');
        if (accept(']')) {
            return result;
        }
        do {
            result.push_back(string());
        } while (accept(','));
        expect(']');
        return result;
    }

  private:
    [[noreturn]] void unexpected() const
    {
        invalid("not what was expected at byte " + std::to_string(at_) + " of " + std::string(text_));
    }

    void skip_space()
    {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
            ++at_;
        }
    }

    char next()
    {
        if (at_ >= text_.size()) {
            unexpected();
        }
        return text_[at_++];
    }

    bool accept(char character)
    {
        skip_space();
        if (at_ < text_.size() && text_[at_] == character) {
            ++at_;
            return true;
        }
        return false;
    }

    void expect(char character)
    {
        if (!accept(character)) {
            unexpected();
        }
    }

    void append_escape(std::string &result)
    {
        const char kind = next();
        constexpr std::string_view kKinds = "\"\\/bfnrt";
        constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
        if (const std::size_t index = kKinds.find(kind); index != std::string_view::npos) {
            result += kMeanings[index];
        } else if (kind == 'u') {
            append_utf8(result, code_point());
        } else {
            --at_;
            unexpected();
        }
    }

    std::uint32_t code_point()
    {
        const std::uint32_t first = code_unit();
        if (first < 0xD800 || first > 0xDFFF) {
            return first;
        }
        if (first > 0xDBFF || next() != '\\' || next() != 'u') {
            unexpected();
        }
        const std::uint32_t second = code_unit();
        if (second < 0xDC00 || second > 0xDFFF) {
            unexpected();
        }
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }

    std::uint32_t code_unit()
    {
        std::uint32_t unit = 0;
        for (int i = 0; i < 4; ++i) {
            const char digit = next();
            std::uint32_t value = 0;
            if (digit >= '0' && digit <= '9') {
                value = static_cast<std::uint32_t>(digit - '0');
            } else if (digit >= 'a' && digit <= 'f') {
                value = static_cast<std::uint32_t>(digit - 'a' + 10);
            } else if (digit >= 'A' && digit <= 'F') {
                value = static_cast<std::uint32_t>(digit - 'A' + 10);
            } else {
                --at_;
                unexpected();
            }
            unit = unit * 16 + value;
        }
        return unit;
    }

    static void append_utf8(std::string &result, std::uint32_t code)
    {
        const auto byte = [&result](std::uint32_t value) { result += static_cast<char>(static_cast<unsigned char>(value)); };
        if (code < 0x80) {
            byte(code);
        } else if (code < 0x800) {
            byte(0xC0 | (code >> 6));
            byte(0x80 | (code & 0x3F));
        } else if (code < 0x10000) {
            byte(0xE0 | (code >> 12));
            byte(0x80 | ((code >> 6) & 0x3F));
            byte(0x80 | (code & 0x3F));
        } else {
            byte(0xF0 | (code >> 18));
            byte(0x80 | ((code >> 12) & 0x3F));
            byte(0x80 | ((code >> 6) & 0x3F));
            byte(0x80 | (code & 0x3F));
        }
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

/** The index of `value` among the words that `key` can have. */
template <std::size_t N>
std::size_t word(const std::string &key, const std::string &value, const char *const (&words)[N])
{
    const auto found = std::find(std::begin(words), std::end(words), value);
    if (found == std::end(words)) {
        std::string known;
        for (const char *const candidate : words) {
            known += (known.empty() ? "" : ", ") + std::string(candidate);
        }
        invalid(key + " is '" + value + "'; known are " + known);
    }
    return static_cast<std::size_t>(found - std::begin(words));
}

/** A folder or file: not empty, and without NUL, which would end it early. */
std::string path(const std::string &key, std::string value)
{
    if (value.empty() || value.find('\0') != std::string::npos) {
        invalid(key + " is no path");
    }
    return value;
}

} // namespace

Options parse_options(std::string_view json)
{
    Options options;
    if (json.empty()) {
        return options;
    }
    JsonReader reader(json);
    std::set<std::string> seen;
    reader.object([&](const std::string &key) {
        if (!seen.insert(key).second) {
            invalid("'" + key + "' is given twice");
        }
        if (key == "library_dir") {
            options.library_dir = path(key, reader.string());
        } else if (key == "libraries") {
            for (std::string &library : reader.strings()) {
                options.libraries.push_back(path(key, std::move(library)));
            }
        } else if (key == "qnn_library_dir") {
            options.qnn_library_dir = path(key, reader.string());
        } else if (key == "load_mode") {
            options.load_mode = word(key, reader.string(), {"mmap", "file"}) == 0 ? LoadMode::mmap : LoadMode::file;
        } else if (key == "log_level") {
            options.log_level = static_cast<std::int32_t>(
                word(key, reader.string(), {"off", "error", "warning", "info", "debug", "trace"}));
        } else if (key == "handle_aborts") {
            options.handle_aborts = reader.boolean();
        } else {
            invalid("there is no option '" + key +
                    "'; known are library_dir, libraries, qnn_library_dir, load_mode, log_level, handle_aborts");
        }
    });
    return options;
}

} // namespace etgenai::executorch
