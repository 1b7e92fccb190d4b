//! The checkpoint's own preprocessing settings, as transformers writes them.

use serde_json::{Map, Value};

use super::plan::{Cutting, FirstSize, InternVlCutting, SmolVlmCutting};
use super::processor::{ImageFamily, Normalize, Settings};
use super::resample::Filter;
use crate::{Error, Result};

/// The factor the published files write: 1/255 to 15 digits.
const RESCALE_FACTOR: f64 = 0.003_921_568_627_450_98;

/// Mean and deviation of SmolVLM.
const HALF: Normalize = Normalize { mean: [0.5; 3], std: [0.5; 3] };

/// Mean and deviation of ImageNet, which InternVL was trained with.
const IMAGENET: Normalize = Normalize { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };

/// Reads the settings of `family`, see [`ImageProcessor::from_config`](super::ImageProcessor::from_config).
pub(super) fn read(
    family: ImageFamily,
    preprocessor: Option<&Map<String, Value>>,
    processor: Option<&Map<String, Value>>,
    tile_size: usize,
) -> Result<Settings> {
    let fields = Fields::choose(preprocessor, processor)?;
    fields.refuse("do_resize", false, "pictures are always scaled to the encoder's square")?;
    fields.refuse("do_center_crop", true, "pictures are cut by the family's own rule only")?;
    // `do_convert_rgb` and `do_pad` need no reading: pictures are RGB and tiles are whole whatever they say.
    let (cutting, filter, normalize) = match family {
        ImageFamily::SmolVlm => (smolvlm(&fields, tile_size)?, Filter::Lanczos, HALF),
        ImageFamily::InternVl => (internvl(&fields, tile_size)?, Filter::Bicubic, IMAGENET),
    };
    let rescale = fields.flag("do_rescale")?.unwrap_or(true);
    let normalized = fields.flag("do_normalize")?.unwrap_or(true);
    let rescale_factor = fields.number("rescale_factor")?.unwrap_or(RESCALE_FACTOR);
    let mean = fields.triple("image_mean")?.unwrap_or(normalize.mean);
    let std = fields.triple("image_std")?.unwrap_or(normalize.std);
    Ok(Settings {
        tile_size,
        cutting,
        resample: fields.filter("resample")?.unwrap_or(filter),
        rescale_factor: rescale.then_some(rescale_factor),
        normalize: normalized.then_some(Normalize { mean, std }),
    })
}

fn smolvlm(fields: &Fields<'_>, tile_size: usize) -> Result<Cutting> {
    if let Some(tile) = fields.object("max_image_size")?
        && let Some(side) = tile.count("longest_edge")?
    {
        tile.expect_tile_size("longest_edge", side, tile_size)?;
    }
    // Published: four tiles along the longer side.
    let default = FirstSize::LongestEdge(tile_size.saturating_mul(4));
    let size = match fields.object("size")? {
        None => default,
        Some(size) => match (size.count("longest_edge")?, size.count("height")?, size.count("width")?) {
            (Some(longest), _, _) => FirstSize::LongestEdge(longest),
            (None, Some(height), Some(width)) => FirstSize::Exactly { height, width },
            _ => return Err(fields.error("size", "neither longest_edge nor height and width are given")),
        },
    };
    let do_image_splitting = fields.flag("do_image_splitting")?.unwrap_or(true);
    Ok(Cutting::SmolVlm(SmolVlmCutting { size, do_image_splitting }))
}

fn internvl(fields: &Fields<'_>, tile_size: usize) -> Result<Cutting> {
    if fields.get("size").is_some_and(Value::is_number) {
        // The short form of a square.
        let side = fields.count("size")?.unwrap_or(tile_size);
        fields.expect_tile_size("size", side, tile_size)?;
    } else if let Some(size) = fields.object("size")? {
        for side in ["height", "width"] {
            let pixels =
                size.count(side)?.ok_or_else(|| fields.error("size", "height and width are not both given"))?;
            size.expect_tile_size(side, pixels, tile_size)?;
        }
    }
    Ok(Cutting::InternVl(InternVlCutting {
        crop_to_patches: fields.flag("crop_to_patches")?.unwrap_or(false),
        min_patches: fields.count("min_patches")?.unwrap_or(1),
        max_patches: fields.count("max_patches")?.unwrap_or(12),
    }))
}

/// The settings in a file, with what is needed to say where an error is.
struct Fields<'a> {
    file: &'static str,
    /// The path of the object in the file, ending with a dot unless empty.
    prefix: String,
    object: Option<&'a Map<String, Value>>,
}

impl<'a> Fields<'a> {
    fn choose(
        preprocessor: Option<&'a Map<String, Value>>,
        processor: Option<&'a Map<String, Value>>,
    ) -> Result<Fields<'a>> {
        let processor = Fields { file: "processor_config.json", prefix: String::new(), object: processor };
        if let Some(nested) = processor.object("image_processor")? {
            return Ok(nested);
        }
        Ok(Fields { file: "preprocessor_config.json", prefix: String::new(), object: preprocessor })
    }

    /// A field that is there and not null.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object?.get(name).filter(|value| !value.is_null())
    }

    fn error(&self, name: &str, reason: &str) -> Error {
        Error::format(self.file, format!("{}{name}", self.prefix), reason)
    }

    /// The field as `read` takes it.
    fn typed<T>(&self, name: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.get(name)
            .map(|value| read(value).ok_or_else(|| self.error(name, &format!("{value}: expected {expected}"))))
            .transpose()
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number", |value| value.as_u64().and_then(|number| number.try_into().ok()))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// One number for each channel, or one for all.
    fn triple(&self, name: &str) -> Result<Option<[f64; 3]>> {
        self.typed(name, "three numbers or one", |value| match value {
            Value::Array(values) => values.iter().map(Value::as_f64).collect::<Option<Vec<_>>>()?.try_into().ok(),
            _ => value.as_f64().map(|number| [number; 3]),
        })
    }

    fn filter(&self, name: &str) -> Result<Option<Filter>> {
        self.typed(name, "a Pillow filter, 0 to 5", |value| {
            let number = value.as_u64()?;
            Filter::ALL.into_iter().find(|&filter| filter as u64 == number)
        })
    }

    fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let object = self.typed(name, "an object", Value::as_object)?;
        Ok(object.map(|object| Fields {
            file: self.file,
            prefix: format!("{}{name}.", self.prefix),
            object: Some(object),
        }))
    }

    /// Refuses the value `refused` of a switch.
    fn refuse(&self, name: &str, refused: bool, why: &str) -> Result<()> {
        match self.flag(name)? {
            Some(value) if value == refused => Err(self.error(name, &format!("{value} is not supported: {why}"))),
            _ => Ok(()),
        }
    }

    fn expect_tile_size(&self, name: &str, pixels: usize, tile_size: usize) -> Result<()> {
        if pixels == tile_size {
            return Ok(());
        }
        Err(self.error(name, &format!("{pixels} pixels, but the encoder's image size is {tile_size}")))
    }
}
