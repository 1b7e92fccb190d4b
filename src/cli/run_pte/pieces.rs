//! Tokens as the bytes upstream's runners hand out, one piece a token.
//!
//! A piece may end within a character, and tokens that structure the conversation are pieces too: the end token appears
//! in the output.

use etgenai::chat::{Tokenizer, TokenizerFormat};

/// Token after token to bytes.
pub struct Pieces {
    tokenizer: Tokenizer,
    format: TokenizerFormat,
    previous: Option<u32>,
}

impl Pieces {
    /// Pieces of a tokenizer that was read from a file of `format`.
    pub fn new(tokenizer: Tokenizer, format: TokenizerFormat) -> Self {
        Self { tokenizer, format, previous: None }
    }

    /// A reply begins: upstream takes its first token as its own predecessor.
    pub fn begin(&mut self) {
        self.previous = None;
    }

    /// The piece of the next token. Ids outside of the vocabulary have none.
    pub fn next(&mut self, id: u32) -> Vec<u8> {
        let previous = self.previous.replace(id).unwrap_or(id);
        let sentence_piece = self.format == TokenizerFormat::SentencePiece;
        if sentence_piece && self.tokenizer.is_control(id) {
            return b" ".to_vec();
        }
        let mut piece = self.tokenizer.token_bytes(id);
        // The space in front of the first word was put there by the tokenizer.
        let has_prefix = sentence_piece || self.format == TokenizerFormat::Llama2c;
        if has_prefix && self.tokenizer.bos_id() == Some(previous) && piece.first() == Some(&b' ') {
            piece.remove(0);
        }
        piece
    }

    /// Text of a prompt that was given as ids.
    pub fn text_of(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etgenai::chat::TokenizerFile;

    /// Behind `<unk>`, `<s>`, `</s>` and all bytes: a word with a space in front.
    const WORD: u32 = 3 + 256;

    fn pieces_of(name: &str, bytes: &[u8]) -> Pieces {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let file = TokenizerFile::open(&path).unwrap();
        Pieces::new(file.tokenizer, file.format)
    }

    fn llama2c() -> Vec<u8> {
        let mut texts: Vec<String> = ["<unk>", "\n<s>\n", "\n</s>\n"].map(String::from).to_vec();
        texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        texts.push(" go".into());
        let header = [texts.len() as i32, 1, 2, 8].map(i32::to_le_bytes).concat();
        let record = |text: &String| [&[0; 4], &(text.len() as i32).to_le_bytes(), text.as_bytes()].concat();
        header.into_iter().chain(texts.iter().flat_map(record)).collect()
    }

    /// Protocol-buffer fields of less than 128 bytes: pieces (text, type), BPE.
    fn sentence_piece() -> Vec<u8> {
        let bytes = |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
        let piece = |text: &str, kind: u8| bytes(1, &[bytes(1, text.as_bytes()), vec![3 << 3, kind]].concat());
        let mut model = [piece("<unk>", 2), piece("<s>", 3), piece("</s>", 3)].concat();
        model.extend((0..=255).flat_map(|byte| piece(&format!("<0x{byte:02X}>"), 6)));
        model.extend(piece("\u{2581}go", 1));
        model.extend(bytes(2, &[3 << 3, 2]));
        model
    }

    #[test]
    fn a_space_behind_the_begin_token_is_no_text() {
        for mut pieces in [pieces_of("tokenizer.bin", &llama2c()), pieces_of("tokenizer.model", &sentence_piece())] {
            assert_eq!(pieces.next(WORD), b" go", "a reply begins: its first token has no predecessor");
            assert_eq!(pieces.next(WORD), b" go");
            pieces.next(1);
            assert_eq!(pieces.next(WORD), b"go");
            pieces.begin();
            assert_eq!(pieces.next(WORD), b" go");
            assert_eq!(pieces.next(3 + 0xE4), [0xE4], "a piece may end within a character");
            assert_eq!(pieces.next(9999), b"");
        }
    }

    #[test]
    fn end_tokens_are_pieces_too() {
        assert_eq!(pieces_of("tokenizer.bin", &llama2c()).next(2), b"\n</s>\n");
        assert_eq!(pieces_of("tokenizer.model", &sentence_piece()).next(2), b" ");
    }
}
