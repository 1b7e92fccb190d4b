//! Files written here, read back; damage is named.

use super::*;
use crate::chat::EncodeOptions;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

const PLAIN: EncodeOptions = EncodeOptions { add_bos: false, parse_special: false };
const PROMPT: EncodeOptions = EncodeOptions { add_bos: true, parse_special: true };

/// Writes a file into a folder of its own.
fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn open(name: &str, bytes: &[u8]) -> Result<TokenizerFile> {
    let (_folder, path) = written(name, bytes);
    TokenizerFile::open(path)
}

fn error_of(name: &str, bytes: &[u8]) -> String {
    open(name, bytes).expect_err("malformed").to_string()
}

/// Scores and texts in the manner of llama2.c: three special tokens, the bytes, pieces whose spaces are spaces.
fn pieces() -> Vec<(f32, String)> {
    let mut pieces: Vec<(f32, String)> = ["<unk>", "\n<s>\n", "\n</s>\n"].map(|text| (0.0, text.to_owned())).to_vec();
    pieces.extend((0..=255).map(|byte| (0.0, format!("<0x{byte:02X}>"))));
    let words = [" t", "he", " the", "re", " there", " ", "t", "h", "e", "r"];
    pieces.extend(words.iter().zip(1..).map(|(text, rank): (_, i16)| (-f32::from(rank), (*text).to_owned())));
    pieces
}

fn records(pieces: &[(f32, String)]) -> Vec<u8> {
    let record = |(score, text): &(f32, String)| {
        [&score.to_le_bytes()[..], &(text.len() as i32).to_le_bytes(), text.as_bytes()].concat()
    };
    pieces.iter().flat_map(record).collect()
}

fn words(words: &[i32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn plain_llama2c() -> Vec<u8> {
    [words(&[7]), records(&pieces())].concat()
}

fn executorch_llama2c() -> Vec<u8> {
    let count = pieces().len() as i32;
    [words(&[count, 1, 2, 7]), records(&pieces())].concat()
}

#[test]
fn both_layouts_of_llama2c_give_the_same_ids() {
    for bytes in [plain_llama2c(), executorch_llama2c()] {
        let file = open("tokenizer.bin", &bytes).unwrap();
        assert_eq!(file.format, TokenizerFormat::Llama2c);
        let tokenizer = &file.tokenizer;
        let id = |text: &str| pieces().iter().position(|(_, piece)| piece == text).unwrap() as u32;
        // A space goes in front; `t` + `he` would join first by score, if ` t` had not a better one.
        assert_eq!(tokenizer.encode("there the", PROMPT).unwrap(), [1, id(" there"), id(" the")]);
        assert_eq!(tokenizer.encode("é", PLAIN).unwrap(), [id(" "), 3 + 0xC3, 3 + 0xA9]);
        assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(1), &[2][..]));
        assert_eq!(tokenizer.token_bytes(2), b"\n</s>\n", "as these runners print it");
        assert_eq!(tokenizer.token_bytes(id(" the")), b" the");
        assert_eq!(tokenizer.token_bytes(3 + 0x0A), b"\n");
        assert_eq!(tokenizer.decode(&[1, id(" there"), id(" the"), 2], true), "there the");
    }
}

#[test]
fn an_executorch_file_may_end_before_its_padding() {
    let count = pieces().len() as i32;
    let bytes = [words(&[count + 1000, 1, 2, 7]), records(&pieces())].concat();
    assert_eq!(open("tokenizer.bin", &bytes).unwrap().tokenizer.vocab_size(), pieces().len());
}

#[test]
fn damaged_llama2c_files_name_field_and_value() {
    let good = records(&pieces());
    let with = |header: &[i32]| error_of("tokenizer.bin", &[words(header), good.clone()].concat());
    let count = pieces().len() as i32;
    assert!(with(&[count, 5000, 2, 7]).contains("bos_id: 5000 is outside of the 269 tokens"));
    assert!(with(&[count, 1, -2, 7]).contains("eos_id: -2 is negative"));
    assert!(with(&[10, 1, 2, 7]).contains("vocab_size: 10, but "));
    assert!(with(&[count, 1, 2, 4]).contains("token 0: its length is 5, above max_token_length 4"));
    let cut = executorch_llama2c();
    assert!(error_of("tokenizer.bin", &cut[..cut.len() - 1]).contains("token 268"));
    let cut = plain_llama2c();
    assert!(error_of("tokenizer.bin", &cut[..cut.len() - 1]).contains("token 268"));
    assert!(error_of("tokenizer.bin", b"").contains("max_token_length: 4 bytes are needed"));
    assert!(error_of("tokenizer.bin", &words(&[7])).contains("tokens: 0, but 0, 1 and 2"));
    let mut pieces = pieces();
    pieces[260].0 = f32::NAN;
    let bytes = [words(&[7]), records(&pieces)].concat();
    assert!(error_of("tokenizer.bin", &bytes).contains("token 260: its score is NaN"));
    let mut bytes = plain_llama2c();
    let last = bytes.len() - 1;
    bytes[last] = 0xFF;
    assert!(error_of("tokenizer.bin", &bytes).contains("token 268: its text is not UTF-8"));
}

/// Protocol-buffer fields.
mod proto {
    pub fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    pub fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    pub fn int(number: u64, value: i64) -> Vec<u8> {
        [varint(number << 3), varint(value as u64)].concat()
    }

    pub fn float(number: u64, value: f32) -> Vec<u8> {
        [varint(number << 3 | 5), value.to_le_bytes().to_vec()].concat()
    }
}

fn piece(text: &str, score: f32, kind: i64) -> Vec<u8> {
    proto::bytes(1, &[proto::bytes(1, text.as_bytes()), proto::float(2, score), proto::int(3, kind)].concat())
}

fn sentence_piece_model(trainer: &[Vec<u8>], normalizer: &[Vec<u8>]) -> Vec<u8> {
    let mut pieces = vec![piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3)];
    pieces.extend((0..=255).map(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, 6)));
    pieces.push(piece("<turn>", 0.0, 4));
    let words = ["▁t", "he", "▁the", "▁", "t", "h", "e"];
    pieces.extend(words.iter().zip(1..).map(|(text, rank): (_, i16)| piece(text, -f32::from(rank), 1)));
    [pieces.concat(), proto::bytes(2, &trainer.concat()), proto::bytes(3, &normalizer.concat())].concat()
}

/// BPE, spaces left alone.
fn bpe() -> Vec<Vec<u8>> {
    vec![proto::int(3, 2), proto::int(43, -1)]
}

#[test]
fn sentence_piece_models_are_read() {
    let kept = [proto::int(4, 0)];
    let file = open("tokenizer.model", &sentence_piece_model(&bpe(), &kept)).unwrap();
    assert_eq!(file.format, TokenizerFormat::SentencePiece);
    let tokenizer = &file.tokenizer;
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    assert_eq!(tokenizer.encode("the<turn>", PROMPT).unwrap(), [1, id("▁the"), id("<turn>")]);
    assert_eq!(tokenizer.encode("  the", PLAIN).unwrap(), [id("▁"), id("▁"), id("▁the")]);
    assert!(!tokenizer.encode("the</s>", PLAIN).unwrap().contains(&2));
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(1), &[2][..]));
    assert_eq!(file.special_tokens.pad_token, None);
    assert_eq!(tokenizer.decode(&[1, id("▁the"), 3 + 0x0A], true), "the\n");

    let no_prefix = [proto::int(3, 0), proto::int(4, 0)];
    let without = open("tokenizer.model", &sentence_piece_model(&bpe(), &no_prefix)).unwrap().tokenizer;
    assert_eq!(without.encode("the", PLAIN).unwrap(), [id("t"), id("he")]);

    let collapsed = open("tokenizer.model", &sentence_piece_model(&bpe(), &[])).unwrap().tokenizer;
    assert_eq!(collapsed.encode("  the   the ", PLAIN).unwrap(), [id("▁the"), id("▁the")]);
}

#[test]
fn other_sentence_piece_models_are_refused_by_field() {
    let refused = |trainer: &[Vec<u8>], normalizer: &[Vec<u8>]| {
        let error = open("tokenizer.model", &sentence_piece_model(trainer, normalizer)).expect_err("unsupported");
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        error.to_string()
    };
    assert!(refused(&[], &[]).contains("trainer_spec.model_type is 1"));
    assert!(refused(&bpe(), &[proto::bytes(2, &[1])]).contains("precompiled_charsmap is set"));
    assert!(refused(&bpe(), &[proto::int(5, 0)]).contains("escape_whitespaces is false"));
}

#[test]
fn damaged_sentence_piece_models_name_field_and_value() {
    let good = sentence_piece_model(&bpe(), &[]);
    let outside = [bpe(), vec![proto::int(42, 9000)]].concat();
    let error = error_of("tokenizer.model", &sentence_piece_model(&outside, &[]));
    assert!(error.contains("trainer_spec.eos_id: 9000 is outside of the 267 pieces"), "{error}");
    let error = error_of("tokenizer.model", &[good.clone(), piece("x", 0.0, 9)].concat());
    assert!(error.contains("piece 267: its type is 9"), "{error}");
    let error = error_of("tokenizer.model", &[good.clone(), piece("x", f32::NAN, 1)].concat());
    assert!(error.contains("piece 267: its score is NaN"), "{error}");
    let error = error_of("tokenizer.model", &[good.clone(), proto::bytes(1, &proto::bytes(1, &[0xFF]))].concat());
    assert!(error.contains("piece 267: its text is not UTF-8"), "{error}");
    let error = error_of("tokenizer.model", &[good.clone(), proto::bytes(1, &proto::int(1, 3))].concat());
    assert!(error.contains("piece 267: field 1"), "{error}");
    for length in (0..good.len()).step_by(97) {
        // Never a panic; a cut between two fields leaves a shorter, valid model.
        let _: Result<TokenizerFile> = open("tokenizer.model", &good[..length]);
    }
    let error = error_of("tokenizer.model", &good[..good.len() - 1]);
    assert!(error.contains("ModelProto: ") && error.contains("truncated or damaged"), "{error}");
}

/// All bytes, then words.
fn ranks() -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    tokens.extend([" t", "he", " the", "12", "123", "re", "é"].map(|text| text.as_bytes().to_vec()));
    tokens
}

fn rank_lines(tokens: &[Vec<u8>]) -> String {
    tokens.iter().enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

#[test]
fn rank_files_are_read_as_llama3s() {
    let file = open("tokenizer.model", rank_lines(&ranks()).as_bytes()).unwrap();
    assert_eq!(file.format, TokenizerFormat::Tiktoken);
    let tokenizer = &file.tokenizer;
    let rank = |text: &str| ranks().iter().position(|token| token == text.as_bytes()).unwrap() as u32;
    let first = ranks().len() as u32;
    assert_eq!(tokenizer.bos_id(), Some(first));
    assert_eq!(tokenizer.token_id("<|eot_id|>"), Some(first + 9));
    assert_eq!(tokenizer.token_id("<|reserved_special_token_246|>"), Some(first + 255));
    assert_eq!(tokenizer.vocab_size(), ranks().len() + 256);
    assert_eq!(tokenizer.eos_ids(), [first + 1, first + 8, first + 9]);
    let text = "he the 1234é\n<|eot_id|>";
    let expected = [
        first,
        rank("he"),
        rank(" the"),
        u32::from(b' '),
        rank("123"),
        u32::from(b'4'),
        rank("é"),
        u32::from(b'\n'),
        first + 9,
    ];
    assert_eq!(tokenizer.encode(text, PROMPT).unwrap(), expected);
    assert_eq!(tokenizer.decode(&expected, true), "he the 1234é\n");
    assert_eq!(tokenizer.token_bytes(first + 9), b"<|eot_id|>");
    let plain = tokenizer.encode("<|eot_id|>", PLAIN).unwrap();
    assert!(plain.iter().all(|&id| id < first), "{plain:?}");
}

#[test]
fn a_rank_file_in_another_order_is_the_same() {
    let lines = rank_lines(&ranks());
    let mut reversed: Vec<&str> = lines.lines().rev().collect();
    reversed.push("");
    let (a, b) = (lines.clone(), reversed.join("\r\n"));
    let [a, b] = [a, b].map(|text| open("tokenizer.model", text.as_bytes()).unwrap().tokenizer);
    let text = "there, the 12345 é";
    assert_eq!(a.encode(text, PROMPT).unwrap(), b.encode(text, PROMPT).unwrap());
}

#[test]
fn damaged_rank_files_name_line_and_value() {
    let with = |line: &str| error_of("tokenizer.model", (rank_lines(&ranks()) + line).as_bytes());
    assert!(with("!!! 263").contains("line 264: token \"!!!\" is not base64"));
    assert!(with("aGU=").contains("line 264: \"aGU=\" is not a token and a rank"));
    assert!(with("aGVl x").contains("line 264: rank \"x\" is not a number"));
    assert!(with("aGVl -1").contains("line 264: rank \"-1\""));
    assert!(with("aGVl 7").contains("rank 7 is there twice"));
    assert!(with("aGVl 300").contains("line 264: rank 300 but no line has rank 263"));
    assert!(with("aGU= 263").contains("line 264: the token of rank 263 is there twice"));
    assert!(with(" 263").contains("line 264: the token is empty"));
}

/// A `tekken.json` with 24 special tokens, cutting digits one by one.
fn tekken(change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let entry =
        |(rank, token)| json!({"rank": rank, "token_bytes": STANDARD.encode::<Vec<u8>>(token), "token_str": null});
    let vocab: Vec<serde_json::Value> = ranks().into_iter().enumerate().map(entry).collect();
    let mut file = json!({
        "config": {
            "pattern": r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "num_vocab_tokens": 500, "default_vocab_size": 400,
            "default_num_special_tokens": 24, "version": "v3"
        },
        "vocab": vocab
    });
    change(&mut file);
    serde_json::to_vec(&file).unwrap()
}

#[test]
fn tekken_files_are_read() {
    let file = open("tekken.json", &tekken(|_| {})).unwrap();
    assert_eq!(file.format, TokenizerFormat::Tekken);
    let tokenizer = &file.tokenizer;
    let id = |text: &str| 24 + ranks().iter().position(|token| token == text.as_bytes()).unwrap() as u32;
    let ids = tokenizer.encode("he12[/INST]", PROMPT).unwrap();
    assert_eq!(ids, [1, id("he"), id("1"), id("2"), 4]);
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(1), &[2][..]));
    assert_eq!(tokenizer.token_text(23).as_deref(), Some("<SPECIAL_23>"));
    let listed = tekken(|file| {
        file["special_tokens"] = json!([{"rank": 3, "token_str": "<s>", "is_control": true},
                                        {"rank": 5, "token_str": "</s>", "is_control": true}]);
    });
    let listed = open("tekken.json", &listed).unwrap().tokenizer;
    assert_eq!((listed.bos_id(), listed.eos_ids()), (Some(3), &[5][..]));
    let cut = open("tekken.json", &tekken(|file| file["config"]["default_vocab_size"] = json!(24 + 256))).unwrap();
    assert_eq!(cut.tokenizer.vocab_size(), 24 + 256, "entries beyond the vocabulary are left out");
}

#[test]
fn damaged_tekken_files_name_field_and_value() {
    let error = |change: fn(&mut serde_json::Value)| error_of("tekken.json", &tekken(change));
    assert!(error(|file| file["vocab"][7]["rank"] = json!(9)).contains("vocab entry 7: its rank is 9"));
    assert!(error(|file| file["vocab"][7]["token_bytes"] = json!("!")).contains("vocab entry 7: is not base64"));
    assert!(error(|file| file["vocab"][7]["token_bytes"] = json!("")).contains("vocab entry 7: is empty"));
    let special = error(|file| file["special_tokens"] = json!([{"rank": 24, "token_str": "<s>"}]));
    assert!(special.contains("special_tokens: rank 24 of \"<s>\" is outside of the 24"), "{special}");
    assert!(error(|file| file["special_tokens"] = json!([])).contains("special_tokens: <s> is not among them"));
    let count = error(|file| file["config"]["default_num_special_tokens"] = json!(401));
    assert!(count.contains("config.default_num_special_tokens: 401, of a vocabulary of 400"), "{count}");
    assert!(error(|file| file["config"]["pattern"] = json!("(")).contains("tekken.json: "));
    assert!(error(|file| file["config"] = json!(null)).contains("tekken.json: tekken: "));
}

/// A `tokenizer.json` with one plain word and added tokens.
fn json_file(added: &[&str]) -> String {
    let added = added.iter().zip(1..).map(|(content, id): (_, u32)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    });
    json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": byte_level::byte_level_step(true, true),
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    })
    .to_string()
}

#[test]
fn files_beside_it_name_special_tokens_and_template() {
    let json = json_file(&["<s>", "<|im_end|>", "<|endoftext|>"]);
    let (folder, path) = written("tokenizer.json", json.as_bytes());
    let write = |name: &str, content: &str| std::fs::write(folder.path().join(name), content).unwrap();
    let alone = TokenizerFile::open(&path).unwrap();
    assert_eq!((alone.format, alone.tokenizer.eos_ids()), (TokenizerFormat::HuggingFace, &[][..]), "two candidates");
    assert_eq!(alone.chat_template, None);
    write("special_tokens_map.json", r#"{"bos_token": "<s>", "eos_token": {"content": "<|endoftext|>"}}"#);
    write("generation_config.json", r#"{"eos_token_id": [2]}"#);
    write("tokenizer_config.json", r#"{"add_bos_token": true, "chat_template": "T"}"#);
    let file = TokenizerFile::open(folder.path()).unwrap();
    assert_eq!(file.tokenizer.eos_ids(), [2, 3]);
    assert_eq!(file.tokenizer.encode("a", PROMPT).unwrap(), [1, 0]);
    assert_eq!(file.chat_template.as_deref(), Some("T"));
    write("tokenizer_config.json", "{");
    let error = TokenizerFile::open(&path).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json: JSON"), "{error}");
}

#[test]
fn a_bare_json_file_ends_at_what_looks_like_an_end() {
    let ends =
        |added: &[&str]| open("tokenizer.json", json_file(added).as_bytes()).unwrap().tokenizer.eos_ids().to_vec();
    assert_eq!(ends(&["<pad>", "<end_of_utterance>"]), [2]);
    assert_eq!(ends(&["<begin>"]), [1], "the only token that structures a text");
    assert_eq!(ends(&["<pad>"]), [0u32; 0]);
}

#[test]
fn what_is_no_tokenizer_is_said_so() {
    let missing = TokenizerFile::open("there/is/no/tokenizer.bin").unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let error = TokenizerFile::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("holds none of tokenizer.json, tekken.json, tokenizer.model, tokenizer.bin"), "{error}");
    let error = error_of("config.json", b"{\"model\": 3}");
    assert!(error.contains("config.json: "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens to a file, it is read or refused; what was read can be used.
    #[test]
    fn damage_is_never_a_panic(
        which in 0usize..4,
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4),
        end in any::<Index>(),
        cut in any::<bool>(),
    ) {
        let files = [
            plain_llama2c(),
            executorch_llama2c(),
            sentence_piece_model(&bpe(), &[proto::int(4, 0)]),
            rank_lines(&ranks()).into_bytes(),
        ];
        let mut bytes = files[which].clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        if let Ok(file) = open("tokenizer", &bytes) {
            let ids = file.tokenizer.encode("the 12 é", PROMPT).unwrap_or_default();
            file.tokenizer.decode(&ids, false);
        }
    }
}
