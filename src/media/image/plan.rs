//! The sizes a picture passes through on its way to the tiles, by the rules of the two families' published processors.

use serde::{Deserialize, Serialize};

use super::picture::Size;
use super::tiles::{TileLayout, Tiling};
use crate::{Error, Result};

/// The longest side the SmolVLM processor scales a picture to, whatever its settings say.
const MAX_SIDE: usize = 4096;

/// The largest `size.longest_edge` that is believed.
const MAX_LONGEST_EDGE: usize = 1 << 20;

/// The largest `max_patches` that is believed: every grid up to it is looked at for every picture. Published: 12.
const MAX_PATCHES: usize = 1024;

/// The most pixels of the canvas crops are cut from.
const MAX_CANVAS: usize = 1 << 26;

/// What is done to a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Scaled to this size before all else.
    pub first: Option<Size>,
    /// Scaled to this size and cut into crops of one tile each.
    pub canvas: Option<Size>,
    /// The overview is made from the canvas, not from what the canvas is made from.
    pub overview_of_canvas: bool,
}

impl Plan {
    /// One tile, stretched straight to the square.
    const STRETCH: Plan = Plan { first: None, canvas: None, overview_of_canvas: false };

    pub(super) fn layout(&self, tile_size: usize) -> TileLayout {
        match self.canvas {
            Some(canvas) => {
                TileLayout { rows: canvas.height / tile_size, cols: canvas.width / tile_size, overview: true }
            }
            None => TileLayout::WHOLE,
        }
    }
}

/// A family's way of cutting, with its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub(super) enum Cutting {
    SmolVlm(SmolVlmCutting),
    InternVl(InternVlCutting),
}

impl Cutting {
    /// What [`Tiling::Checkpoint`] stands for, and for InternVL, which has one way to make one tile, what
    /// [`Tiling::Whole`] does.
    pub(super) fn resolve(&self, tiling: Tiling) -> Tiling {
        match (self, tiling) {
            (Cutting::SmolVlm(settings), Tiling::Checkpoint) if settings.do_image_splitting => Tiling::Split,
            (Cutting::SmolVlm(_), Tiling::Checkpoint) => Tiling::Whole,
            (Cutting::InternVl(settings), Tiling::Checkpoint) if settings.crop_to_patches => Tiling::Split,
            (Cutting::InternVl(_), Tiling::Checkpoint | Tiling::Whole) => Tiling::Single,
            (_, tiling) => tiling,
        }
    }

    /// The plan for a picture of `size`.
    pub(super) fn plan(&self, size: Size, tile_size: usize, tiling: Tiling) -> Plan {
        match (self, self.resolve(tiling)) {
            (Cutting::SmolVlm(settings), Tiling::Split) => settings.split(size, tile_size),
            (Cutting::SmolVlm(settings), Tiling::Whole) => {
                Plan { first: Some(settings.size.of(size)), ..Plan::STRETCH }
            }
            (Cutting::InternVl(settings), Tiling::Split) => settings.split(size, tile_size),
            _ => Plan::STRETCH,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the setting.
    pub(super) fn check(&self, tile_size: usize) -> Result<()> {
        check_side("the encoder's image size", tile_size)?;
        match self {
            Cutting::SmolVlm(settings) => match settings.size {
                // Longer than `MAX_SIDE` is allowed: it is brought down to that afterwards.
                FirstSize::LongestEdge(longest) => {
                    check_range("size.longest_edge", longest, MAX_LONGEST_EDGE, "pixels")
                }
                FirstSize::Exactly { height, width } => {
                    check_side("size.height", height)?;
                    check_side("size.width", width)
                }
            },
            Cutting::InternVl(settings) => settings.check(tile_size),
        }
    }
}

fn check_side(what: &str, side: usize) -> Result<()> {
    check_range(what, side, MAX_SIDE, "pixels")
}

fn check_range(what: &str, value: usize, most: usize, unit: &str) -> Result<()> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what} {value}: it must be 1 to {most} {unit}")))
    }
}

/// Settings of the Idefics3 and SmolVLM processors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SmolVlmCutting {
    pub size: FirstSize,
    pub do_image_splitting: bool,
}

/// What a picture is scaled to first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FirstSize {
    /// The longer side to this, the shorter one in proportion.
    LongestEdge(usize),
    /// Both sides to this.
    Exactly { height: usize, width: usize },
}

impl FirstSize {
    fn of(self, size: Size) -> Size {
        match self {
            FirstSize::LongestEdge(longest) => at_most(MAX_SIDE, scaled_to(longest, size)),
            FirstSize::Exactly { height, width } => Size { width, height },
        }
    }
}

/// The longer side becomes `longest`; the shorter one is truncated, then raised to an even number, and at least 1.
fn scaled_to(longest: usize, size: Size) -> Size {
    let even = |length: f64| (length as usize).next_multiple_of(2).max(1);
    let (aspect, longest_f) = (size.aspect(), longest as f64);
    if size.width >= size.height {
        Size { width: longest, height: even(longest_f / aspect) }
    } else {
        Size { width: even(longest_f * aspect), height: longest }
    }
}

/// As `size`, shrunk in proportion if a side is longer than `limit`.
fn at_most(limit: usize, size: Size) -> Size {
    let (aspect, limit_f) = (size.aspect(), limit as f64);
    if size.width.max(size.height) <= limit {
        size
    } else if size.width >= size.height {
        Size { width: limit, height: ((limit_f / aspect) as usize).max(1) }
    } else {
        Size { width: ((limit_f * aspect) as usize).max(1), height: limit }
    }
}

/// Both sides to multiples of `tile`: the longer one up, the shorter one in proportion, then up.
fn to_whole_tiles(tile: usize, size: Size) -> Size {
    let aspect = size.aspect();
    // At least a tile, also where the proportion rounds down to nothing.
    let up = |length: usize| length.next_multiple_of(tile).max(tile);
    if size.width >= size.height {
        let width = up(size.width);
        Size { width, height: up((width as f64 / aspect) as usize) }
    } else {
        let height = up(size.height);
        Size { width: up((height as f64 * aspect) as usize), height }
    }
}

impl SmolVlmCutting {
    fn split(&self, size: Size, tile_size: usize) -> Plan {
        let first = self.size.of(size);
        let canvas = to_whole_tiles(tile_size, first);
        // One tile needs no overview beside it.
        let canvas = (canvas != Size::square(tile_size)).then_some(canvas);
        Plan { first: Some(first), canvas, overview_of_canvas: true }
    }
}

/// Settings of the GOT-OCR2 processor, which InternVL uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct InternVlCutting {
    pub crop_to_patches: bool,
    pub min_patches: usize,
    pub max_patches: usize,
}

impl InternVlCutting {
    fn check(&self, tile_size: usize) -> Result<()> {
        let &InternVlCutting { min_patches, max_patches, .. } = self;
        if min_patches == 0 || min_patches > max_patches {
            return Err(Error::invalid(format!(
                "min_patches {min_patches} and max_patches {max_patches}: the first must be at least 1 and at most the \
                 second"
            )));
        }
        check_range("max_patches", max_patches, MAX_PATCHES, "tiles")?;
        let pixels = tile_size.saturating_mul(tile_size).saturating_mul(max_patches);
        if pixels > MAX_CANVAS {
            return Err(Error::invalid(format!(
                "max_patches {max_patches} of {tile_size}x{tile_size} pixels: more than {MAX_CANVAS} pixels in all"
            )));
        }
        Ok(())
    }

    fn split(&self, size: Size, tile_size: usize) -> Plan {
        let (cols, rows) = self.grid(size, tile_size);
        let canvas = (cols * rows > 1).then_some(Size { width: cols * tile_size, height: rows * tile_size });
        Plan { first: None, canvas, overview_of_canvas: false }
    }

    /// Columns and rows whose proportion is nearest to the picture's. Of grids equally near, the one with more tiles
    /// wins as long as the picture has more than half their pixels.
    fn grid(&self, size: Size, tile_size: usize) -> (usize, usize) {
        let (aspect, area) = (size.aspect(), size.width as f64 * size.height as f64);
        let mut best = (1, 1);
        let mut smallest = f64::INFINITY;
        for tiles in self.min_patches..=self.max_patches {
            for cols in (1..=tiles).filter(|cols| tiles % cols == 0) {
                let rows = tiles / cols;
                let difference = (aspect - cols as f64 / rows as f64).abs();
                let half_the_pixels = 0.5 * (tile_size * tile_size * tiles) as f64;
                if difference < smallest || (difference == smallest && area > half_the_pixels) {
                    smallest = difference;
                    best = (cols, rows);
                }
            }
        }
        best
    }
}
