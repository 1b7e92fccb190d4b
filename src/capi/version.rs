//! Which library this is, at compile time (macros) and at run time (functions).

use std::ffi::{CStr, c_char};

/// Major version of this header. Within one major version, functions are only added.
pub const ETG_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const ETG_VERSION_MINOR: u32 = 1;
/// Patch version of this header.
pub const ETG_VERSION_PATCH: u32 = 0;

const NUMBER: u32 = ETG_VERSION_MAJOR * 1_000_000 + ETG_VERSION_MINOR * 1_000 + ETG_VERSION_PATCH;
const STRING: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Version of the loaded library: major * 1000000 + minor * 1000 + patch. Compare with `ETG_VERSION_NUMBER`, or let
/// `etg_check_abi` do it.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: none, cannot fail.
/// - After a failure: not applicable.
#[unsafe(no_mangle)]
pub extern "C" fn etg_version_number() -> u32 {
    NUMBER
}

/// Version of the loaded library as text, e.g. "0.1.0", NUL-terminated.
///
/// - Threads: any.
/// - Owns: nothing; the text lives as long as the process.
/// - Codes: none, cannot fail, never NULL.
/// - After a failure: not applicable.
#[unsafe(no_mangle)]
pub extern "C" fn etg_version_string() -> *const c_char {
    STRING.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_equal_the_package_version() {
        let macros = format!("{ETG_VERSION_MAJOR}.{ETG_VERSION_MINOR}.{ETG_VERSION_PATCH}");
        assert_eq!(macros, env!("CARGO_PKG_VERSION"));
        assert_eq!(STRING.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}
