//! Any bytes as an encoded picture: pixels within the limits or an error with a text.

#![no_main]

use etgenai::media::{DecodeOptions, Image};
use libfuzzer_sys::fuzz_target;

const MAX_PIXELS: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let options = DecodeOptions { max_pixels: MAX_PIXELS, ..DecodeOptions::default() };
    match Image::decode(bytes, &options) {
        Ok(image) => {
            let pixels = image.width() * image.height();
            assert!(pixels >= 1 && pixels as u64 <= MAX_PIXELS);
            assert_eq!(image.rgb().map(<[u8]>::len), Some(pixels * 3));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
