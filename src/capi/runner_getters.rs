//! What a runner can be asked at any time, also during a run and from its callbacks.

use super::buffer::{self, etg_buffer};
use super::guard::guard;
use super::handle;
use super::input::Out;
use super::runner::{Known, etg_runner};
use super::status::ETG_OK;
use crate::Error;
use serde_json::json;

/// The body of a getter that gives a number.
///
/// # Safety
/// `place` is an out-parameter of the caller.
unsafe fn number(
    function: &'static str,
    runner: *const etg_runner,
    place: *mut usize,
    what: &'static str,
    get: impl FnOnce(&Known) -> usize,
) -> i32 {
    guard(function, || {
        // SAFETY: this function's contract.
        let mut out = unsafe { Out::new(place, 0, what) }?;
        out.set(get(&handle::get(runner)?.known()));
        Ok(ETG_OK)
    })
}

/// The body of a getter that gives text.
///
/// # Safety
/// `buffer_out` is an out-parameter of the caller.
unsafe fn text(
    function: &'static str,
    runner: *const etg_runner,
    buffer_out: *mut *mut etg_buffer,
    get: impl FnOnce(&Known) -> crate::Result<String>,
) -> i32 {
    guard(function, || {
        // SAFETY: this function's contract.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        out.set(buffer::text(get(&handle::get(runner)?.known())?));
        Ok(ETG_OK)
    })
}

/// Number of finished turns. During a run: before it.
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*turns_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_turn_count(runner: *const etg_runner, turns_out: *mut usize) -> i32 {
    // SAFETY: out-parameter of the caller.
    unsafe { number("etg_runner_turn_count", runner, turns_out, "turns_out", |known| known.turn_count) }
}

/// Number of tokens of the history, the last sampled one included. During a run: before it.
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*tokens_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_position(runner: *const etg_runner, tokens_out: *mut usize) -> i32 {
    // SAFETY: out-parameter of the caller.
    unsafe { number("etg_runner_position", runner, tokens_out, "tokens_out", |known| known.position) }
}

/// Most tokens of a conversation: history, prompt and reply together. It belongs to the compiled model.
///
/// - Threads: any, at any time.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*tokens_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_context_capacity(runner: *const etg_runner, tokens_out: *mut usize) -> i32 {
    // SAFETY: out-parameter of the caller.
    unsafe { number("etg_runner_context_capacity", runner, tokens_out, "tokens_out", |known| known.context_capacity) }
}

/// Statistics as one JSON object: "turn" (the last turn that ended well, or null) and "total" (all runs since the
/// runner was opened). Times are milliseconds; a rate that is not defined is null. During a run: before it.
///
/// - Threads: any, at any time.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_stats_json(runner: *const etg_runner, buffer_out: *mut *mut etg_buffer) -> i32 {
    let json = |known: &Known| {
        let Known { turn, total, .. } = known;
        let turn_rates = turn.as_ref().map(|turn| {
            json!({
                "prefill_tokens_per_second": turn.prefill_tokens_per_second(),
                "decode_tokens_per_second": turn.decode_tokens_per_second(),
            })
        });
        let total_rates = json!({
            "prefill_tokens_per_second": total.prefill_tokens_per_second(),
            "decode_tokens_per_second": total.decode_tokens_per_second(),
        });
        let mut stats = json!({ "turn": turn, "total": total });
        for (key, rates) in [("turn", turn_rates), ("total", Some(total_rates))] {
            let target = stats.get_mut(key).and_then(|object| object.as_object_mut());
            if let (Some(target), Some(serde_json::Value::Object(rates))) = (target, rates) {
                target.extend(rates);
            }
        }
        Ok(stats.to_string())
    };
    // SAFETY: out-parameter of the caller.
    unsafe { text("etg_runner_stats_json", runner, buffer_out, json) }
}

/// The last turn's statistics as the line that upstream's runners print: "PyTorchObserver {...}" and a newline.
///
/// - Threads: any, at any time.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no turn has ended well yet).
/// - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_stats_observer_line(
    runner: *const etg_runner,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    let line = |known: &Known| known.turn.as_ref().map(|turn| turn.observer_line()).ok_or_else(no_turn);
    // SAFETY: out-parameter of the caller.
    unsafe { text("etg_runner_stats_observer_line", runner, buffer_out, line) }
}

/// The last turn's statistics as the lines that upstream's runners log, without a platform's prefix, each with a
/// newline.
///
/// - Threads: any, at any time.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live), `ETG_ERROR_INVALID_STATE` (no turn has ended well yet).
/// - After a failure: the runner is unchanged, `*buffer_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_stats_log_lines(
    runner: *const etg_runner,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    let lines = |known: &Known| {
        let turn = known.turn.as_ref().ok_or_else(no_turn)?;
        Ok(turn.log_lines().iter().map(|line| format!("{line}\n")).collect())
    };
    // SAFETY: out-parameter of the caller.
    unsafe { text("etg_runner_stats_log_lines", runner, buffer_out, lines) }
}

fn no_turn() -> Error {
    Error::InvalidState("there are no statistics: no turn has ended well yet".into())
}

/// The last call on this runner that failed, on whichever thread: its code and its text. `ETG_OK` and empty text when
/// none did. Failures of getters and of handles that are not live are not recorded here.
///
/// - Threads: any, at any time.
/// - Owns: `*buffer_out` (text) is the caller's; free it with `etg_buffer_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: the runner is unchanged, `*code_out` is `ETG_OK` and `*buffer_out` NULL if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_runner_last_error(
    runner: *const etg_runner,
    code_out: *mut i32,
    buffer_out: *mut *mut etg_buffer,
) -> i32 {
    guard("etg_runner_last_error", || {
        // SAFETY: out-parameters of the caller.
        let mut code = unsafe { Out::new(code_out, ETG_OK, "code_out") }?;
        // SAFETY: as above.
        let mut out = unsafe { buffer::out(buffer_out) }?;
        let failure = handle::get(runner)?.last_failure();
        code.set(failure.code);
        out.set(buffer::text(failure.message.into_bytes()));
        Ok(ETG_OK)
    })
}
