//! Any settings for a picture of any size: tiles as the layout says, or an error with a text.

#![no_main]

use arbitrary::Arbitrary;
use etgenai::media::{DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, Pixels, Tiling};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    internvl: bool,
    tile_size: u8,
    settings: Vec<u8>,
    width: u8,
    height: u8,
    tiling: u8,
}

fuzz_target!(|input: Input| {
    let family = if input.internvl { ImageFamily::InternVl } else { ImageFamily::SmolVlm };
    let settings = serde_json::from_slice(&input.settings).ok();
    let processor = match ImageProcessor::from_config(family, settings.as_ref(), None, input.tile_size.into()) {
        Ok(processor) => processor,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let tiling = [Tiling::Checkpoint, Tiling::Split, Tiling::Whole, Tiling::Single][usize::from(input.tiling % 4)];
    let (width, height) = (usize::from(input.width), usize::from(input.height));
    let layout = processor.layout(width, height, tiling);
    assert_eq!(layout.is_err(), width == 0 || height == 0);
    let data = vec![7; width * height];
    let pixels = Pixels { format: PixelFormat::Gray8, width, height, row_stride: width, data: &data };
    let Ok(image) = Image::from_pixels(&pixels, &DecodeOptions::default()) else { return };
    let tensor = processor.process(&image, tiling).unwrap();
    assert_eq!(Some(tensor.layout), layout.ok());
    assert_eq!(tensor.values.len(), tensor.layout.tiles() * 3 * processor.tile_size() * processor.tile_size());
});
