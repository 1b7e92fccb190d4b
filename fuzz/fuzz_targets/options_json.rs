//! Any bytes as the JSON of an options object of the C ABI: a status, and a text when it is an error.

#![no_main]

use etgenai::capi::compile_options::*;
use etgenai::capi::generate_options::*;
use etgenai::capi::last_error::etg_last_error_message;
use etgenai::capi::runner_options::*;
use libfuzzer_sys::fuzz_target;
use std::ffi::CStr;
use std::ptr;

fuzz_target!(|json: &[u8]| {
    let (text, length) = (json.as_ptr().cast(), json.len());
    let (mut generate, mut runner, mut compile) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: live out-parameters, and a slice with its length.
    let statuses = unsafe {
        assert_eq!(etg_generate_options_create(&mut generate), 0);
        assert_eq!(etg_runner_options_create(&mut runner), 0);
        assert_eq!(etg_compile_options_create(&mut compile), 0);
        [
            etg_generate_options_set_json(generate, text, length),
            etg_runner_options_set_json(runner, text, length),
            etg_compile_options_set_json(compile, text, length),
        ]
    };
    if statuses.iter().any(|&status| status < 0) {
        // SAFETY: never NULL, valid until the next failure of this thread.
        let message = unsafe { CStr::from_ptr(etg_last_error_message()) };
        assert!(!message.is_empty());
    }
    etg_generate_options_free(generate);
    etg_runner_options_free(runner);
    etg_compile_options_free(compile);
});
