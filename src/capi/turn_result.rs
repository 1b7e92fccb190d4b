//! `etg_turn_result`: what one turn gave.

use super::sized_struct::Sized32;
use crate::runner::TurnResult;
use std::ffi::c_char;
use std::mem::offset_of;

/// One finished reply: its text, its tokens, counts and times. Initialise it with `etg_turn_result_init`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct etg_turn_result {
    /// Size of this struct as the program was compiled; afterwards the bytes that were filled.
    pub struct_size: u32,
    /// What the call returned: `ETG_OK` or an `ETG_STOP_` constant.
    pub status: i32,
    /// The reply: UTF-8, with a NUL behind it that is not counted; no special tokens, nothing from a stop string on.
    pub text: *const c_char,
    /// Bytes of `text`.
    pub text_length: usize,
    /// The sampled token ids, without the end-of-sequence token that ended the reply.
    pub tokens: *const u32,
    /// Number of `tokens`.
    pub token_count: usize,
    /// Seed that was used, if `has_seed` is 1.
    pub seed: u64,
    /// Tokens of the whole prompt, history included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were in the KV cache already.
    pub reused_tokens: u64,
    /// Prompt tokens that were computed in this turn.
    pub prefilled_tokens: u64,
    /// Tokens sampled, the first and the end-of-sequence token included.
    pub generated_tokens: u64,
    /// Rendering and tokenizing, milliseconds.
    pub encode_ms: f64,
    /// Computing the prompt, milliseconds.
    pub prefill_ms: f64,
    /// From the start to the first sampled token, milliseconds; 0 if there was none.
    pub first_token_ms: f64,
    /// From the first sampled token to the end, milliseconds.
    pub decode_ms: f64,
    /// Choosing tokens, milliseconds.
    pub sampling_ms: f64,
    /// Inside the engine, milliseconds.
    pub engine_ms: f64,
    /// The whole turn, milliseconds.
    pub total_ms: f64,
    /// Computed prompt tokens a second; 0 if not defined.
    pub prefill_tokens_per_second: f64,
    /// Decode steps a second; 0 if not defined.
    pub decode_tokens_per_second: f64,
    /// 1 if tokens were drawn with `seed`, 0 if the choice was greedy.
    pub has_seed: i32,
    /// 0.
    pub reserved: i32,
    /// Pictures and sounds of the whole prompt, history included.
    pub images: u64,
    /// Pictures and sounds that were encoded in this turn; the rows of the others were known.
    pub encoded_images: u64,
    /// Decoded pictures to tiles of the encoder, milliseconds.
    pub image_preprocess_ms: f64,
    /// Inside the vision encoder, milliseconds.
    pub image_encode_ms: f64,
}

// SAFETY: repr(C), u32 first, no padding (the test below adds the fields up); zero is a value of every field.
unsafe impl Sized32 for etg_turn_result {
    const NAME: &'static str = "etg_turn_result";
    /// The first version knew no pictures.
    const FIRST_SIZE: usize = offset_of!(etg_turn_result, images);
}

/// The reply's memory that the caller borrows.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// Text with a NUL behind it.
    text: Vec<u8>,
    tokens: Vec<u32>,
}

impl Reply {
    /// A copy of a result's text and tokens.
    pub(super) fn of(result: &TurnResult) -> Self {
        let mut text = result.text.clone().into_bytes();
        text.push(0);
        Reply { text, tokens: result.tokens.clone() }
    }

    /// The struct for the caller, which points into this reply.
    pub(super) fn describe(&self, result: &TurnResult, status: i32) -> etg_turn_result {
        let stats = &result.stats;
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        etg_turn_result {
            struct_size: 0,
            status,
            text: self.text.as_ptr().cast(),
            text_length: self.text.len().saturating_sub(1),
            tokens: self.tokens.as_ptr(),
            token_count: self.tokens.len(),
            seed: result.seed.unwrap_or_default(),
            prompt_tokens: wide(stats.prompt_tokens),
            reused_tokens: wide(stats.reused_tokens),
            prefilled_tokens: wide(stats.prefilled_tokens),
            generated_tokens: wide(stats.generated_tokens),
            encode_ms: stats.encode_ms,
            prefill_ms: stats.prefill_ms,
            first_token_ms: stats.first_token_ms,
            decode_ms: stats.decode_ms,
            sampling_ms: stats.sampling_ms,
            engine_ms: stats.engine_ms,
            total_ms: stats.total_ms,
            prefill_tokens_per_second: stats.prefill_tokens_per_second().unwrap_or_default(),
            decode_tokens_per_second: stats.decode_tokens_per_second().unwrap_or_default(),
            has_seed: i32::from(result.seed.is_some()),
            reserved: 0,
            images: wide(stats.images),
            encoded_images: wide(stats.encoded_images),
            image_preprocess_ms: stats.image_preprocess_ms,
            image_encode_ms: stats.image_encode_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_has_no_padding() {
        let fields = 2 * 4 + 4 * size_of::<usize>() + 5 * 8 + 9 * 8 + 2 * 4 + 4 * 8;
        assert_eq!(size_of::<etg_turn_result>(), fields);
    }
}
