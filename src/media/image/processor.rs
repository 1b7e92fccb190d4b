//! From a picture to the tensor an encoder takes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::config;
use super::picture::{Crop, Picture, Size};
use super::plan::{Cutting, Plan};
use super::resample::Filter;
use super::source::Image;
use super::tiles::{TileLayout, Tiling};
use crate::{Error, Result};

/// Which published image processor a checkpoint was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFamily {
    /// `Idefics3ImageProcessor` and `SmolVLMImageProcessor`.
    SmolVlm,
    /// `GotOcr2ImageProcessor`, as InternVL uses it.
    InternVl,
}

/// What an encoder takes: one or several square tiles.
#[derive(Debug, Clone, PartialEq)]
pub struct PixelTensor {
    /// `[tiles, 3, height, width]`, row-major, normalized; channels are red, green, blue.
    pub values: Vec<f32>,
    /// Number of tiles.
    pub tiles: usize,
    /// Height of a tile in pixels.
    pub height: usize,
    /// Width of a tile in pixels.
    pub width: usize,
    /// How the tiles lie.
    pub layout: TileLayout,
}

impl PixelTensor {
    /// The values `[3, height, width]` of tile `index`, if there is one.
    pub fn tile(&self, index: usize) -> Option<&[f32]> {
        self.values.chunks_exact(self.tile_len()).nth(index)
    }

    /// Values of a tile; at least 1, which `chunks_exact` asks for.
    fn tile_len(&self) -> usize {
        (3 * self.height * self.width).max(1)
    }
}

/// Everything about preprocessing, as data: read from a checkpoint once, kept in the manifest of a compiled model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Settings", into = "Settings")]
pub struct ImageProcessor {
    settings: Settings,
}

/// The stored form. Unknown fields are left to later versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Side of the encoder's square, in pixels.
    pub tile_size: usize,
    pub cutting: Cutting,
    pub resample: Filter,
    /// Multiplies the levels 0 to 255; `None` leaves them.
    pub rescale_factor: Option<f64>,
    /// Then `(x - mean) / std`; `None` leaves them.
    pub normalize: Option<Normalize>,
}

/// Mean and deviation of red, green and blue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Normalize {
    pub mean: [f64; 3],
    pub std: [f64; 3],
}

impl TryFrom<Settings> for ImageProcessor {
    type Error = Error;

    /// Settings may come from a file: all of them are checked.
    fn try_from(settings: Settings) -> Result<Self> {
        settings.cutting.check(settings.tile_size)?;
        if let Some(factor) = settings.rescale_factor.filter(|factor| !factor.is_finite()) {
            return Err(Error::invalid(format!("rescale_factor {factor}: it must be finite")));
        }
        if let Some(Normalize { mean, std }) = &settings.normalize {
            if mean.iter().any(|mean| !(*mean as f32).is_finite()) {
                return Err(Error::invalid(format!("image_mean {mean:?}: the values must be finite")));
            }
            if std.iter().any(|std| !(*std as f32).is_normal() || *std < 0.0) {
                return Err(Error::invalid(format!("image_std {std:?}: the values must be above 0")));
            }
        }
        Ok(ImageProcessor { settings })
    }
}

impl From<ImageProcessor> for Settings {
    fn from(processor: ImageProcessor) -> Settings {
        processor.settings
    }
}

impl ImageProcessor {
    /// Reads a checkpoint's settings: `preprocessor` is `preprocessor_config.json`, `processor` is
    /// `processor_config.json`, whose `image_processor`, if there is one, counts instead (newer checkpoints keep the
    /// settings there). `tile_size` is the encoder's image size in pixels.
    ///
    /// A setting that is missing or null has the value the family was published with: SmolVLM is Lanczos, mean and
    /// deviation 0.5, pictures scaled to four tiles and split; InternVL is bicubic, ImageNet's mean and deviation, one
    /// tile (1 to 12 where cut).
    ///
    /// # Errors
    /// [`Error::Format`] naming the file and the setting: of the wrong type, a tile size other than `tile_size`, or
    /// something this library does not do (`do_resize: false`, `do_center_crop: true`).
    /// [`Error::InvalidArgument`] for a value out of range.
    pub fn from_config(
        family: ImageFamily,
        preprocessor: Option<&Map<String, Value>>,
        processor: Option<&Map<String, Value>>,
        tile_size: usize,
    ) -> Result<Self> {
        config::read(family, preprocessor, processor, tile_size)?.try_into()
    }

    /// Side of a tile in pixels.
    pub fn tile_size(&self) -> usize {
        self.settings.tile_size
    }

    /// How a picture of `width` by `height` pixels is cut. Touches no pixels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a side of zero.
    pub fn layout(&self, width: usize, height: usize, tiling: Tiling) -> Result<TileLayout> {
        Ok(self.plan(width, height, tiling)?.layout(self.tile_size()))
    }

    /// How `image` is cut; a tensor has its own layout, whatever `tiling` says.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a tensor whose tiles are not of the encoder's size.
    pub fn layout_of(&self, image: &Image, tiling: Tiling) -> Result<TileLayout> {
        match image.tensor() {
            Some((_, layout)) => self.check_tensor(image).map(|()| layout),
            None => self.layout(image.width(), image.height(), tiling),
        }
    }

    /// The tensor for `image`. A ready tensor is passed on as it is.
    ///
    /// # Errors
    /// As [`layout_of`](ImageProcessor::layout_of).
    pub fn process(&self, image: &Image, tiling: Tiling) -> Result<PixelTensor> {
        let layout = self.layout_of(image, tiling)?;
        let tile_size = self.tile_size();
        let values = match (image.rgb(), image.tensor()) {
            (Some(rgb), _) => {
                let picture = Picture::new(Size { width: image.width(), height: image.height() }, rgb);
                let plan = self.plan(image.width(), image.height(), tiling)?;
                self.render(&picture, &plan)
            }
            (None, tensor) => tensor.map(|(values, _)| values.to_vec()).unwrap_or_default(),
        };
        Ok(PixelTensor { values, tiles: layout.tiles(), height: tile_size, width: tile_size, layout })
    }

    /// Hash of everything that changes the tensor of a picture: the settings and the tiling, by its effect.
    pub fn options_hash(&self, tiling: Tiling) -> [u8; 32] {
        let effective = self.settings.cutting.resolve(tiling);
        Sha256::digest(json!([self.settings, effective]).to_string()).into()
    }

    fn plan(&self, width: usize, height: usize, tiling: Tiling) -> Result<Plan> {
        if width == 0 || height == 0 {
            return Err(Error::invalid(format!("a picture of {width}x{height} pixels: it must have at least one")));
        }
        Ok(self.settings.cutting.plan(Size { width, height }, self.tile_size(), tiling))
    }

    fn check_tensor(&self, image: &Image) -> Result<()> {
        let tile_size = self.tile_size();
        if (image.width(), image.height()) == (tile_size, tile_size) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a picture tensor with tiles of {}x{} pixels, but the encoder takes {tile_size}x{tile_size}",
            image.width(),
            image.height()
        )))
    }

    /// Scales, cuts and normalizes.
    fn render(&self, picture: &Picture<'_>, plan: &Plan) -> Vec<f32> {
        let tile = Size::square(self.tile_size());
        let filter = self.settings.resample;
        let first = picture.resized(plan.first.unwrap_or(picture.size()), filter);
        let canvas = plan.canvas.map(|size| first.resized(size, filter));
        let seen_whole = canvas.as_ref().filter(|_| plan.overview_of_canvas).unwrap_or(&first);
        let overview = seen_whole.resized(tile, filter);

        let crops = canvas.iter().flat_map(|canvas| canvas.tiles(tile));
        let levels = LevelTable::new(&self.settings);
        let mut values = vec![0.0; plan.layout(tile.width).tiles() * 3 * tile.area()];
        for (crop, values) in crops.chain(overview.tiles(tile)).zip(values.chunks_exact_mut(3 * tile.area())) {
            levels.apply(&crop, values);
        }
        values
    }
}

/// What each of the 256 levels becomes, for each channel.
struct LevelTable([[f32; 256]; 3]);

impl LevelTable {
    /// Computed with the precision of the published processors: the product in double, the rest in single precision.
    fn new(settings: &Settings) -> LevelTable {
        let value = |channel: usize, level: usize| {
            let scaled = (level as f64 * settings.rescale_factor.unwrap_or(1.0)) as f32;
            match &settings.normalize {
                Some(Normalize { mean, std }) => (scaled - mean[channel] as f32) / std[channel] as f32,
                None => scaled,
            }
        };
        LevelTable(std::array::from_fn(|channel| std::array::from_fn(|level| value(channel, level))))
    }

    /// Writes `crop` as `[3, height, width]`.
    fn apply(&self, crop: &Crop<'_>, values: &mut [f32]) {
        let [reds, greens, blues] = &self.0;
        let (red, rest) = values.split_at_mut(values.len() / 3);
        let (green, blue) = rest.split_at_mut(rest.len() / 2);
        let planes = red.iter_mut().zip(green).zip(blue);
        for (&[r, g, b], ((red, green), blue)) in crop.pixels().zip(planes) {
            *red = reds[usize::from(r)];
            *green = greens[usize::from(g)];
            *blue = blues[usize::from(b)];
        }
    }
}
