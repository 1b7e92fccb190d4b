//! Link arguments of the shared library: its name for the dynamic linker, and that it stays loaded.
//!
//! Which symbols it exports needs no script: rustc hides all but the `etg_*` functions, and a test checks it.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // For tests that compile C: which machine this is.
    println!("cargo:rustc-env=ETGENAI_TARGET={}", var("TARGET").unwrap_or_default());
    let os = var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let major = var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    match os.as_str() {
        "linux" | "android" => {
            // The ABI promise is per major version, so the name that programs record holds the major version only.
            // Android packages libraries by file name and knows no versioned names.
            let soname = if os == "android" { "libetgenai.so".into() } else { format!("libetgenai.so.{major}") };
            link_arg(&format!("-Wl,-soname,{soname}"));
            // Thread-locals with destructors make unloading a Rust library unsafe: `dlclose` becomes a no-op.
            link_arg("-Wl,-z,nodelete");
            // Missing symbols are a link error here, not a surprise on a device.
            link_arg("-Wl,-z,defs");
            // 64-bit Android loads only libraries whose segments are aligned to 16 KB pages.
            if var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("aarch64") {
                link_arg("-Wl,-z,max-page-size=16384");
            }
        }
        "macos" | "ios" => link_arg(&format!("-Wl,-install_name,@rpath/libetgenai.{major}.dylib")),
        _ => {}
    }
}

fn link_arg(argument: &str) {
    println!("cargo:rustc-cdylib-link-arg={argument}");
}
