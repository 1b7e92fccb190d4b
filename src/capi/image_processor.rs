//! `etg_image_processor`: preprocessing of pictures by itself, without a runner.

use super::guard::guard;
use super::handle::{self, Handle};
use super::image::etg_image;
use super::input::{self, Out};
use super::json_fields;
use super::pixels::{self, etg_pixels};
use super::status::ETG_OK;
use crate::artefact::Artefact;
use crate::media::{ImageFamily, ImageProcessor, Tiling};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::ffi::c_char;
use std::ptr;

/// Preprocessing as SmolVLM and Idefics 3 publish it.
pub const ETG_IMAGE_FAMILY_SMOLVLM: i32 = 0;
/// Preprocessing as InternVL publishes it.
pub const ETG_IMAGE_FAMILY_INTERNVL: i32 = 1;

/// Tiling: as the checkpoint's own settings say. With an "upstream:" template this means `ETG_TILING_SINGLE`, which is
/// all that upstream knows.
pub const ETG_TILING_CHECKPOINT: i32 = 0;
/// Tiling: crops and an overview, if the picture is large enough to be cut.
pub const ETG_TILING_SPLIT: i32 = 1;
/// Tiling: one tile, as the Hugging Face processor makes it when it does not split.
pub const ETG_TILING_WHOLE: i32 = 2;
/// Tiling: one tile, stretched straight to the encoder's square, as the ExecuTorch runtime feeds it.
pub const ETG_TILING_SINGLE: i32 = 3;

/// Everything about preprocessing pictures for one model: sizes, tiles, resampling, normalization. It never changes.
pub struct etg_image_processor {
    processor: ImageProcessor,
}

impl Handle for etg_image_processor {
    const NAME: &'static str = "etg_image_processor";
}

/// The tiling with this number.
pub(super) fn tiling_of(tiling: i32) -> Result<Tiling> {
    match tiling {
        ETG_TILING_CHECKPOINT => Ok(Tiling::Checkpoint),
        ETG_TILING_SPLIT => Ok(Tiling::Split),
        ETG_TILING_WHOLE => Ok(Tiling::Whole),
        ETG_TILING_SINGLE => Ok(Tiling::Single),
        other => Err(Error::invalid(format!("tiling is {other}, but must be an ETG_TILING_ constant (0 to 3)"))),
    }
}

fn family_of(family: i32) -> Result<ImageFamily> {
    match family {
        ETG_IMAGE_FAMILY_SMOLVLM => Ok(ImageFamily::SmolVlm),
        ETG_IMAGE_FAMILY_INTERNVL => Ok(ImageFamily::InternVl),
        other => Err(Error::invalid(format!("family is {other}, but must be an ETG_IMAGE_FAMILY_ constant (0 or 1)"))),
    }
}

/// The content of a settings file; the empty text is a checkpoint without that file.
fn settings(file: &str, text: &str) -> Result<Option<Map<String, Value>>> {
    if text.is_empty() { Ok(None) } else { json_fields::object(file, text).map(Some) }
}

/// Make a processor from the texts of a checkpoint's `preprocessor_config.json` and `processor_config.json`, either of
/// which may be empty: what is not said there is as the family was published. `family` is an `ETG_IMAGE_FAMILY_`
/// constant, `tile_size` the side of the square that the encoder takes, in pixels.
///
/// - Threads: any, several at once.
/// - Owns: the texts are not kept. `*processor_out` is the caller's; free it with `etg_image_processor_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not UTF-8, not such a constant, a value out of range),
///   `ETG_ERROR_FORMAT` (not JSON, or a setting that is malformed or not supported; the message names it).
/// - After a failure: nothing was made, `*processor_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_processor_create(
    family: i32,
    preprocessor_json: *const c_char,
    preprocessor_json_length: usize,
    processor_json: *const c_char,
    processor_json_length: usize,
    tile_size: usize,
    processor_out: *mut *mut etg_image_processor,
) -> i32 {
    guard("etg_image_processor_create", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(processor_out, ptr::null_mut(), "processor_out") }?;
        let (first, second) = ("preprocessor_config.json", "processor_config.json");
        // SAFETY: text of the caller.
        let preprocessor = unsafe { input::text(preprocessor_json, preprocessor_json_length, first) }?;
        // SAFETY: as above.
        let processor = unsafe { input::text(processor_json, processor_json_length, second) }?;
        let (preprocessor, processor) = (settings(first, preprocessor)?, settings(second, processor)?);
        let family = family_of(family)?;
        let processor = ImageProcessor::from_config(family, preprocessor.as_ref(), processor.as_ref(), tile_size)?;
        out.set(handle::issue(etg_image_processor { processor }));
        Ok(ETG_OK)
    })
}

/// Open the processor of a compiled model folder; no weights are read.
///
/// - Threads: any, several at once.
/// - Owns: `*processor_out` is the caller's; free it with `etg_image_processor_free`.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT`, `ETG_ERROR_NOT_FOUND`, `ETG_ERROR_IO`, `ETG_ERROR_FORMAT`,
///   `ETG_ERROR_UNSUPPORTED` (the model takes no pictures).
/// - After a failure: nothing was opened, `*processor_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_processor_open(
    path: *const c_char,
    path_length: usize,
    processor_out: *mut *mut etg_image_processor,
) -> i32 {
    guard("etg_image_processor_open", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(processor_out, ptr::null_mut(), "processor_out") }?;
        // SAFETY: text of the caller.
        let path = unsafe { input::path(path, path_length, "path") }?;
        let artefact = Artefact::open(&path)?;
        let Some(image) = &artefact.manifest().image else {
            return Err(Error::Unsupported(format!("{}: this model takes no pictures", path.display())));
        };
        out.set(handle::issue(etg_image_processor { processor: image.processor.clone() }));
        Ok(ETG_OK)
    })
}

/// Free a processor. NULL is allowed and does nothing.
///
/// - Threads: any; a call that is using the processor goes on.
/// - Owns: takes the processor back.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (not a live processor: freed twice).
/// - After a failure: nothing was freed.
#[unsafe(no_mangle)]
pub extern "C" fn etg_image_processor_free(processor: *mut etg_image_processor) -> i32 {
    guard("etg_image_processor_free", || handle::free(processor).map(|()| ETG_OK))
}

/// Side of a tile, in pixels.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL or not live).
/// - After a failure: `*pixels_out` is 0 if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_processor_tile_size(
    processor: *const etg_image_processor,
    pixels_out: *mut usize,
) -> i32 {
    guard("etg_image_processor_tile_size", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { Out::new(pixels_out, 0, "pixels_out") }?;
        out.set(handle::get(processor)?.processor.tile_size());
        Ok(ETG_OK)
    })
}

/// How a picture of `width` by `height` pixels would be cut; as `etg_pixels_layout`. `tiling` is an `ETG_TILING_`
/// constant. No picture is needed.
///
/// - Threads: any, also several at once.
/// - Owns: nothing.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a side of 0).
/// - After a failure: the results are 0 if they could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_processor_layout(
    processor: *const etg_image_processor,
    width: usize,
    height: usize,
    tiling: i32,
    tile_rows_out: *mut usize,
    tile_cols_out: *mut usize,
    overview_out: *mut i32,
) -> i32 {
    guard("etg_image_processor_layout", || {
        let layout = || handle::get(processor)?.processor.layout(width, height, tiling_of(tiling)?);
        // SAFETY: out-parameters of the caller.
        unsafe { pixels::tell_layout(tile_rows_out, tile_cols_out, overview_out, layout) }
    })
}

/// Scale, cut and normalize a picture. `tiling` is an `ETG_TILING_` constant. A picture made from a tensor is passed on
/// as it is.
///
/// - Threads: any, also several at once.
/// - Owns: `*pixels_out` is the caller's; free it with `etg_pixels_free`. Picture and processor may be freed first.
/// - Codes: `ETG_ERROR_INVALID_ARGUMENT` (NULL, not live, not such a constant, a tensor whose tiles are not of the
///   encoder's size).
/// - After a failure: nothing was made, `*pixels_out` is NULL if it could be written.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn etg_image_processor_process(
    processor: *const etg_image_processor,
    image: *const etg_image,
    tiling: i32,
    pixels_out: *mut *mut etg_pixels,
) -> i32 {
    guard("etg_image_processor_process", || {
        // SAFETY: out-parameter of the caller.
        let mut out = unsafe { pixels::out(pixels_out) }?;
        let (processor, image) = (handle::get(processor)?, handle::get(image)?);
        out.set(pixels::issue(processor.processor.process(&image.image, tiling_of(tiling)?)?));
        Ok(ETG_OK)
    })
}
