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
