//! Perplexity of a text.
//!
//! Protocol: the tokens of the text without a begin-of-text token are cut into consecutive windows of N; each window
//! starts cold at position 0; its first token is not scored, every other one by the logits of the token before it;
//! the last, shorter window counts too unless only full ones are asked for; the result is exp(mean negative
//! log-likelihood).

use super::decoder::Decoder;
use super::event::Flow;
use crate::error::{Error, Result};
use serde::Serialize;

/// How a text is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalOptions {
    /// Tokens of a window: at least 2, at most the context capacity.
    pub window: usize,
    /// Leave out a last window that is shorter.
    pub full_windows_only: bool,
}

/// How far an evaluation is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalProgress {
    /// Tokens scored so far.
    pub scored: usize,
    /// Tokens that will be scored.
    pub total: usize,
    /// Perplexity so far.
    pub perplexity: f64,
}

/// Result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Perplexity {
    /// exp(mean negative log-likelihood).
    pub perplexity: f64,
    /// Mean negative log-likelihood of a scored token, in nats.
    pub mean_nll: f64,
    /// Number of scored tokens.
    pub scored_tokens: usize,
    /// Number of windows.
    pub windows: usize,
    /// Time in the engine, milliseconds.
    pub engine_ms: f64,
}

/// Evaluate `tokens`. The decoder is reset before every window and at the end. `progress` is called after every scored token;
/// [`Flow::Stop`] ends the evaluation.
///
/// # Errors
/// [`Error::InvalidArgument`] for a window out of range or a text with nothing to score; [`Error::Cancelled`] if
/// `progress` stopped it; what [`Decoder::prefill`] returns; [`Error::Engine`] for logits that are not finite.
pub fn perplexity(
    decoder: &mut Decoder,
    tokens: &[u32],
    options: &EvalOptions,
    progress: &mut dyn FnMut(&EvalProgress) -> Flow,
) -> Result<Perplexity> {
    let windows = eval_windows(tokens, options, decoder.context_capacity())?;
    let total: usize = windows.iter().map(|window| window.len() - 1).sum();
    let engine_before = decoder.engine_ms();
    let (mut nll, mut scored) = (0.0, 0);
    let mut score = |logits: &[f32], target: u32| {
        nll += negative_log_likelihood(logits, target)?;
        scored += 1;
        Ok(progress(&EvalProgress { scored, total, perplexity: (nll / scored as f64).exp() }))
    };
    for window in &windows {
        decoder.reset();
        score_window(decoder, window, &mut score)?;
    }
    decoder.reset();
    let mean_nll = nll / total as f64;
    Ok(Perplexity {
        perplexity: mean_nll.exp(),
        mean_nll,
        scored_tokens: scored,
        windows: windows.len(),
        engine_ms: decoder.engine_ms() - engine_before,
    })
}

/// The windows that a text is scored in, each of at least 2 tokens.
///
/// # Errors
/// [`Error::InvalidArgument`] for a window that is not from 2 to `capacity` tokens, or a text with nothing to score.
pub fn eval_windows<'t>(tokens: &'t [u32], options: &EvalOptions, capacity: usize) -> Result<Vec<&'t [u32]>> {
    if !(2..=capacity).contains(&options.window) {
        return Err(Error::invalid(format!(
            "window is {}, it must be from 2 to the context capacity of {capacity} tokens",
            options.window
        )));
    }
    let long_enough =
        |window: &&[u32]| window.len() == options.window || !options.full_windows_only && window.len() > 1;
    let windows: Vec<&[u32]> = tokens.chunks(options.window).filter(long_enough).collect();
    if windows.is_empty() {
        let have = tokens.len();
        return Err(Error::invalid(format!(
            "a text of {have} tokens has nothing to score in windows of {}",
            options.window
        )));
    }
    Ok(windows)
}

fn score_window(
    decoder: &mut Decoder,
    window: &[u32],
    score: &mut dyn FnMut(&[f32], u32) -> Result<Flow>,
) -> Result<()> {
    // The last token is scored but predicts nothing, so it is not fed, and a window may be as long as the context.
    let (Some((_, fed)), Some((_, targets))) = (window.split_last(), window.split_first()) else { return Ok(()) };
    let mut stopped = false;
    decoder.prefill_all_logits(fed, &mut |index, logits| {
        let target =
            targets.get(index).copied().ok_or_else(|| Error::internal(format!("no target for row {index}")))?;
        let flow = score(logits, target)?;
        stopped = flow == Flow::Stop;
        Ok(flow)
    })?;
    if stopped { Err(Error::Cancelled) } else { Ok(()) }
}

/// `log(sum(exp(logits))) - logits[target]`, in double precision.
///
/// # Errors
/// [`Error::InvalidArgument`] for a target outside of the logits, [`Error::Engine`] for logits that are not finite.
pub fn negative_log_likelihood(logits: &[f32], target: u32) -> Result<f64> {
    let Some(&chosen) = logits.get(target as usize) else {
        let vocabulary = logits.len();
        return Err(Error::invalid(format!("token id {target} is outside the decoder's vocabulary of {vocabulary}")));
    };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let nll = f64::from(max - chosen) + sum.ln();
    if nll.is_finite() {
        return Ok(nll);
    }
    Err(Error::Engine { engine: "eval".into(), reason: format!("the likelihood of token {target} is not finite") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihood_is_that_of_the_softmax() {
        let logits = [1.0f32.ln(), 2.0f32.ln(), 5.0f32.ln()];
        for (target, probability) in [(0, 0.125f64), (1, 0.25), (2, 0.625)] {
            let nll = negative_log_likelihood(&logits, target).expect("finite");
            assert!((nll + probability.ln()).abs() < 1e-6, "{target}: {nll}");
        }
        let large = negative_log_likelihood(&[1e30, 0.0], 0).expect("no overflow");
        assert_eq!(large, 0.0);
    }

    #[test]
    fn broken_rows_and_targets_are_errors() {
        assert!(matches!(negative_log_likelihood(&[0.0, f32::NAN], 0), Err(Error::Engine { .. })));
        assert!(matches!(negative_log_likelihood(&[0.0], 1), Err(Error::InvalidArgument(_))));
    }
}
